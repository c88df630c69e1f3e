"""``holdfast reconcile`` of a pipeline with shards: a sink is compared with what all of its shards should have written.

What each shard should hold its own shadow computes, of the graph that the layout gives it.  Where rows say which shard
has written them (files, segments), each shard is compared and repaired by itself.  A table is compared at once with
what all of them should hold, in one view with all ledgers, and repaired when all shards are taken over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import cast

from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.errors import Unavailable
from holdfast.ports import Content, Held, Repair, SharedTable, Sink
from holdfast.positions import Positions
from holdfast.reconcile.digests import Wanted
from holdfast.reconcile.report import Reconciled
from holdfast.reconcile.stand_ins import check_comparable, shares_table
from holdfast.reconcile.united import UnitedContent, add_up, view_of
from holdfast.shards.layout import ShardLayout
from holdfast.starts.shadows.rebuilding import Rebuilding
from holdfast.starts.shadows.reconciling import Reconciling, ledger_of
from holdfast.starts.shadows.shadow import Shadow

Compared = tuple[Reconciled, Repair | None, Mapping[str, Held]]


@dataclass(frozen=True)
class ShardsReconciling:
    """A sink of a pipeline with shards, and what it should hold.

    Parameters
    ----------
    graphs : ShardGraphs
        Of the pipeline.
    layout : ShardLayout
        Under which its shards run.
    asked : Reconciling
        How the sink of the whole pipeline would be compared: each shard is compared so, in directories of its own.
    places : sequence of Path
        The checkpoint of each shard; it may be lost.
    """

    graphs: ShardGraphs
    layout: ShardLayout
    asked: Reconciling
    places: Sequence[Path]

    def look(self) -> Reconciled:
        """Compare; change nothing.

        Raises
        ------
        InvalidPipeline
            If the sink cannot be compared, holds nothing of this pipeline, or what it should hold cannot be computed.
        Unavailable
            If segments are between two shards: their number has been changed, and no start has carried that through.
        """
        if not shares_table(self.asked.sink):
            return add_up([part.look() for part in self._parts.values()])
        with self._connection() as (sink, shadows):
            return self._compare(sink, shadows)[0]

    def repair(self) -> Reconciled:
        """Compare, and give the sink what it lacks and take away what it has too many; of a table in one transaction.

        Raises
        ------
        InvalidPipeline, Unavailable
            As :meth:`look`.
        Fenced
            If another run takes a shard over meanwhile.
        """
        if not shares_table(self.asked.sink):
            return add_up([part.repair() for part in self._parts.values()])
        with self._connection() as (asked, shadows):
            found, *_ = self._compare(asked, shadows)  # before the takeover: the shadows are nearly there afterwards
            if found.is_equal:
                return replace(found, repaired_count=0)
        with ExitStack() as closing:
            sinks = [closing.enter_context(part.taken_over(shadows[name])) for name, part in self._parts.items()]
            found, repair, held = self._compare(sinks[0], shadows)
            if repair is None:
                return replace(found, repaired_count=0)
            table, first = cast("SharedTable", sinks[0]), next(iter(self._parts.values()))
            return first.apply(found, lambda: table.repair_of_shards(repair, held))

    def rebuild(self) -> Reconciled:
        """Fill a sink that was emptied, or restored from an old copy: shard by shard, each under its own ledger.

        Raises
        ------
        InvalidPipeline, Fenced
            As :meth:`~holdfast.starts.shadows.rebuilding.Rebuilding.do`.
        """
        return add_up([Rebuilding(part).do() for part in self._all.values()])

    def forget(self) -> None:
        """Remove what was computed."""
        for part in self._all.values():
            part.forget()
        with suppress(OSError):  # what is of other sinks may be in use
            self.asked.shadow_directory.rmdir()
            self.asked.shadow_directory.parent.rmdir()

    # --- inside -----------------------------------------------------------------------------------------------------

    @cached_property
    def _all(self) -> Mapping[str, Reconciling]:
        """How each shard is compared, by its name."""
        found = {}
        for shard in range(self.layout.shard_count):
            graph = self.graphs.of(self.layout, shard)
            sink = next(node for node in graph.sinks if node.name == self.asked.sink.name)
            where = self.asked.shadow_directory / str(shard)
            part = replace(
                self.asked,
                pipeline=graph,
                sink=sink,
                checkpoint=self.places[shard],
                shadow_directory=where,
                together=(),
            )
            found[graph.name] = part
        return found

    @cached_property
    def _parts(self) -> Mapping[str, Reconciling]:
        """Those that hold something; where none does, the first, which says so."""
        check_comparable(self.asked.sink, self.graphs.pipeline.name)
        found = {name: part for name, part in self._all.items() if ledger_of(part.sink, name) is not None}
        for name, part in found.items():
            self._check_is_settled(name, part.ledger().held.positions)
        return found or dict([next(iter(self._all.items()))])

    def _check_is_settled(self, name: str, positions: Positions) -> None:
        """See that a shard holds positions of its own segments only: no other shard's graph computes their rows."""
        shard = [*self._all].index(name)
        for source in self.graphs.divisible_sources.keys() & positions.keys():
            ours = self.graphs.segments_of(self.layout, shard, source)
            known = self.graphs.units(self.layout, source).keys() & positions[source].keys()
            if others := sorted(segment for segment in known if segment not in ours):
                raise Unavailable(
                    f"segment {others[0]!r} of source {source!r} is between two shards: {name!r} holds it, and layout "
                    f"{self.layout.number} gives it to another.",
                    why="the number of shards was changed, and no start has carried that through.",
                    do="start the pipeline: it does so before anything else; then compare again.",
                    pipeline=self.graphs.pipeline.name,
                    participant=source,
                )

    @contextmanager
    def _connection(self) -> Iterator[tuple[Sink, Mapping[str, Shadow]]]:
        """Yield the sink, not opened, and the shadow of each shard where that was a moment ago."""
        shadows = {}
        for name, part in self._parts.items():
            ledger = part.ledger()
            shadows[name] = part.shadow_up_to(ledger.explanations, ledger.held.positions)
        name, part = next(iter(self._parts.items()))
        sink = part.sink.spec.connect(part.sink.name, name, shadows[name].schema(part.sink.name))
        try:
            yield sink, shadows
        finally:
            sink.close()

    def _compare(self, sink: Sink, shadows: Mapping[str, Shadow]) -> Compared:
        name = self.asked.sink.name
        with ExitStack() as views:
            actual, held = views.enter_context(view_of(sink, next(iter(shadows))))
            self._check_known(held)
            for shard, each in held.items():
                self._check_is_settled(shard, each.positions)
                self._parts[shard].follow(shadows[shard], each.positions)
            expected = [views.enter_context(shadows[shard].content(name)) for shard in held]
            refused = [rows for shard in held for rows in self._parts[shard].refused()]

            part = self._parts[next(iter(held))]
            found, repair = part.compare(UnitedContent(expected), actual, partial(self._rows, held), refused)
        return self._report(found, held), repair, held

    @contextmanager
    def _rows(self, held: Mapping[str, Held], wanted: Wanted) -> Iterator[Content]:
        """Compute the rows of some buckets that all shards should hold."""
        with ExitStack() as computing:
            parts = [self._parts[shard].rows_expected(wanted, of.positions) for shard, of in held.items()]
            yield UnitedContent([computing.enter_context(each) for each in parts])

    def _check_known(self, held: Mapping[str, Held]) -> None:
        if unknown := sorted(held.keys() - self._parts.keys()):
            raise Unavailable(
                f"shard {unknown[0]!r} holds rows in sink {self.asked.sink.name!r}, and held none a moment ago, or is "
                f"none of the {self.layout.shard_count} shards of layout {self.layout.number}.",
                why="it has published its first epoch meanwhile; or the checkpoint is not the one of this pipeline.",
                do="compare again; if that does not help, name the checkpoint that the pipeline runs with.",
                pipeline=self.graphs.pipeline.name,
                participant=self.asked.sink.name,
            )

    def _report(self, found: Reconciled, held: Mapping[str, Held]) -> Reconciled:
        """Return what was found, up to where all shards are."""
        both = add_up([replace(found, epoch=of.epoch, positions=of.positions) for of in held.values()])
        return replace(found, epoch=both.epoch, positions=both.positions, shard_count=both.shard_count)
