"""Quantities with their unit."""

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.types.units import duration_us, size_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1us", 1),
        ("100 ms", 100_000),
        ("1 s", 1_000_000),
        ("2 sec", 2_000_000),
        ("1.5 seconds", 1_500_000),
        ("3 MIN", 180_000_000),
        ("2 hours", 7_200_000_000),
        ("1 day", 86_400_000_000),
        (" 0 s ", 0),
    ],
)
def test_a_duration_is_a_number_with_a_unit(text, expected):
    assert duration_us(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0 B", 0), ("16 MB", 16_000_000), ("4KiB", 4096), ("1.5 gb", 1_500_000_000), ("1 TiB", 2**40)],
)
def test_a_size_is_a_number_with_a_unit(text, expected):
    assert size_bytes(text) == expected


@pytest.mark.parametrize("wrong", ["", "5", "s", "-1 s", "1 fortnight", "1 s 2", "1e3 s", None, 5])
def test_anything_else_is_refused_with_the_right_way(wrong):
    with pytest.raises(InvalidPipeline) as caught:
        duration_us(wrong, argument="commit_every")
    assert f"commit_every={wrong!r}" in caught.value.what
    assert 'commit_every="100 ms"' in caught.value.do


@pytest.mark.parametrize("wrong", ["1 bs", "1 mbs", "16", "16 Mega"])
def test_a_size_has_no_plural(wrong):
    with pytest.raises(InvalidPipeline, match="known units are b, kb, mb"):
        size_bytes(wrong, argument="carry_max")
