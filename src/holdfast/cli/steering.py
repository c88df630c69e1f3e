"""``holdfast status``, ``pause``, ``resume``, ``limit``, ``drain``, ``wait``, ``log``, ``sample``: for a live run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from holdfast.cli import frame
from holdfast.cli.frame import AsJson, Checkpoint
from holdfast.display.rows import row_line
from holdfast.display.tables import amount_text
from holdfast.errors import Unavailable
from holdfast.health import Health
from holdfast.observe.health import health_of_checkpoint
from holdfast.steer.client import Attached, attach
from holdfast.steer.controls import Controls
from holdfast.steer.protocol import SAMPLE_MAX, SAMPLE_S

Sources = Annotated[list[str] | None, typer.Argument(metavar="[SOURCE]...", help="Names of sources. Default: all.")]


def status(
    checkpoint: Checkpoint,
    check: Annotated[
        bool, typer.Option("--check", help="Say what is wrong alone, and exit with 1 where something is: for probes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the run that is alive does, or with --check whether anything is wrong."""
    with frame.settings(as_json):
        if check:
            health = _health_of(checkpoint)
            answer = {"is_healthy": health.is_healthy, "reasons": [*health.reasons]}
            frame.answer(answer, health.reasons or ["healthy"], as_json)
            raise typer.Exit(0 if health.is_healthy else 1)
        found = _run_of(checkpoint).status()
        frame.answer(found, _status_lines(found), as_json)


def pause(checkpoint: Checkpoint, sources: Sources = None, as_json: AsJson = False) -> None:
    """Let sources deliver nothing more, in this run and later ones, until they are resumed."""
    with frame.settings(as_json):
        _say(_run_of(checkpoint).pause(*(sources or ())), as_json)


def resume(checkpoint: Checkpoint, sources: Sources = None, as_json: AsJson = False) -> None:
    """Let sources that were paused go on."""
    with frame.settings(as_json):
        _say(_run_of(checkpoint).resume(*(sources or ())), as_json)


def limit(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Its name.")],
    rate: Annotated[str, typer.Argument(metavar="ROWS_PER_S", help="Rows a second at most; none: no limit.")],
    checkpoint: Checkpoint,
    as_json: AsJson = False,
) -> None:
    """Limit how many rows a second a source delivers, in this run and later ones."""
    with frame.settings(as_json):
        _say(_run_of(checkpoint).limit(source, rows_per_s(rate)), as_json)


def drain(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Read what is in the sources now and nothing more, wait until every sink holds it, and let the run end."""
    with frame.settings(as_json):
        found = _run_of(checkpoint).drain(_tell_left(as_json))
        frame.answer(found, ["every sink holds what was in the sources, and the run has ended"], as_json)


def wait(
    checkpoint: Checkpoint,
    until_held: Annotated[
        bool, typer.Option("--until-held", help="Until every sink holds what is in the sources now. The default.")
    ] = True,
    token: Annotated[
        str | None, typer.Option(metavar="JSON", help="The token of an earlier call: until every sink holds that.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Wait until everything that is in the sources now is in every sink."""
    del until_held  # for who reads the command
    with frame.settings(as_json):
        found = _run_of(checkpoint).wait_until_held(_token(token), _tell_left(as_json))
        frame.answer(found, ["every sink holds it"], as_json)


def log(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR.")],
    checkpoint: Checkpoint,
    as_json: AsJson = False,
) -> None:
    """Let the run that is alive log from a level on, until it ends."""
    with frame.settings(as_json):
        found = _run_of(checkpoint).log(level)
        frame.answer(found, [f"it logged from {found['before']} on before"], as_json)


def sample(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A source, an operator or a sink.")],
    checkpoint: Checkpoint,
    count: Annotated[int, typer.Option("-n", min=1, max=SAMPLE_MAX, help="How many rows.")] = 20,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="S", help="Wait so long at most.")] = SAMPLE_S,
    shard: Annotated[int | None, typer.Option(metavar="N", help="Of this shard alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show rows as they pass a node of the run that is alive, secrets masked."""

    def tell(said: Mapping[str, Any]) -> None:
        if as_json:
            for row in said["rows"]:
                frame.print_json({"row": row})
        else:
            frame.print_lines(map(row_line, said["rows"]))

    with frame.settings(as_json):
        found = _run_of(checkpoint).sample(node, count, timeout_s=timeout_s, shard=shard, tell=tell)
        rows, epochs = len(found["rows"]), found["epochs"]
        lines = [] if rows else [f"no row has passed {node} within {timeout_s:g} s, in {epochs:,} epochs"]
        frame.answer({"count": rows, "epochs": epochs}, lines, as_json)


COMMANDS = {each.__name__: each for each in (status, pause, resume, limit, drain, wait, log, sample)}


def _health_of(checkpoint: str) -> Health:
    try:
        return Health(tuple(_run_of(checkpoint).status()["health"]["reasons"]))
    except Unavailable:
        return health_of_checkpoint(frame.inspected(checkpoint, None))


def _run_of(checkpoint: str) -> Attached:
    frame.existing_directory(checkpoint)
    return attach(checkpoint)


def _say(controls: Mapping[str, Any], as_json: bool) -> None:
    frame.answer(controls, Controls.from_json(controls).lines(), as_json)


def _status_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"pipeline {found['pipeline']}  {found['state']}  {found['doing']}".rstrip()
    yield f"generation {found['generation']}  epoch {found['epoch']}  {found['rows_total']:,} rows"
    for source in found["sources"]:
        lag = "unknown" if source["lag"] is None else f"{source['lag']:,}"
        rate = source["limit_rows_per_s"]
        said = ["  paused" if source["is_paused"] else "", "" if rate is None else f"  limited to {rate:g} rows/s"]
        yield f"source {source['name']}: {source['rows']:,} rows, lag {lag}{''.join(said)}"
    for sink in found["sinks"]:
        yield f"sink {sink['name']}: {sink['rows']:,} rows, epoch {sink['epoch']}"
    for each in found["expectations"]:
        of_all = f"{each['failed_total']:,} of {each['rows_total']:,} in all"
        yield f"expectation {each['name']}: {each['failed']:,} of {each['rows']:,} rows fail, {of_all}"
    for each in found["calls"]:
        cost = "".join(f", {name} {amount_text(amount)}" for name, amount in each["cost"].items())
        made = f"{each['calls']:,} calls, {each['retries']:,} again, {each['failed']:,} failed"
        yield f"call {each['name']}: {made}, {each['reused']:,} answers reused{cost}"
    for shard in found["shards"]:
        yield f"shard {shard['shard']}: {shard['state']}, epoch {shard['epoch']}, restarts {shard['restarts']}"
    yield from (f"! {reason}" for reason in found["health"]["reasons"])


def _tell_left(as_json: bool) -> Any:
    def tell(said: Mapping[str, Any]) -> None:
        if as_json:
            frame.print_json(said)
        elif "left" in said:
            frame.print_lines([f"{said['left']:,} positions to go"])

    return tell


def rows_per_s(text: str) -> float | None:
    """Return a rate; None: no limit.

    Examples
    --------
    >>> rows_per_s("100"), rows_per_s("1e6/s"), rows_per_s("none")
    (100.0, 1000000.0, None)
    """
    if text == "none":
        return None
    try:
        return float(text.removesuffix("/s"))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number of rows a second: write 500, or none.") from None


def _token(text: str | None) -> Any:
    try:
        found = None if text is None else json.loads(text)
    except ValueError:
        raise typer.BadParameter("--token is not JSON: give what an earlier call has printed as token.") from None
    return found
