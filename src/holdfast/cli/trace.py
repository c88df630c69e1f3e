"""``holdfast trace``: where rows of a sink came from."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import frame
from holdfast.cli.frame import AsJson, Target
from holdfast.cli.target import load_target
from holdfast.status import as_json as as_json_value


def trace_(
    target: Target,
    row_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of the row, as hf.row_id made it.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="A condition that selects rows of the sink, in the SQL of its system."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="With --where: show at most this many rows.", min=1)] = 10,
    sink: Annotated[
        str | None, typer.Option(metavar="NAME", help="The sink that has the row. Default: all sinks.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Also show the epoch. Not needed where a sink keeps a ledger.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where a row of a sink came from: file and row, operators, epoch.  Asks the sinks; changes nothing."""
    with frame.settings(as_json):
        from holdfast.observe.trace import ids_where, lines, trace
        from holdfast.observe.traced_runs import traced_shards

        if (row_id is None) == (where is None):
            raise typer.BadParameter("give --id or --where.")

        pipeline = load_target(target)
        directory = None if checkpoint is None else frame.existing_directory(checkpoint)
        ids = [row_id] if row_id is not None else ids_where(pipeline, where or "", sink, limit=limit)
        whole, shards = traced_shards(pipeline, directory)
        found = [trace(whole, each, sink=sink, checkpoint=directory, shards=shards) for each in ids]
        values = [as_json_value(each) for each in found]
        said = [line for each in found for line in ("", f"id         {each.id}", *lines(each))][1 if ids else 0 :]
        frame.answer(values[0] if where is None else values, said if where is not None else lines(found[0]), as_json)
