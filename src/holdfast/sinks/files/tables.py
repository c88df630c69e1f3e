"""Files of several formats as one table, with the columns that their directories say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table_of(paths: Sequence[str], base: str, file_system: Any = None) -> Any:
    """Return the dataset of Arrow that some files are.

    Parameters
    ----------
    paths : sequence of str
        At least one; of Parquet files and files of JSON lines, staged ones too.
    base : str
        The directory below which columns become directories.
    file_system : pyarrow.fs.FileSystem, optional
        Where they are; None: the local one.
    """
    from pyarrow import dataset as pa_dataset  # loads pandas: a second, for commands that read no rows

    kinds = {each.removesuffix(".staged").rpartition(".")[2] for each in paths}
    parts = [
        pa_dataset.dataset(
            [each for each in paths if each.removesuffix(".staged").endswith(f".{kind}")],
            format=kind,
            filesystem=file_system,
            partitioning="hive",
            partition_base_dir=base,
        )
        for kind in sorted(kinds)
    ]
    return parts[0] if len(parts) == 1 else pa_dataset.dataset(parts)
