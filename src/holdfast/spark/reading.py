"""What a source needs in every process that plans or reads it: it travels as an option of Spark's."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.ports import Source, SourceSpec
from holdfast.spark import private

if TYPE_CHECKING:  # every source's planning process starts with these imports
    from holdfast.plan.levels.packing import Packing


@dataclass(frozen=True)
class Reading:
    """What a source needs in every process that plans or reads it.  Picklable; travels as an option.

    Parameters
    ----------
    spec : SourceSpec
        The declaration.
    name, workspace : str
        The node's name and its directory below the checkpoint.
    parallelism : int
        Tasks that can run at a time.
    prefetch_bytes : int
        Largest epoch that the planning process reads itself; 0 switches it off.
    stop_file : str
        Once this file exists the source returns no new positions: the run ends at an epoch's boundary.
    has_rows : bool
        Whether rows go through Spark; otherwise it only plans with the positions, and an Arrow program reads.
    packing : Packing, optional
        How rows become chunks before they leave the reading worker; None: they leave as rows.
    origin_file : str
        The record of where this Spark checkpoint began (:mod:`holdfast.checkpoint.directory_header`).
    end_mark : str
        Where to leave a mark when the source has ended (:mod:`holdfast.spark.controls`); empty: not needed.
    floor_file : str
        The positions from which rows may still be replayed (:mod:`holdfast.checkpoint.replay_floor`); empty: from the
        last epoch on, or as far as named checkpoints need them.
    named_floor_file, pipeline : str
        The positions that named checkpoints need, and those of which pipeline count; empty: none.
    notes_silence : bool
        Whether an operator has an idle rule: then it is logged when this source had more rows than epochs took.
    with_bounds : bool
        Whether bound rows are among the rows, with their mark, for Spark's plan to distinguish.
    held_file : str
        The positions that sinks with a pace of their own hold (:mod:`holdfast.commit.paced`); empty: there are no
        such sinks.
    passed_mark : str
        Where to leave a mark when nothing below the time follows at which the run ends; empty: it does not.
    targets_file : str
        The positions at which epochs end, of a run that follows another one (:mod:`holdfast.checkpoint.targets`): it
        reads no further, and the source's rows are not its to let go.  Empty: it goes as far as there are rows.
    is_backfill : bool
        Whether it is a range of the past, read beside the pipeline: its rows are not its to let go, and where nothing
        of it is left an epoch without rows reports the end of the source, once and for all (design/0056).
    freezes : bool
        Whether the source itself fixes how far it goes, when it is first asked: Spark does not tell it to.
    """

    spec: SourceSpec
    name: str
    workspace: str
    parallelism: int
    prefetch_bytes: int
    stop_file: str
    origin_file: str
    has_rows: bool = True
    packing: Packing | None = None
    end_mark: str = ""
    floor_file: str = ""
    named_floor_file: str = ""
    pipeline: str = ""
    notes_silence: bool = False
    with_bounds: bool = False
    held_file: str = ""
    passed_mark: str = ""
    targets_file: str = ""
    is_backfill: bool = False
    freezes: bool = False

    def open(self) -> Source:
        """Open the source in this process."""
        return self.spec.open(self.name, self.workspace)

    def to_option(self) -> str:
        """Return this value as a text that an option can hold."""
        return base64.b64encode(private.pickled(self)).decode()

    @staticmethod
    def from_option(text: str) -> Reading:
        """Return the value that :meth:`to_option` wrote."""
        reading = private.unpickled(base64.b64decode(text))
        assert isinstance(reading, Reading)
        return reading
