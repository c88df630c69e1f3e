"""What version 09f82eec wrote of an epoch whose batch time counts, byte for byte: it is read without that time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.commit import records
from holdfast.connectors.byte_stream import manifest
from holdfast.connectors.files.sink import log
from holdfast.connectors.postgres.ledger import Begun, RowBefore
from holdfast.connectors.segments import entries, holdings

DECISION = (
    b"holdfast ledger 1 decision 7c9bc106823f2da626e3b216bee3ed5bdd296321783f4469870570cc0ba29612 204\n"
    b'{"record":{"epoch":7,"generation":3,"pipeline":"p","positions":{"s":{"log":2}},"pts":5,'
    b'"step_time":[7,1700000000000000]},"sinks":{"out":[{"name":"p/3/7/0/0","reference":{"directory":"d"},'
    b'"row_count":1}]}}'
)
FILES = (
    b'{"format": 1, "entry": {"number": 4, "generation": 3, "epoch": 7, "after_epoch": 6, '
    b'"positions": {"s": {"log": 2}}, "pts": 5, "renames": [], "removals": [], "back_to": null, '
    b'"step_time": [7, 1700000000000000]}, '
    b'"sha256": "056efa720be230ad0f7486d37f8484028c10449d3664295d46f1e25457f06570"}\n'
)
STREAMS = (
    b'{"format": 1, "number": 4, "generation": 3, "epoch": 7, "positions": {"s": {"log": 2}}, "pts": 5, '
    b'"back_to": null, "times": "time", "message_count": 0, "streams": {}, "removals": [], '
    b'"step_time": [7, 1700000000000000]}\n'
    b"265301aa800fbd62ef63454faf853ef1b99e4cf5d7a65d3b2413774ae2da2e29\n"
)
SEGMENTS = (
    b'{"format":1,"sha256":"041aaedb96e534bfc20aba61f48fe18d358e5edf20e458f1d2d58b8c255645b1",'
    b'"body":{"epoch":7,"generation":3,"number":1,"positions":{"s":{"log":2}},"pts":5,'
    b'"step_time":[7,1700000000000000]}}\n'
)
BASE = (
    b'{"last": {"number": 1, "generation": 3, "epoch": 7, "positions": {"s": {"log": 2}}, "pts": 5, '
    b'"step_time": [7, 1700000000000000]}, "files": [], "growing": {}, "sealed_through": {}, "starts": [], '
    b'"chunks": [], "recent": [], "removed": [], "schema": "", "sealed_bytes": 0, "refill": null, "changes": [], '
    b'"dropped_count": 0}'
)
READ: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "a decision": (DECISION, lambda data: records.decode(data, "ledger/7").record),
    "an entry of files": (FILES, lambda data: log._decode(data, 4)),
    "an entry of a byte stream": (STREAMS, lambda data: manifest.decode_entry(data, 4)),
    "an entry of segments": (SEGMENTS, lambda data: entries.decode_entry(data, 1)),
    "a base of segments": (BASE, lambda data: holdings.from_body(json.loads(data)).last),
}


@pytest.mark.parametrize(("data", "read"), READ.values(), ids=READ)
def test_an_epoch_whose_batch_time_an_earlier_version_kept_is_read(data: bytes, read: Callable[[bytes], Any]) -> None:
    found = read(data)
    assert (found.epoch, found.generation, found.positions, found.pts) == (7, 3, {"s": {"log": 2}}, 5)
    assert found.recent_ends == ""


@pytest.mark.parametrize("time", ["null", "[7, 1700000000000000]"])
def test_a_decision_over_prepared_transactions_of_an_earlier_version_can_be_taken_back(time: str) -> None:
    begun = Begun.parsed('{"first": 7, "gids": {"a": "b"}, "before": [6, "{}", 4, ' + time + "]}")
    assert begun == Begun(7, {"a": "b"}, RowBefore(6, "{}", 4))
