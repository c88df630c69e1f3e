"""CSV says what an independent reader says: Python's ``csv``, row by row, and Python's own numbers (design/0004, 5).

What is odd (line ends in quotes, doubled quotes, byte order marks within the text) stands on every edge of the
blocks in which the text is parsed, for the blocks grow byte by byte.
"""

from __future__ import annotations

import csv
import io
import math
import random
import re
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.formats import csv_lines
from holdfast.connectors.formats.blocks import Unreadable
from holdfast.connectors.formats.csv_lines import CsvParser
from holdfast.types.schema import to_arrow
from tests.everyday import examples
from tests.unit.sources.reading import good, rejected, rows_of

pytestmark = pytest.mark.slow

REJECT = {"format": "csv", "header": False, "on_bad_row": "reject"}
ODD = [
    "",
    "\r\n",
    "\n",
    "\r",
    "a\r\n",
    "\r\nb",
    "a\r\n\r\nb",
    '""',
    '\r\n""\r\n',
    ",\r\n,",
    "\ufeff",
    "é\r\né",
    "x" * 30,
]
LINE_ENDS = ["\n", "\r\n"]


def read_by_python(text: str) -> list[list[str]]:
    """Return the rows as Python's reader gives them; it has no empty rows."""
    return [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]


def assert_same_at_every_edge(text: str, patch: pytest.MonkeyPatch, sizes: range) -> None:
    """Assert that Holdfast gives the same rows, whatever the size of the parser's blocks is."""
    wanted = read_by_python(text)
    names = [f"c{at}" for at in range(len(wanted[0]))]
    parser = CsvParser(to_arrow(", ".join(f"{name} STRING" for name in names)), tuple(names), ",")
    for size in sizes:
        patch.setattr(csv_lines, "_ARROW_BLOCK", size)
        rows = [row for batch in parser.parse(text.encode()) for row in batch.to_pylist()]
        assert [[value or "" for value in row.values()] for row in rows] == wanted, f"blocks of {size} bytes"


