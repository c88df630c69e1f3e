"""``holdfast checkpoint``: the named checkpoints of a pipeline, and when one cannot be made from here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.checkpoint import named, portable
from holdfast.checkpoint.given_state import given_states
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.snapshot import to_parquet, verify
from holdfast.cli import frame
from holdfast.cli.frame import AsJson, Checkpoint
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.controller.named import ShardNames
from holdfast.display.lines import utc
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.json_values import as_json as as_json_value
from holdfast.observe.inspection import Inspection
from holdfast.observe.schemas import operator_schemas
from holdfast.ports import Store
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_of
from holdfast.store.paths import checked_place, open_store, viewed_directory

app = typer.Typer(
    help="Named checkpoints: snapshots of a pipeline that stay until they are deleted.", no_args_is_help=True
)

CheckpointName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the checkpoint: letters, digits, '-' and '_'.")
]


@app.command("list")
def list_(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """List the named checkpoints."""
    with frame.settings(as_json):
        found = listed_of_all(checkpoint) if in_shards(checkpoint) else listed(frame.existing_store(checkpoint))
        frame.answer(found, list_lines(found), as_json)


@app.command("create")
def create_(
    name: CheckpointName,
    checkpoint: Checkpoint,
    force: Annotated[bool, typer.Option("--force", help="Do it even if the process of the last run is alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep the state of a pipeline that does not run, as of its last finished epoch, under a name."""
    with frame.settings(as_json) as settings:
        frame.check_has_run(checkpoint)
        inspection = frame.inspected(checkpoint, None)
        if not force:
            check_may_create(inspection, name)
        if inspection.shards:
            found = created_of_all(checkpoint, inspection.pipeline, name, settings)
            frame.answer(found, list_lines([found]), as_json)
            return
        from holdfast.starts.named_checkpoint import create

        directory = viewed_directory(checkpoint)
        frame.check_has_spark(directory, "A named checkpoint")
        made = create(
            open_store(str(directory)),
            directory,
            name,
            pipeline=inspection.pipeline,
            generation=inspection.owner.generation,
            settings=settings,
            clock=SystemClock(),
        )
        found = described(name, made)
        frame.answer(found, list_lines([found]), as_json)


