"""``holdfast dashboard``: the web page of a run, of what is left of one, or of a fleet; and ``run --page``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

from holdfast.cli import frame, words
from holdfast.cli.checkpoints import in_shards, listed, listed_of_all
from holdfast.cli.dead_letters import letters_in, places_of, replay_in
from holdfast.cli.reset import rewind_preview
from holdfast.cli.target import load_target
from holdfast.config import Settings
from holdfast.controller.shard_targets import targets_of
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.page.beside import PageBeside
from holdfast.page.guard import TOKEN_MIN, Guard, is_loopback, split_address
from holdfast.page.reading import CheckpointReader, CommandWords
from holdfast.store.paths import open_store, viewed_directory

TOKEN_VARIABLE = "HOLDFAST_PAGE_TOKEN"


def dashboard(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="The pipeline; without it, no sink is asked.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="The pipeline's own directory, or its address in an object store.")
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option(
            "--root",
            metavar="DIR_OR_BUCKET",
            help="Show every pipeline below, two levels deep. May be given several times.",
        ),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the page is.")] = "127.0.0.1:8080",
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar=TOKEN_VARIABLE,
            show_envvar=False,
            help="Who logs in with it may tell the run something. Default: HOLDFAST_PAGE_TOKEN.",
        ),
    ] = None,
    until_input_ends: Annotated[
        bool, typer.Option("--until-input-ends", hidden=True, help="End with the standard input.")
    ] = False,
) -> None:
    """Serve a web page of a run, or of the checkpoint that is left of one."""
    with frame.settings(as_json=False) as settings:
        if (checkpoint is None) == (not root):
            raise typer.BadParameter("give --checkpoint DIR, or --root for all pipelines below.")
        if target is not None and root:
            raise typer.BadParameter("TARGET belongs to --checkpoint.")
        guard = guard_of(listen, token or "")
        one = None
        if checkpoint is not None:
            frame.existing_directory(checkpoint)
            one = CheckpointReader(checkpoint, WORDS, settings, None if target is None else load_target(target))
        serve(guard, listen, one, root or (), settings, until_input_ends=until_input_ends)


def guard_of(listen: str, token: str) -> Guard:
    """Return who may use a page; BadParameter if it would be open to others, or the token is short."""
    try:
        host, _ = split_address(listen)
    except ValueError as error:
        raise typer.BadParameter(f"{error}: write 127.0.0.1:8080.") from None
    if token and len(token) < TOKEN_MIN:
        raise typer.BadParameter(f"a token has {TOKEN_MIN} characters or more: openssl rand -hex 16 makes one.")
    if not token and not is_loopback(host):
        raise typer.BadParameter(
            f"a page at {host} can be read by others: give --token, or listen on 127.0.0.1 and come by a tunnel "
            "(ssh -L 8080:127.0.0.1:8080)."
        )
    return Guard(host, token)


def serve(
    guard: Guard,
    listen: str,
    one: CheckpointReader | None,
    roots: Sequence[str],
    settings: Settings,
    *,
    until_input_ends: bool,
) -> None:
    """Serve until the process is told to end, or its standard input ends."""
    try:
        import uvicorn

        from holdfast.page.server import Dashboard
    except ImportError as error:
        raise InvalidPipeline(
            f"the page needs {error.name}, which is not installed.",
            why="it is an extra of Holdfast.",
            do="pip install 'holdfast[page]'.",
        ) from error
    app = Dashboard(guard, one, roots, lambda location: CheckpointReader(location, WORDS, settings)).app()
    host, port = split_address(listen)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host,
            port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
    )
    if until_input_ends:
        threading.Thread(target=_end_with_input, args=(server,), name="holdfast-page-input", daemon=True).start()
    frame.print_lines([f"the page is at http://{listen if not listen.startswith(':') else f'127.0.0.1{listen}'}/"])
    server.run()


def _end_with_input(server: Any) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    server.should_exit = True


def page_beside(
    address: str, target: str, checkpoint: str, *, extra: Sequence[str] = ()
) -> AbstractContextManager[object]:
    """Return what keeps a page of a run alive, inside of a ``with``; nothing where no address is given."""
    if not address:
        return nullcontext()
    guard_of(address, os.environ.get(TOKEN_VARIABLE, ""))
    named = ["dashboard", target, "--checkpoint", checkpoint, "--listen", address, "--until-input-ends", *extra]
    return PageBeside(named)


# --- the words of the command line ----------------------------------------------------------------------------------


def _letters(checkpoint: str) -> list[dict[str, Any]]:
    return letters_in(places_of(checkpoint))


def _replay(checkpoint: str, names: Sequence[str], shard: int | None) -> list[str]:
    return replay_in(places_of(checkpoint, shard), names)


def _checkpoint_names(checkpoint: str) -> Sequence[Mapping[str, Any]]:
    return listed_of_all(checkpoint) if in_shards(checkpoint) else listed(frame.existing_store(checkpoint))


def _rewind(graph: Graph, checkpoint: str, to: str, settings: Settings) -> Iterator[str]:
    from holdfast.starts.rewind import Rewinding

    if in_shards(checkpoint):
        yield from rewind_preview(targets_of(graph, checkpoint), settings, to)
        return
    directory = viewed_directory(checkpoint)
    frame.check_has_run(checkpoint, graph.name)
    frame.check_has_spark(directory, "A rewind")
    planned = Rewinding(graph, open_store(str(directory)), directory, settings).plan(to)
    yield from words.open_lines(frame.inspected(checkpoint, None))
    yield from words.rewind_lines(graph.name, planned)


WORDS = CommandWords(
    inspect=frame.inspected,
    findings=words.findings,
    letters=_letters,
    replay=_replay,
    named=_checkpoint_names,
    rewind=_rewind,
)
