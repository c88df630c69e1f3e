"""State of values that vary is logged while the pipeline is built (design/0034)."""

from __future__ import annotations

import logging

import pytest

import holdfast as hf


def built(caplog: pytest.LogCaptureFixture, rows: hf.Stream) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="holdfast.graph"):
        hf.Pipeline("p", rows | hf.write.memory("varying"))
    return [record.getMessage() for record in caplog.records if "varies" in record.getMessage()]


def test_a_function_that_varies_is_named_where_state_is_built_of_it_and_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = hf.read.rows([[{"k": "a", "v": 1}]], schema="k STRING, v BIGINT", name="given")
    counts = hf.accumulate(by="k", n=hf.count(), name="counts")
    (message,) = built(caplog, given | hf.sql("select *, uuid() as u from input", name="named") | counts)
    assert "uuid() of sql 'named'" in message
    assert "accumulate 'counts'" in message
    assert built(caplog, given | counts | hf.select("*", "rand() as r")) == []
    assert built(caplog, given | hf.select("k", "upper(k) as u") | counts) == []
