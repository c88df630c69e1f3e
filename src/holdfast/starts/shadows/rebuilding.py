"""``holdfast reconcile --rebuild``: a sink that was emptied, replaced, or restored from an old copy is filled again.

What it lacks is published in it as the last epoch that Spark calls finished: rows and ledger in one step, staged as any
large epoch.  Dead before that, nothing has changed but rows that are swept; after it, the sink is level with the others
and the next start continues.  An ordinary start does the same by a replay where a sink lags; it refuses one that holds
nothing, because that may be another sink by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.checkpoint.directory_header import newest_directory
from holdfast.checkpoint.explained import Explanations
from holdfast.commit.coordinator import Resumption
from holdfast.errors import InvalidPipeline
from holdfast.ports import EpochRecord, Explanation, Held, Publication, Sink, Staged, Task
from holdfast.positions import Positions
from holdfast.reconcile.comparison import ContentComparison
from holdfast.reconcile.report import Reconciled, left_out, without_refused
from holdfast.reconcile.united import view_of
from holdfast.shards.naming import sources_place
from holdfast.starts.behind import published
from holdfast.starts.in_doubt import coordinator_alone
from holdfast.starts.shadows.reconciling import Reconciling
from holdfast.starts.shadows.shadow import Shadow
from holdfast.store.paths import open_store


@dataclass(frozen=True)
class Rebuilding:
    """A sink that has lost rows together with what its ledger said of them.

    Parameters
    ----------
    reconciling : Reconciling
        The sink, and what it should hold.
    """

    reconciling: Reconciling

    def do(self) -> Reconciled:
        """Take the pipeline over and fill the sink.

        Returns
        -------
        Reconciled
            What it lacked.  Rows that it has too many are counted, and left to a repair.

        Raises
        ------
        InvalidPipeline
            If the checkpoint does not know how far the pipeline was, or what the sink should hold cannot be computed.
        Fenced
            If another run takes the pipeline over meanwhile.
        """
        asked = self.reconciling
        epoch, ends = self._published()
        shadow = asked.shadow_up_to(self._told(), ends)
        store = open_store(str(asked.checkpoint))
        with coordinator_alone(asked.pipeline, store, asked.settings) as (coordinator, sinks):
            resumption = coordinator.open(on_behind=_accept, on_expired=_accept)
            now, ends = self._published()  # a run may have gone on until it was fenced
            if now != epoch:
                shadow = asked.shadow_up_to(self._told(), ends)
            found = self._filled(sinks[asked.sink.name], resumption, shadow, now, ends)
            coordinator.check_fenced()
        return found

    # --- inside -----------------------------------------------------------------------------------------------------

    def _filled(self, sink: Sink, resumption: Resumption, shadow: Shadow, epoch: int, ends: Positions) -> Reconciled:
        asked, name = self.reconciling, self.reconciling.sink.name
        held = resumption.held[name]
        if held.epoch >= epoch:
            raise InvalidPipeline(
                f"sink {name!r} need not be rebuilt: its ledger says that it holds epoch {held.epoch}.",
                why=f"epoch {epoch} is the last one that is published.",
                do="compare its rows: holdfast reconcile without --rebuild, then with --repair.",
                pipeline=asked.pipeline.name,
                participant=name,
            )
        asked.tell("writing what the sink lacks")
        writer = sink.writer_factory()(Task(asked.pipeline.name, resumption.generation, epoch, 0, 0))
        with view_of(sink, asked.pipeline.name) as (actual, _), shadow.content(name) as expected:
            compared = ContentComparison(expected, actual)
            missing = extra = fetched = 0
            try:
                refused = asked.refused()
                for each in compared.differences():
                    lacking = without_refused(each.missing, refused, compared)
                    missing, extra = missing + lacking.num_rows, extra + each.extra.num_rows
                    fetched += each.fetched_count
                    for batch in self._as_given(lacking, shadow.schema(name)).to_batches():
                        writer.write(batch)
                staged = writer.stage()
            except BaseException:
                writer.abort()
                raise
            found = Reconciled(
                name,
                epoch,
                ends,
                *compared.row_counts,
                missing,
                extra,
                0,
                0,
                fetched,
                (),
                left_out(compared),
                asked.expected_from,
            )
        sink.publish([self._publication(resumption.generation, epoch, ends, staged)], held)
        return replace(found, repaired_count=missing, duration_s=asked.duration_s)

    def _publication(self, generation: int, epoch: int, ends: Positions, staged: Staged) -> Publication:
        asked = self.reconciling
        record = EpochRecord(asked.pipeline.name, epoch, generation, ends, explanations=self._told())
        return Publication(record, (staged,) if staged.row_count else ())

    def _as_given(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return rows as the pipeline gives them: a column that deletes is not stored, and none of these is deleted."""
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.schema.names
            else pa.array([False] * rows.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def _told(self) -> tuple[Explanation, ...]:
        """Return what positions mean, as the checkpoint knows it."""
        asked = self.reconciling
        kept: Mapping[str, Mapping[str, int]] = {asked.sink.name: {}}
        place = sources_place(asked.checkpoint, asked.pipeline.name)
        return Explanations.of(asked.pipeline.sources, place, kept).take([asked.sink.name])

    def _published(self) -> tuple[int, Positions]:
        asked = self.reconciling
        store = open_store(str(asked.checkpoint))
        number = newest_directory(store) if asked.checkpoint.is_dir() else 0
        epoch, ends = published(asked.checkpoint / "spark" / str(number)) if number else (0, {})
        if not epoch:
            raise InvalidPipeline(
                f"sink {asked.sink.name!r} of pipeline {asked.pipeline.name!r} cannot be rebuilt.",
                why="the checkpoint does not say up to where the pipeline has published.",
                do="start the pipeline with an empty sink and without this checkpoint: it begins at the beginning.",
                pipeline=asked.pipeline.name,
                participant=asked.sink.name,
            )
        return epoch, ends


def _accept(lacking: Collection[object], held: Mapping[str, Held]) -> None:
    """That a sink has lost something is why it is rebuilt."""
    del lacking, held