@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_a_line_end_in_quotes_stays_as_it_is_on_every_edge_of_a_block(
    line_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CR as the last byte of a parser's block took the LF after it away (apache/arrow#51368)."""
    text = "".join(f'{at},"a\r\nb{"x" * at}"{line_end}' for at in range(6))
    assert_same_at_every_edge(text, monkeypatch, range(8, 48))


@pytest.mark.parametrize("seed", range(examples(20)))
def test_whatever_stands_in_quotes_comes_out_on_every_edge_of_a_block(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    line_end = chance.choice(LINE_ENDS)
    lines = []
    for at in range(chance.randrange(2, 10)):
        fields = ["".join(chance.choices(ODD, k=chance.randrange(4))) for _ in range(2)]
        shown = [f'"{one}"' if set(one) & set('\r\n",') else one.replace("\ufeff", "") for one in fields]
        lines.append(",".join([*shown, str(at)]) + line_end * chance.choice([1, 1, 1, 2]))
    assert_same_at_every_edge("".join(lines), monkeypatch, range(1, 120))


def test_a_line_end_in_quotes_stays_as_it_is_where_blocks_of_the_real_size_end(tmp_path: Path) -> None:
    edge = csv_lines._ARROW_BLOCK
    for shift in range(-2, 3):
        fill = "".join(f"{at:07d},{'x' * 991}\n" for at in range(edge // 1000 - 1))
        field = "y" * (edge - len(fill) - len('1,"') - 1 + shift) + "\r\nz"
        text = f'{fill}1,"{field}"\n2,w\n'
        (directory := tmp_path / str(shift)).mkdir()
        rows = rows_of(directory, text, "a INT, b STRING", format="csv", header=False)
        assert [row["b"] for row in rows[-2:]] == [field, "w"]


def test_a_byte_order_mark_within_a_file_is_a_character_of_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow skips one at the begin of whatever it is given: a value depended on the place of its block."""
    assert_same_at_every_edge("\ufeffa,b\n" * 4, monkeypatch, range(1, 40))


SPELLINGS = [
    *(
        "0",
        "-0",
        "7",
        "-7",
        "+7",
        "007",
        " 7",
        "7\t",
        " 7 ",
        "",
        "7.",
        ".5",
        "-.5",
        "7.0",
        "+7.5",
        "1e2",
        "1E+2",
        "1e-2",
    ),
    *("0x10", "0X1F", "0xFF", "-0x1", "0xFFFF", "0xFFFFFFFF", "0xFFFFFFFFFFFFFFFF", "0x1p3", "0b1", "0o7", "1_000"),
    *(
        "1,000",
        "1.000,5",
        "1 000",
        "1\u00a0000",
        "1'000",
        "٣",
        "½",
        "7a",
        "1f",
        "1d",
        "1L",
        "--1",
        "1-",
        "-",
        "+",
        ".",
        "e",
    ),
    *(
        "inf",
        "-inf",
        "+inf",
        "Inf",
        "INF",
        "Infinity",
        "-infinity",
        "nan",
        "NaN",
        "-nan",
        "null",
        "NULL",
        "None",
        "\\N",
    ),
    *("1e38", "3.4028235e38", "3.5e38", "-1e39", "1e308", "1.7976931348623157e308", "1.7976931348623159e308", "1e309"),
    *("-1e999", "1e-45", "1e-46", "1e-324", "5e-324", "1e-999", "0e999", "1" + "0" * 400, "0." + "0" * 400 + "1"),
    *(
        "123.45",
        "999.99",
        "1000",
        "999.995",
        "1.005",
        "1.50",
        "123456789.12",
        "true",
        "True",
        "TRUE",
        "tRUE",
        "yes",
        "T",
    ),
    *("2024-02-29", "2023-02-29", "0001-01-01", "9999-12-31", "10000-01-01", "0000-01-01", "2024-1-1", "20240101"),
]
EDGES = [2**bits + more for bits in (7, 8, 15, 16, 31, 32, 63, 64) for more in (-2, -1, 0, 1)]
SPELLINGS += [f"{sign}{edge}" for edge in EDGES for sign in ("", "-")]
BAD = object()
_WHOLE = re.compile(r"-?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INFINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)


def integer_of(bits: int) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        text = text.strip(" \t")
        fits = _WHOLE.fullmatch(text) and -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1)
        return int(text) if fits else BAD

    return read


def double_of(text: str) -> Any:
    text = text.strip(" \t")
    if _INFINITE.fullmatch(text):
        return float(text)
    return float(text) if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else BAD


def float_of(text: str) -> Any:
    value = double_of(text)
    if value is BAD or not math.isfinite(value):
        return value
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return BAD


def decimal_of(precision: int, scale: int) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        text = text.strip(" \t")
        if not _NUMBER.fullmatch(text):
            return BAD
        value = Decimal(text)
        if abs(value) >= 10 ** (precision - scale) or (value and value.normalize().as_tuple().exponent < -scale):
            return BAD
        return value

    return read


def boolean_of(text: str) -> Any:
    return {"1": True, "true": True, "0": False, "false": False}.get(text if text.isdigit() else text.lower(), BAD)


def date_of(text: str) -> Any:
    try:
        return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else BAD
    except ValueError:
        return BAD


READERS: dict[str, Callable[[str], Any]] = {
    "TINYINT": integer_of(8),
    "SMALLINT": integer_of(16),
    "INT": integer_of(32),
    "BIGINT": integer_of(64),
    "FLOAT": float_of,
    "DOUBLE": double_of,
    "DECIMAL(5,2)": decimal_of(5, 2),
    "DECIMAL(38,18)": decimal_of(38, 18),
    "BOOLEAN": boolean_of,
    "DATE": date_of,
    "STRING": str,
}
ONLY_REFUSED = {"0e999", "1e-999", "tRUE"}
"""What is a bad value here although another reader takes it: that is no other value."""


@pytest.mark.parametrize("declared", READERS)
def test_a_value_is_what_another_reader_says_or_its_record_is_bad(declared: str, tmp_path: Path) -> None:
    """Hexadecimal became another number, and what is too large for a DOUBLE or FLOAT infinity, without a word."""
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_NONNUMERIC).writerows((at, text) for at, text in enumerate(SPELLINGS) if text)
    wanted = {int(at): READERS[declared](text) for at, text in read_by_python(file.getvalue())}
    rows = rows_of(tmp_path, file.getvalue(), f"at INT, v {declared}", **REJECT)
    found = {row["at"]: row["v"] for row in good(rows)}
    assert {at: value for at, value in found.items() if not is_same(value, wanted[at])} == {}
    left = {SPELLINGS[at] for at, value in wanted.items() if value is not BAD and at not in found}
    assert left <= ONLY_REFUSED
    assert len(rejected(rows)) == len(wanted) - len(found)


def is_same(one: Any, other: Any) -> bool:
    return bool(one == other or (isinstance(one, float) and repr(one) == repr(other)))


@pytest.mark.parametrize("declared", ["TINYINT", "BIGINT", "DOUBLE", "FLOAT"])
def test_a_number_that_is_no_value_of_its_column_is_bad_in_each_block_and_alone(
    declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled = "1e999" if declared in ("DOUBLE", "FLOAT") else "0x10"
    parser = CsvParser(to_arrow(f"v {declared}, w STRING"), ("v", "w"), ",")
    monkeypatch.setattr(csv_lines, "_ARROW_BLOCK", 30)
    parser.parse(b"1,0x10\n" * 20)
    for at in (0, 7, 19):
        lines = [b"1,0x10\n"] * 20
        lines[at] = f"{spelled},w\n".encode()
        with pytest.raises(Unreadable, match=rf"column 'v' is declared .* \(invalid value '{spelled}'\)"):
            parser.parse(b"".join(lines))
