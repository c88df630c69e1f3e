"""The commands and their options; what they do stands in the modules beside this one."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import __version__
from holdfast.checkpoint import portable
from holdfast.checkpoint.store import directory_of, open_store
from holdfast.cli import checkpoints, dead_letters, words
from holdfast.cli.failures import reported
from holdfast.cli.foreground import run_in_foreground
from holdfast.cli.resolve import check_epoch_is_open, check_nobody_runs, resolve
from holdfast.clock import SystemClock
from holdfast.config import Settings, unknown_variables
from holdfast.errors import InvalidPipeline
from holdfast.masking import masked, masked_json
from holdfast.observe.configuration import configuration
from holdfast.observe.inspection import Inspection, inspect_checkpoint
from holdfast.observe.inspection import as_json as inspected_json
from holdfast.observe.logs import FILE_NAME, FILE_ONLY, logging_to
from holdfast.observe.sink_answers import inspect_sinks
from holdfast.pipeline import Pipeline
from holdfast.ports import Store
from holdfast.supervision import supervise, told_to_supervisor
from holdfast.target import load_target
from holdfast.trigger import Trigger, available_now, every

_log = logging.getLogger(__name__)

app = typer.Typer(
    name="holdfast",
    help="Exactly-once pipelines on Spark Structured Streaming.\n\n"
    "TARGET is path/to/file.py:pipeline or package.module:pipeline; without a name, the only pipeline there.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or pipeline, 3 fenced, 4 in doubt or diverged.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

checkpoint_app = typer.Typer(
    help="Named checkpoints: snapshots of a pipeline that stay until they are deleted.", no_args_is_help=True
)
app.add_typer(checkpoint_app, name="checkpoint")

Target = Annotated[str, typer.Argument(metavar="TARGET", help="file.py:name or module:name of the pipeline.")]
Checkpoint = Annotated[str, typer.Option("--checkpoint", metavar="DIR", help="The pipeline's own directory.")]
CheckpointName = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '-' and '_'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer on stdout as JSON.")]


class Drawing(Enum):
    """How ``explain`` draws."""

    MERMAID = "mermaid"
    SVG = "svg"


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    app(prog_name="holdfast")


def _say_version(wanted: bool) -> None:
    if wanted:
        _print([f"holdfast {__version__}"])
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    # Only the options that stand before a command; a docstring here would replace the help of the whole.
    del version


@app.command()
def run(
    target: Target,
    checkpoint: Checkpoint,
    interval: Annotated[
        str | None, typer.Option("--every", metavar="DURATION", help="Begin an epoch at most this often (100ms).")
    ] = None,
    drain: Annotated[bool, typer.Option("--available-now", help="Drain what is there now, then stop.")] = False,
    master: Annotated[str | None, typer.Option(metavar="URL", help="Spark master; default HOLDFAST_MASTER.")] = None,
    commit_every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Publish once pts has moved by this much (1s).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start a changed graph also where state is lost by it: see plan.")
    ] = False,
    from_checkpoint: Annotated[
        str | None, typer.Option(metavar="WHERE", help="First start: begin at a named checkpoint (NAME, DIR/NAME).")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="First start: begin at a time (ISO 8601).")] = None,
    on_poison: Annotated[
        str | None, typer.Option(metavar="stop|isolate", help="What becomes of rows that kill the run again and again.")
    ] = None,
    supervised: Annotated[
        bool, typer.Option("--supervise", help="Run in a child process, and start it again when it fails.")
    ] = False,
    max_restarts: Annotated[
        int | None, typer.Option(metavar="N", help="With --supervise: in a row, without a finished epoch.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline in the foreground: Ctrl-C or SIGTERM stops it after the current epoch."""
    with _settings(as_json) as settings:
        trigger = _trigger(interval, drain)
        directory = directory_of(checkpoint)
        if max_restarts is not None and not supervised:
            raise typer.BadParameter("--max-restarts belongs to --supervise.")
        if supervised:
            words_of_child = {
                "--every": interval,
                "--master": master,
                "--commit-every": commit_every,
                "--from-checkpoint": from_checkpoint,
                "--at": at,
                "--on-poison": on_poison,
            }
            flags = {"--available-now": drain, "--force": force, "--json": as_json}
            arguments = [part for name, value in words_of_child.items() if value is not None for part in (name, value)]
            arguments += [name for name, is_given in flags.items() if is_given]
            with _log_file(directory, settings, as_json):
                code = supervise(
                    target, checkpoint=checkpoint, max_restarts=max_restarts, arguments=arguments, settings=settings
                )
            raise typer.Exit(code)
        pipeline = load_target(target)
        given = {
            "master": master,
            "commit_every": commit_every,
            "force": force or None,
            "from_checkpoint": from_checkpoint,
            "at": at,
            "on_poison": on_poison,
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        with _log_file(directory, settings, as_json):
            _note_start(f"run {target}")
            _note_settings(settings)
            with told_to_supervisor():
                run_in_foreground(
                    lambda: pipeline.start(checkpoint=str(directory), trigger=trigger, settings=settings, **options),
                    settings,
                    as_json=as_json,
                )


@app.command()
def inspect(
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIR", help="The pipeline's own directory.")
    ] = None,
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help="With it, its sinks are asked too.")] = None,
    config: Annotated[
        bool, typer.Option("--config", help="Show the settings instead, and where each value comes from.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint and its sinks hold.  Changes nothing, and may run beside a live pipeline."""
    with _settings(as_json) as settings:
        if config:
            shown = configuration(settings)
            if as_json:
                _print_json(shown.to_json())
            else:
                _print(words.configuration_lines(shown))
            return
        if checkpoint is None:
            raise typer.BadParameter("--checkpoint DIR is missing; without it, only --config can be answered.")
        inspection = _inspection(checkpoint, None if target is None else load_target(target))
        if as_json:
            _print_json(inspected_json(inspection))
        else:
            _print(words.inspection_lines(inspection))


@app.command("resolve")
def resolve_(
    target: Target,
    checkpoint: Checkpoint,
    epoch: Annotated[int | None, typer.Option(metavar="N", help="Must be in doubt; only it is reported.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Take over even if a run seems to be alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish or drop what is in doubt, as the next start would.  Needs no Java; fences a run that is alive."""
    with _settings(as_json) as settings:
        pipeline = load_target(target)
        inspection = _inspection(checkpoint, pipeline if dry_run else None)
        _check_owner(inspection, pipeline)
        if epoch is not None:
            check_epoch_is_open(inspection, epoch)
        if dry_run:
            if as_json:
                _print_json({"dry_run": True, **inspected_json(inspection)})
            else:
                _print(words.verdict_lines(inspection, epoch))
            return
        if not force:
            why = "to resolve is to take over, and would fence it; a run resolves its own doubts."
            check_nobody_runs(inspection.owner, why)
        directory = directory_of(checkpoint)
        with _log_file(directory, settings, as_json):
            _note_start(f"resolve {target}")
            resumption = resolve(pipeline, open_store(str(directory)), inspection, settings)
        if as_json:
            _print_json({"dry_run": False, **inspected_json(resumption)})
        else:
            _print(words.resumption_lines(pipeline.name, resumption, epoch))


@app.command("rewind")
def rewind_(
    target: Target,
    checkpoint: Checkpoint,
    to: Annotated[
        str, typer.Option("--to", metavar="EPOCH|TIME|NAME", help="An epoch, a time (ISO 8601), a named checkpoint.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be withdrawn; change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Take over even if a run seems to be alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go back: withdraw from every sink what was published since, and let the next run start there.  Needs no Java."""
    with _settings(as_json) as settings:
        from holdfast.spark.rewind import Rewinding

        pipeline = load_target(target)
        inspection = _inspection(checkpoint, None)
        _check_owner(inspection, pipeline)
        directory = directory_of(checkpoint)
        rewinding = Rewinding(pipeline, open_store(str(directory)), directory, settings)
        if dry_run:
            planned = rewinding.plan(to)
            answer = {"dry_run": True, "carried_through": None, **inspected_json(planned)}
            _answer(answer, words.rewind_lines(pipeline.name, planned), as_json)
            return
        if not force:
            check_nobody_runs(inspection.owner, "to rewind is to take over, and would fence it.")
        with _log_file(directory, settings, as_json):
            _note_start(f"rewind {target} --to {to}")
            before = rewinding.carry_through()
            done = rewinding.do(to)
        answer = {
            "dry_run": False,
            "carried_through": None if before is None else before.rewound_to,
            **inspected_json(done),
        }
        _answer(answer, words.rewind_lines(pipeline.name, done), as_json)


@app.command("plan")
def plan_(
    target: Target,
    checkpoint: Checkpoint,
    force: Annotated[bool, typer.Option("--force", help="As run --force would start it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what becomes of each node and its state if this graph is started.  Changes nothing; code 2 if refused."""
    with _settings(as_json) as settings:
        from holdfast.spark.plan import plan

        pipeline = load_target(target)
        directory = directory_of(checkpoint)
        if not (directory / "spark").is_dir():
            _print([f"nothing has run in {checkpoint} yet: pipeline {pipeline.name!r} begins at the beginning."])
            return
        planned = plan(pipeline, open_store(str(directory)), directory, settings)
        if as_json:
            _print_json(inspected_json(planned))
        else:
            _print(words.plan_lines(pipeline.name, planned.directory, planned.change))
        if planned.change is not None and planned.directory.is_changed:
            planned.change.check(pipeline.name, is_forced=force or settings.force_graph_change)


@app.command()
def explain(
    target: Target,
    diagram: Annotated[Drawing | None, typer.Option(help="Draw instead of describing.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a pipeline in words, or draw it.  Runs nothing."""
    with _settings(as_json):
        pipeline = load_target(target)
        if as_json:
            answer = {"spec": pipeline.spec(), "fingerprint": pipeline.fingerprint(), "explanation": pipeline.explain()}
            _print_json(answer | ({"diagram": pipeline.diagram(diagram.value)} if diagram else {}))
        else:
            _print([pipeline.explain() if diagram is None else pipeline.diagram(diagram.value)])


@checkpoint_app.command("list")
def checkpoint_list(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """List the named checkpoints."""
    with _settings(as_json):
        found = checkpoints.listed(_existing_store(checkpoint))
        _answer(found, checkpoints.list_lines(found), as_json)


@checkpoint_app.command("create")
def checkpoint_create(
    name: CheckpointName,
    checkpoint: Checkpoint,
    force: Annotated[bool, typer.Option("--force", help="Even if the process of the last run is alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep the state of a pipeline that does not run, as of its last finished epoch, under a name."""
    with _settings(as_json) as settings:
        inspection = _inspection(checkpoint, None)
        if not force:
            checkpoints.check_may_create(inspection, name)
        from holdfast.spark.named_checkpoint import create

        directory = directory_of(checkpoint)
        made = create(
            open_store(str(directory)),
            directory,
            name,
            pipeline=inspection.pipeline,
            generation=inspection.owner.generation,
            settings=settings,
            clock=SystemClock(),
        )
        found = checkpoints.as_json(name, made)
        _answer(found, checkpoints.list_lines([found]), as_json)


@checkpoint_app.command("show")
def checkpoint_show(name: CheckpointName, checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Show what a named checkpoint holds, and read every file of it."""
    with _settings(as_json):
        found = checkpoints.shown(_existing_store(checkpoint), name)
        _answer(found, checkpoints.show_lines(found), as_json)


@checkpoint_app.command("export")
def checkpoint_export(
    name: CheckpointName,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Empty, or not there yet.")],
    checkpoint: Checkpoint,
    as_json: AsJson = False,
) -> None:
    """Write a named checkpoint into a directory that needs nothing else."""
    with _settings(as_json):
        found = portable.export(_existing_store(checkpoint), name, directory.expanduser().absolute())
        value = checkpoints.as_json(name, found.manifest)
        _answer(value, [f"{name} is exported: {directory}"], as_json)


@checkpoint_app.command("import")
def checkpoint_import(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What an export wrote.")],
    checkpoint: Checkpoint,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: the name it was exported by.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take an exported checkpoint in; every checksum is compared."""
    with _settings(as_json):
        store = open_store(str(directory_of(checkpoint)))
        taken = portable.import_from(store, directory.expanduser().absolute(), name)
        found = checkpoints.shown(store, taken)
        _answer(found, checkpoints.list_lines([found]), as_json)


@checkpoint_app.command("delete")
def checkpoint_delete(name: CheckpointName, checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Delete a named checkpoint; what only it needed goes with the next pruning."""
    with _settings(as_json):
        checkpoints.delete(_existing_store(checkpoint), name)
        _answer({"deleted": name}, [f"{name} is deleted."], as_json)


letters_app = typer.Typer(
    help="Show the rows that were isolated, or send them through the graph again.", no_args_is_help=True
)
app.add_typer(letters_app, name="dead-letters")


@letters_app.command("list")
def list_letters(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Show every dead letter: the row, where it stands, the error, and what became of it.  Changes nothing."""
    with _settings(as_json):
        letters = dead_letters.described(_existing_store(checkpoint), directory_of(checkpoint))
        if as_json:
            _print_json({"dead_letters": letters})
        else:
            _print(dead_letters.letter_lines(letters))


@letters_app.command("replay")
def replay_letters(
    checkpoint: Checkpoint,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[LETTER]...", help="Which, by name; default: all not sent again.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if the process of the last run is alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters through the graph again: each is part of one epoch of the next run."""
    with _settings(as_json):
        if not force:
            why = "a start that isolates rows writes the letters too, and would undo what is noted here."
            check_nobody_runs(_inspection(checkpoint, None).owner, why)
        sent = dead_letters.replay(_existing_store(checkpoint), directory_of(checkpoint), names or ())
        if as_json:
            _print_json({"replayed_at_next_start": [letter.name for letter in sent]})
        else:
            _print([*(letter.name for letter in sent), f"{len(sent)} dead letters come back with the next start."])


# --- what every command stands in ---------------------------------------------------------------------------------


@contextmanager
def _settings(as_json: bool) -> Iterator[Settings]:
    """Settings, messages on stderr, and errors as exit codes."""
    with logging_to(None), reported(as_json=as_json):
        settings = Settings()
        with logging_to(None, level=settings.log_level, as_json=settings.log_json):
            for warning in unknown_variables():
                _log.warning("%s", warning)
            # Inside too, for the traceback of an unforeseen error to be shown at level DEBUG.
            with reported(as_json=as_json):
                yield settings


@contextmanager
def _log_file(directory: Path, settings: Settings, as_json: bool) -> Iterator[None]:
    """Besides, the log in the checkpoint; it gets the traceback of whatever ends the command."""
    file = directory / FILE_NAME
    with (
        logging_to(file, level=settings.log_level, as_json=settings.log_json),
        reported(as_json=as_json, log_file=file),
    ):
        yield


def _note_start(command: str) -> None:
    """Begin each command's part of the log with what whoever reads it asks first."""
    where = f"Python {platform.python_version()} on {platform.platform()}, process {os.getpid()}"
    _log.info("holdfast %s: %s; %s", __version__, command, where, extra={FILE_ONLY: True})


def _note_settings(settings: Settings) -> None:
    given = [f"{one.variable}={one.value} ({one.whence})" for one in configuration(settings).settings if one.is_given]
    _log.info("settings: %s", ", ".join(given) or "all at their defaults", extra={FILE_ONLY: True})


def _trigger(interval: str | None, drain: bool) -> Trigger | None:
    if interval is not None and drain:
        raise typer.BadParameter("--every and --available-now exclude each other.")
    if drain:
        return available_now()
    return None if interval is None else every(interval)


def _inspection(checkpoint: str, pipeline: Pipeline | None) -> Inspection:
    store = _existing_store(checkpoint)
    inspection = inspect_checkpoint(checkpoint, store, directory_of(checkpoint))
    if pipeline is None:
        return inspection
    _check_owner(inspection, pipeline)
    return replace(inspection, sinks=inspect_sinks(pipeline, store, inspection))


def _existing_store(checkpoint: str) -> Store:
    directory = directory_of(checkpoint)
    if not directory.is_dir():
        raise InvalidPipeline(
            f"there is no checkpoint {checkpoint!r}.", why=f"{directory} is no directory.", do="name an existing one."
        )
    return open_store(str(directory))


def _check_owner(inspection: Inspection, pipeline: Pipeline) -> None:
    if inspection.pipeline not in ("", pipeline.name):
        raise InvalidPipeline(
            f"the checkpoint belongs to pipeline {inspection.pipeline!r}, not to {pipeline.name!r}.",
            why="positions and decisions of one pipeline mean nothing to another.",
            do="name the checkpoint of this pipeline, or the TARGET that the checkpoint belongs to.",
            pipeline=pipeline.name,
        )


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(masked(line) + "\n")
    sys.stdout.flush()


def _answer(value: Any, lines: Iterable[str], as_json: bool) -> None:
    if as_json:
        _print_json(value)
    else:
        _print(lines)


def _print_json(value: Any) -> None:
    _print([json.dumps(masked_json(value), ensure_ascii=False)])