@app.command("show")
def show_(name: CheckpointName, checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Show what a named checkpoint holds, and read every file of it."""
    with frame.settings(as_json):
        names = in_shards(checkpoint)
        if names is not None and name not in names.of_one_run():
            found = shown_of_all(names, name)
        else:
            found = shown(frame.existing_store(checkpoint), name)
        frame.answer(found, show_lines(found), as_json)


@app.command("export")
def export_(
    name: CheckpointName,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory to write. It must be empty or missing.")
    ],
    checkpoint: Checkpoint,
    operator: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write only the state tables of this operator, each as TABLE.parquet."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a named checkpoint into a directory that needs nothing else; or the state of one operator."""
    with frame.settings(as_json):
        if operator is not None:
            files = write_state(frame.existing_store(checkpoint), name, operator, directory.expanduser().absolute())
            frame.answer({"name": name, "operator": operator, "tables": files}, state_lines(files), as_json)
            return
        found = portable.export(frame.existing_store(checkpoint), name, directory.expanduser().absolute())
        value = described(name, found.manifest)
        frame.answer(value, [f"{name} is exported: {directory}"], as_json)


@app.command("import")
def import_(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory that an export wrote.")],
    checkpoint: Checkpoint,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Name of the checkpoint. Default: the name under which it was exported."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take an exported checkpoint in. Every checksum is compared."""
    with frame.settings(as_json):
        store = open_store(str(viewed_directory(checkpoint)))
        taken = portable.import_from(store, directory.expanduser().absolute(), name)
        found = shown(store, taken)
        frame.answer(found, list_lines([found]), as_json)


@app.command("edit")
def edit_(
    name: CheckpointName,
    checkpoint: Checkpoint,
    operator: Annotated[str, typer.Option(metavar="NAME", help="The operator whose state is replaced.")],
    given: Annotated[
        Path,
        typer.Option(
            "--with",
            metavar="FILE",
            help="A Parquet file with all its rows, or a directory with a file for each table.",
        ),
    ],
    new_name: Annotated[str, typer.Option("--as", metavar="NEWNAME", help="The name of the checkpoint that is made.")],
    as_json: AsJson = False,
) -> None:
    """Make a named checkpoint of another one, with the state of one operator replaced; the old one stays."""
    with frame.settings(as_json):
        from holdfast.plan.levels.edited import edited

        store = frame.existing_store(checkpoint)
        (state,) = given_states({operator: given})
        found = described(new_name, edited(store, name, state, new_name))
        frame.answer(found, list_lines([found]), as_json)


@app.command("delete")
def delete_(name: CheckpointName, checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Delete a named checkpoint; what only it needed goes with the next pruning."""
    with frame.settings(as_json):
        names = in_shards(checkpoint)
        if names is None:
            delete(frame.existing_store(checkpoint), name)
        else:
            delete_of_all(names, name)
        frame.answer({"deleted": name}, [f"{name} is deleted."], as_json)


# --- what the commands do and say ----------------------------------------------------------------------------------


def described(name: str, manifest: Manifest) -> dict[str, Any]:
    """Return a named checkpoint as a JSON value."""
    operators = {
        operator: {"kind": of.schema.kind, "rows": sum(f.rows for b in of.buckets.values() for f in b.files.values())}
        for operator, of in manifest.operators.items()
    }
    return {
        "name": name,
        "pipeline": manifest.pipeline,
        "epoch": manifest.ended.epoch,
        "at_us": manifest.at_us,
        "positions": {source: dict(segments) for source, segments in manifest.ended.positions.items()},
        "operators": operators,
        "rows": manifest.rows,
        "size_bytes": manifest.size_bytes,
        "problem": "",
    }


def listed(store: Store, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return all named checkpoints; one that cannot be read says so, and so does what is left of one.

    Parameters
    ----------
    store : Store
        The checkpoint.
    names : iterable of str, optional
        Those that are wanted; None: all.
    """
    found = []
    for name in named.names(store) if names is None else names:
        try:
            found.append(described(name, named.read_named(store, name)))
        except Corrupt as error:
            found.append({"name": name, "problem": error.what})
    return [*found, *map(_left, named.remains(store))]


def _left(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "problem": "files of one that was not completed, or not wholly deleted; if nothing is at it, remove them: "
        f"holdfast checkpoint delete {name}",
    }


def in_shards(checkpoint: str) -> ShardNames | None:
    """Return the named checkpoints of all shards of a pipeline; None where it has no shards."""
    store = frame.existing_store(checkpoint)
    return None if newest_layout(store) is None else ShardNames("", frame.shard_stores(checkpoint))


def created_of_all(checkpoint: str, pipeline: str, name: str, settings: Settings) -> dict[str, Any]:
    """Make one of all shards, none of which runs."""
    from holdfast.controller.named_parts import ShardParts

    directory = viewed_directory(checkpoint)
    frame.check_has_spark(directory, "A named checkpoint")
    layout = newest_layout(open_store(str(directory)))
    assert layout is not None
    parts = ShardParts(pipeline, directory, layout, settings)
    parts.of_stopped(name)
    return described_of_all(name, parts.names.manifests(name))


def described_of_all(name: str, parts: Mapping[int, Manifest]) -> dict[str, Any]:
    """Return a checkpoint of all shards as a JSON value: what its parts hold together, and each."""
    shards = {str(shard): described(name, manifest) for shard, manifest in parts.items()}
    each = list(shards.values())
    positions: dict[str, dict[str, Any]] = {}
    operators: dict[str, dict[str, Any]] = {}
    for part in each:
        for source, segments in part["positions"].items():
            positions.setdefault(source, {}).update(segments)
        for operator, of in part["operators"].items():
            known = operators.setdefault(operator, {**of, "rows": 0})
            known["rows"] += of["rows"]
    return {
        "name": name,
        "pipeline": shard_of(each[0]["pipeline"])[0],
        "epoch": None,
        "at_us": max(part["at_us"] for part in each),
        "positions": positions,
        "operators": operators,
        "rows": sum(part["rows"] for part in each),
        "size_bytes": sum(part["size_bytes"] for part in each),
        "problem": "",
        "shards": shards,
    }


def listed_of_all(checkpoint: str) -> list[dict[str, Any]]:
    """Return the named checkpoints of a pipeline in shards, with those of before it had any."""
    names = in_shards(checkpoint)
    assert names is not None
    found = []
    for name in names.names():
        try:
            found.append(described_of_all(name, names.manifests(name)))
        except Corrupt as error:
            found.append({"name": name, "problem": error.what})
    return [*found, *listed(names.store, names.of_one_run()), *map(_left, names.remains())]


def shown_of_all(names: ShardNames, name: str) -> dict[str, Any]:
    """Return one of all shards, after every file of it was read.

    Raises
    ------
    Corrupt
        If one is damaged: names it.
    """
    parts = names.manifests(name)
    for shard, manifest in parts.items():
        verify(names.stores[shard], manifest)
    schemas = operator_schemas(next(iter(parts.values())).state_schemas)
    return {**described_of_all(name, parts), "schemas": as_json_value(schemas)}


def shown(store: Store, name: str) -> dict[str, Any]:
    """Return one, after every file of it was read.

    Raises
    ------
    Corrupt
        If one is damaged: names it.
    """
    manifest = named.read_named(store, name)
    verify(store, manifest)
    return {**described(name, manifest), "schemas": as_json_value(operator_schemas(manifest.state_schemas))}


def write_state(store: Store, name: str, operator: str, directory: Path) -> dict[str, dict[str, Any]]:
    """Write the state tables of one operator as Parquet files; return what each is.

    Raises
    ------
    InvalidPipeline
        If the directory is not empty, or there is no such state.
    """
    from holdfast.plan.levels.edited import state_of

    tables = state_of(store, name, operator)
    if checked_place(directory, "an export").exists() and any(directory.iterdir()):
        raise InvalidPipeline(
            f"{directory} is not empty.",
            why="every file in the directory is taken for a state table when it is edited.",
            do="name a directory that is empty, or not there yet.",
        )
    directory.mkdir(parents=True, exist_ok=True)
    for table, rows in tables.items():
        (directory / f"{table}.parquet").write_bytes(to_parquet(rows))
    return {
        table: {"rows": rows.num_rows, "path": str(directory / f"{table}.parquet")} for table, rows in tables.items()
    }


def state_lines(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say what was written."""
    for table, each in files.items():
        yield f"{table}  {each['rows']:,} rows: {each['path']}"


def delete(store: Store, name: str) -> None:
    """Delete one, damaged ones too, and what an import or a deletion that was killed has left.

    Raises
    ------
    InvalidPipeline
        If there is none of that name.
    """
    if named.checked_name(name) not in (*named.names(store), *named.remains(store)):
        named.read_named(store, name)  # raises, and says which there are
    named.delete_named(store, name)


def delete_of_all(names: ShardNames, name: str) -> None:
    """Delete one of a pipeline in shards.

    Raises
    ------
    InvalidPipeline
        If there is none of that name, or an interrupted rewind goes back to it.
    """
    from holdfast.controller.rewinding import ShardsRewinding

    if ShardsRewinding("", names.store, {}).needed_name == name:
        raise InvalidPipeline(
            f"checkpoint {name!r} is needed: a rewind of all shards to it was interrupted.",
            why="the shards that have not gone back take their state from it.",
            do=f"finish it: holdfast rewind TARGET --to {name}. Every start of all shards does so first, too.",
        )
    names.delete(name)


def check_may_create(inspection: Inspection, name: str) -> None:
    """Refuse to make one while a process is alive on this host: its directory changes while it is read.

    Raises
    ------
    InvalidPipeline
        If there is one: it can make the checkpoint itself.
    """
    if inspection.owner.is_alive or any(each.is_alive for each in inspection.shards):
        raise InvalidPipeline(
            f"pipeline {inspection.pipeline!r} runs: process {inspection.owner.pid} on this host is alive.",
            why="a run prunes what no name keeps, and may do so before this name is there.",
            do=f'in the program that runs it: run.checkpoint_now(name="{name}"); or stop it first (kill -TERM). '
            "If that process is another program by now, or its run has ended, add --force.",
            pipeline=inspection.pipeline,
        )


def list_lines(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Say what each holds, one line for each."""
    found = list(found)
    if not found:
        yield "no checkpoint has a name."
    for each in found:
        if each["problem"]:
            yield f"{each['name']}  {each['problem']}"
            continue
        shards = each.get("shards")
        epochs = ", ".join(f"{shard}: {part['epoch']}" for shard, part in shards.items()) if shards else ""
        yield (
            f"{each['name']}  "
            + (f"shards at epochs {epochs}" if shards else f"epoch {each['epoch']}")
            + f" of {each['pipeline']}, made {utc(each['at_us'])}, "
            f"{each['rows']:,} rows of state, {each['size_bytes']:,} bytes"
        )


def show_lines(each: Mapping[str, Any]) -> Iterator[str]:
    """Say what one holds: positions, operators."""
    yield from list_lines([each])
    for source, segments in each["positions"].items():
        yield f"  source {source}  " + "  ".join(f"{s}={p}" if s else str(p) for s, p in segments.items())
    for operator, of in each["operators"].items():
        yield f"  operator {operator}  {of['kind']}, {of['rows']:,} rows"
    for kept in each["schemas"]:
        for table in kept["tables"]:
            yield f"  {kept['operator']}, table {table['name']}  {table['columns']}"
    yield "  every file is whole."
