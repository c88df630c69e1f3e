"""Where the type of an expression is in doubt it is unknown, and never guessed (design/0031, invariant 1)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.expressions.derive import derived

SCHEMA = pa.schema([
    ("m", pa.decimal128(12, 2)), ("day", pa.string()), ("hour", pa.int32()), ("t", pa.timestamp("us", tz="UTC")),
])  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "round(m, -1)", "bround(m, -2)", "m * -(2)", "m % -(3)", "m * 2L", "m * 2S",
        "date_add(day, 1, t)", "datediff(day, t, t)", "date_diff(hour, t, t)",
    ],
)  # fmt: skip
def test_a_type_in_doubt_is_unknown(text: str) -> None:
    """Each of these has another type in Spark than what its parts suggest."""
    assert derived(text, SCHEMA) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [("-2147483648", pa.int32()), ("-2147483649", pa.int64()), ("m * -2", pa.decimal128(14, 2))],
)
def test_a_negative_literal_is_one_literal(text: str, kind: pa.DataType) -> None:
    """The least integer fits its type, and the sign is no digit."""
    one = derived(text, SCHEMA)
    assert one is not None
    assert one.type == kind
