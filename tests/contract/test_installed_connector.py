"""A connector may live in a distribution of its own: pip installs it, and it keeps the promises of all sinks.

``tests/connectors/arrow_file`` is one; ``docs/connectors.md`` says how it is made.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.ports import Sink
from tests.contract.sink_contract import PIPELINE, SCHEMA, HandleSinkContract, Row

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[1] / "connectors" / "arrow_file"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install it where nobody else looks; what is installed is built from the source."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(SOURCE)], check=True, capture_output=True)
    sys.path.insert(0, str(target))
    importlib.invalidate_caches()
    yield target
    sys.path.remove(str(target))
    sys.modules.pop("holdfast_arrow_file", None)
    for module in (hf.read, hf.write):
        vars(module).pop("arrow_file", None)


@dataclass(frozen=True)
class ArrowFileTarget:
    path: Path

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        node: Any = hf.write.arrow_file(str(self.path), name=name)  # type: ignore[attr-defined]
        sink: Sink = node.spec.connect(name, pipeline, schema)
        return sink

    def rows(self) -> list[Row]:
        if not self.path.exists():
            return []
        return [(row["id"], row["word"]) for row in pa.ipc.open_file(str(self.path)).read_all().to_pylist()]

    def leftovers(self) -> list[str]:
        return []

    def refuse(self, word: str) -> bool:
        return False


@pytest.fixture
def target(tmp_path: Path, installed: Path) -> ArrowFileTarget:
    return ArrowFileTarget(tmp_path / "out" / "rows.arrow")


TestArrowFileContract = HandleSinkContract


def test_its_functions_are_there_under_the_name_of_its_entry_point(installed: Path, tmp_path: Path) -> None:
    assert "arrow_file" in dir(hf.read)
    assert "arrow_file" in dir(hf.write)
    write: Any = hf.write
    assert "arrow_file" not in write.__all__
    rows = hf.read.rows([[{"id": 1, "word": "one"}]], schema="id BIGINT, word STRING", name="given")
    pipeline = hf.Pipeline("words", rows | hf.write.arrow_file(str(tmp_path / "rows.arrow"), name="file"))  # type: ignore[attr-defined]
    assert "file: arrow_file, exactly-once" in pipeline.explain()


def test_what_cannot_be_loaded_says_whose_it_is(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vars(hf.read).pop("arrow_file", None)
    monkeypatch.setitem(sys.modules, "holdfast_arrow_file", None)
    with pytest.raises(ImportError, match=r"connector 'arrow_file' cannot be loaded: .*holdfast-arrow-file 0\.1\.0"):
        _ = hf.read.arrow_file  # type: ignore[attr-defined]


def test_a_name_that_nobody_has_lists_what_is_installed_too(installed: Path) -> None:
    write: Any = hf.write
    with pytest.raises(AttributeError, match=r"no attribute 'nothing': it has arrow_file, byte_stream"):
        _ = write.nothing
