"""The files sink under the real coordinator: every durable write of the protocol is a place to die, twice.

Afterwards every directory equals the reference result, the ledger is clean, and no temporary or staged file is left
(design/0001, sections 3 and 8).  Deaths between the sink's own file operations are in ``test_files_every_write.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as dataset
import pytest

from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.store.local import LocalStore
from holdfast.testing import SCHEMA, Load, Setting, SinkUnderTest, World, crash_loop, real_sink, simulated_sink
from holdfast.testing.simulation.world import PIPELINE

_SHORT = Setting(load=Load(row_count=6))
"""A few epochs: the number of pairs grows with the square."""


def _files(name: str, directory: Path, spec: FilesSinkSpec) -> SinkUnderTest:
    def rows() -> list[tuple[object, ...]]:
        found = dataset.dataset(directory, format=spec.format, schema=SCHEMA, partitioning="hive").to_table()
        return [tuple(row[column] for column in SCHEMA.names) for row in found.to_pylist()]

    def leftovers() -> list[str]:
        own = directory / "_holdfast" / PIPELINE / name
        return [os.fspath(path) for path in [*own.glob("staging/*"), *own.glob("writing/*")]]

    return real_sink(name, lambda: spec.connect(name, PIPELINE, SCHEMA), rows, leftovers)


def _parquet(name: str, directory: Path) -> SinkUnderTest:
    return _files(name, directory, FilesSinkSpec(os.fspath(directory)))


def _json_by_segment(name: str, directory: Path) -> SinkUnderTest:
    return _files(name, directory, FilesSinkSpec(os.fspath(directory), "json", ("segment",), None))


@pytest.mark.slow
def test_one_directory_survives_a_crash_at_every_write_and_during_recovery(new_path: Callable[[], Path]) -> None:
    """The fast path: the log entry of the sink is the decision."""
    crash_loop(lambda: World([_parquet("out", new_path())], setting=_SHORT), second_stride=23)


@pytest.mark.nightly
def test_two_unlike_directories_survive_a_crash_at_every_write_and_during_recovery(
    new_path: Callable[[], Path],
) -> None:
    crash_loop(
        lambda: World([_parquet("left", new_path()), _json_by_segment("right", new_path())], setting=_SHORT),
        second_stride=7,
    )


@pytest.mark.slow
def test_a_directory_beside_another_system_with_the_checkpoint_in_files_too(new_path: Callable[[], Path]) -> None:
    crash_loop(
        lambda: World(
            [simulated_sink("table"), _parquet("out", new_path())],
            store=LocalStore(os.fspath(new_path())),
        ),
        pairs=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(
            Setting(load=Load(task_failure_rate=0.3, carried_share=0.0)), id="stray workers", marks=pytest.mark.nightly
        ),
        pytest.param(Setting(commit_thread=True), id="commit thread", marks=pytest.mark.nightly),
        pytest.param(Setting(commit_every_ticks=6_000), id="grouped epochs"),
    ],
)
def test_stray_workers_the_commit_thread_and_grouping_change_nothing(
    new_path: Callable[[], Path], setting: Setting
) -> None:
    crash_loop(
        lambda: World([_parquet("left", new_path()), _parquet("right", new_path())], seed=7, setting=setting),
        pairs=False,
    )
