"""Patterns rewritten for RE2: which group is named, and what is none of the subset."""

from __future__ import annotations

import pytest

from holdfast.expressions.regex import for_re2

_DOUBTS = (
    "a$ (a)* (a)? (?:a)+ (?:a*)? a*+ a** (?=a) (?i)a [ [] [b-a] [a&&b] [[a]] (a a) *a \\d a{2} é ^* [a-Z] [-a] [a^]"
)


@pytest.mark.parametrize(
    ("pattern", "group", "expected"),
    [
        ("a", 0, "(?P<chosen>a)"),
        ("a|b", None, "a|b"),
        ("(a)(b)", 2, "(?:a)(?P<chosen>b)"),
        ("((a)b)", 1, "(?P<chosen>(?:a)b)"),
        ("(&|^)channel_id=([^&]*)", 2, "(?:&|^)channel_id=(?P<chosen>[^&]*)"),
        ("(?:ab)?c+?", 0, "(?P<chosen>(?:ab)?c+?)"),
        ("[a-z0-9.-]+", None, "[a-z0-9.-]+"),
        ("a.", None, r"a[^\n\r\x{85}\x{2028}\x{2029}]"),
    ],
)
def test_a_pattern_in_the_subset_is_rewritten(pattern: str, group: int | None, expected: str) -> None:
    assert for_re2(pattern, group) == expected


@pytest.mark.parametrize(
    "pattern",
    _DOUBTS.split(" "),
)
def test_every_doubt_is_none(pattern: str) -> None:
    assert for_re2(pattern, None) is None


def test_a_group_that_is_not_there_is_none() -> None:
    assert for_re2("(a)", 2) is None
