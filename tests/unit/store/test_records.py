"""Records: JSON values that are what their dataclass says, or an error that says where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.errors import Corrupt
from holdfast.store import records, sealed
from holdfast.store.records import Base64


@dataclass(frozen=True)
class Kept:
    name: str
    at: tuple[int, str]
    of: Mapping[str, Mapping[str, int | str]]
    data: Base64 = b""
    more: int | None = None


KEPT = Kept("a", (1, "b"), {"in": {"log": 3, "text": "7"}}, b"\xff\x00", 5)
VALUE = {"name": "a", "at": [1, "b"], "of": {"in": {"log": 3, "text": "7"}}, "data": "/wA=", "more": 5}


def load(data: bytes | None) -> Kept:
    return records.load(Kept, data, key="kept.json", says="it says what is kept", do="restore it.")


def test_a_record_comes_back_as_it_was() -> None:
    assert records.plain(KEPT) == VALUE
    assert records.read(Kept, VALUE) == KEPT
    assert load(sealed.dump(VALUE)) == KEPT


def test_what_is_missing_has_its_default_and_what_is_unknown_is_left_out() -> None:
    assert records.read(Kept, {"name": "a", "at": [1, "b"], "of": {}, "later": 1}) == Kept("a", (1, "b"), {})


@pytest.mark.parametrize(
    ("changed", "place"),
    [({"name": 7}, "name"), ({"at": [1]}, "at.1"), ({"of": {"in": 7}}, "of.in"), ({"data": 7}, "data")],
    ids=str,
)
def test_what_is_no_record_is_refused_with_the_place(changed: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match=rf"^{place}: "):
        records.read(Kept, {**VALUE, **changed})


@pytest.mark.parametrize("data", [None, b"", b"[]", b"7", b"{}", b'{"name": "a"', sealed.dump({"name": "a"})])
def test_what_cannot_be_read_is_corrupt_and_named(data: bytes | None) -> None:
    with pytest.raises(Corrupt, match=r"'kept\.json' in the checkpoint cannot be read") as refused:
        load(data)
    assert refused.value.why.endswith("; it says what is kept.")
    assert (refused.value.do, refused.value.participant) == ("restore it.", "kept.json")
