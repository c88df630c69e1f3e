"""What a start does with a checkpoint, once its sinks have answered: it looks, decides and performs."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.ports import Held
from holdfast.resume.directory_header import DirectoryHeader
from holdfast.spark.resume.beginning import Beginning
from holdfast.spark.resume.found import look
from holdfast.spark.resume.perform import perform


def begun(beginning: Beginning, held: Mapping[str, Held], last_epoch: int = 0) -> DirectoryHeader:
    """Return the header of Spark's directory, made now if that is new."""
    return perform(beginning, look(beginning, held), last_epoch)
