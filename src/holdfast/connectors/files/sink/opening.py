"""Opens a directory of files sinks, wherever it is, outside of a pipeline."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.connectors.files.sink.dataset import FilesDataset
from holdfast.store import durable

if TYPE_CHECKING:
    from holdfast.connectors.files.objects.dataset import ObjectFilesDataset


def open(path: str | os.PathLike[str]) -> FilesDataset | ObjectFilesDataset:
    """Return what reads a directory of ``hf.write.files`` outside of a pipeline.

    Ordinary readers see the same files.  For some milliseconds, and after a crash until the next start, they may find a
    part of an epoch, or a joined file beside those it replaces; this one does not.

    Parameters
    ----------
    path : str or path
        The directory; or the address of one in S3, ``s3://bucket/path``.

    Examples
    --------
    ::

        rows = hf.files.open("out/flights").to_arrow()
        duckdb.read_parquet(hf.files.open("out/flights").paths(), hive_partitioning=True)
    """
    if os.fspath(path).startswith("s3://"):
        from holdfast.connectors.files.objects.dataset import ObjectFilesDataset  # not above: disks need none of it

        return ObjectFilesDataset(os.fspath(path))
    return FilesDataset(durable.local_directory(path, "files.open"))
