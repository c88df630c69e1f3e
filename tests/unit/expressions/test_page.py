"""What the page of ``select`` says that Arrow evaluates, it does."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.expressions.compile import columnar

PAGE = Path(__file__).parents[3] / "docs/operators/select.md"
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("j", pa.int64()),
        ("d", pa.float64()),
        ("x", pa.string()),
        ("y", pa.string()),
        ("o", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("at2", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("s", pa.struct([("i", pa.int32())])),
    ]
)


def listed() -> list[str]:
    table = PAGE.read_text().partition("## What Arrow evaluates")[2].partition("|---|---|")[2]
    return [text for text in re.findall(r"`([^`]+)`", table.partition("\n\n")[0]) if text != "1.5"]


@pytest.mark.parametrize("text", listed())
def test_what_is_listed_is_evaluated_in_arrow(text: str) -> None:
    assert columnar(text, SCHEMA) is not None


def test_the_list_is_found() -> None:
    assert len(listed()) > 30
