"""``hf.shared``: its arguments, where its process is found, and what goes between the two (design/0046)."""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.models import connection, shared, wire
from holdfast.models.computing import ModelLoop
from holdfast.models.place import VARIABLE
from holdfast.models.server import ModelServer
from holdfast.retry import RetryPolicy


class Tagged:
    """Says who answers."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"tag": [f"{self.device} {value}" for value in batch["n"].to_pylist()]})


def one(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setenv(VARIABLE, f"{base}/models")
        yield Path(base, "models")


@contextmanager
def served(model: shared.SharedModel) -> Iterator[ModelLoop]:
    """Serve a model in this process."""
    declared = model._declared
    loop = ModelLoop(declared, declared.load())
    place = declared.place()
    server = ModelServer(place, loop)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield loop
    finally:
        loop.end()
        thread.join()
        server.shutdown()
        place.socket.unlink(missing_ok=True)
        if (made := connection.find(place)) is not None:
            connection.drop(place, made)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"fn": 7}, "fn=7 is not a function"),
        ({"fn": lambda: 1}, "cannot be called with (batch)"),
        ({"fn": Tagged, "setup": one}, "has a class as fn"),
        ({"device": "cuda:0"}, "is given to nobody"),
        ({"setup": lambda device: 1}, "cannot be called with"),
        ({"max_batch": 0}, "max_batch=0 is no number of rows"),
        ({"max_batch": True}, "max_batch=True is no number of rows"),
        ({"max_delay": "5"}, "max_delay"),
        ({"idle": "soon"}, "idle"),
        ({"schema": "n NUMBER"}, "n"),
    ],
)
def test_an_argument_that_is_none_is_refused(arguments: dict[str, Any], what: str):
    given = {"fn": one, "schema": "n BIGINT", **arguments}
    with pytest.raises(hf.InvalidPipeline) as raised:
        hf.shared(given.pop("fn"), given.pop("schema"), **given)
    assert what in str(raised.value)


def test_it_travels_and_is_still_the_same_model():
    model = hf.shared(Tagged, "tag STRING", name="tags", inputs="n BIGINT")
    moved = pickle.loads(pickle.dumps(model))
    assert moved._declared.identity == model._declared.identity
    assert (repr(moved), moved.name, moved.schema.names) == ("hf.shared('tags')", "tags", ["tag"])


def test_a_directory_that_others_can_enter_is_refused(place: Path):
    model = hf.shared(one, "n BIGINT")
    assert model.stats() == hf.shared(one, "n BIGINT").stats() == wire.ModelStats()
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o750)
    with pytest.raises(hf.InvalidPipeline, match="is not private"):
        model.stats()
    place.rmdir()
    Path(f"{place}-of-another").mkdir(mode=0o700)
    place.symlink_to(f"{place}-of-another")
    with pytest.raises(hf.InvalidPipeline, match="is not private"):
        model.stats()


def test_a_directory_whose_path_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/{'x' * 100}")
    with pytest.raises(hf.InvalidPipeline, match="cannot have its socket"):
        hf.shared(one, "n BIGINT").stats()


def test_what_is_no_rows_is_refused_and_no_rows_need_no_process(place: Path):
    model = hf.shared(one, "n BIGINT", inputs="n BIGINT")
    with pytest.raises(hf.InvalidPipeline, match="was called with a list"):
        model([1])
    with pytest.raises(hf.InvalidPipeline, match="do not fit the inputs"):
        model(pa.table({"m": [1]}))
    with pytest.raises(hf.InvalidPipeline, match="do not fit the inputs"):
        model(pa.table({"n": ["x"]}))
    assert model(pa.table({"n": pa.array([], pa.int64())})).schema == model.schema
    assert not list(place.glob("*"))


@pytest.mark.slow
def test_rows_and_values_are_answered_and_an_error_has_no_words_of_the_transport(place: Path):
    model = hf.shared(Tagged, "tag STRING", inputs="n BIGINT", device="cuda:0", max_delay="0 s")
    with served(model):
        more = pa.table({"n": pa.array([1, 2], pa.int32()), "other": ["a", "b"]})
        assert model(more)["tag"].to_pylist() == ["cuda:0 1", "cuda:0 2"]
        assert model(more.to_batches()[0]).num_rows == 2
        assert model.row(n=7) == {"tag": "cuda:0 7"}
        assert model.stats().row_count == 5
        assert model.stats().process_id == os.getpid()
    broken = hf.shared(lambda batch: 1 / 0, "tag STRING", name="broken", max_delay="0 s")
    with served(broken):
        with pytest.raises(hf.InvalidPipeline) as raised:
            broken.row(n=1)
        assert raised.value.what == "Model 'broken' failed: ZeroDivisionError: division by zero"
        assert "Flight" not in str(raised.value)
        assert "gRPC" not in str(raised.value)
        assert broken.stats().failure_count == 1


@pytest.mark.slow
def test_rows_that_need_several_messages_arrive_whole(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "MESSAGE_BYTES", 1000)
    model = hf.shared(one, "n BIGINT, frame BINARY", max_batch=64, max_delay="0 s")
    rows = pa.table({"n": range(150), "frame": [bytes([n]) * 500 for n in range(150)]})
    with served(model):
        assert model(rows).equals(rows)
        assert model.stats().batch_count == 3


@pytest.mark.slow
def test_a_process_that_does_not_answer_in_time_is_an_error_that_names_it(place: Path):
    let_go = threading.Event()
    model = hf.shared(lambda batch: let_go.wait() and batch, "n BIGINT", name="hung", max_delay="0 s", timeout="50 ms")
    with served(model):
        with pytest.raises(hf.Unavailable, match="Model 'hung' has not answered within") as raised:
            model.row(n=1)
        let_go.set()
    assert "Flight" not in str(raised.value)


@pytest.mark.slow
def deep() -> pa.Table:
    """Return a value that Arrow does not send: its lists are nested too deep."""
    value: Any = 1
    for _ in range(70):
        value = [value]
    return pa.table({"n": [value]})


def test_rows_that_cannot_be_sent_are_no_death_of_the_process(place: Path):
    """Neither those of the call, nor those of the answer: repeated they fail again, and the process lives."""
    schema = "n " + "ARRAY<" * 70 + "BIGINT" + ">" * 70
    there, back = hf.shared(one, "n BIGINT", name="there"), hf.shared(lambda batch: deep(), schema, name="back")
    for model, rows in ((there, deep()), (back, pa.table({"n": [1]}))):
        with served(model) as loop:
            with pytest.raises(
                hf.InvalidPipeline, match=f"model '{model.name}', or its answer.*(?s:.)*recursion"
            ) as failed:
                model(rows)
            assert "Detail" not in str(failed.value)
            assert "gRPC" not in str(failed.value)
            assert loop.stats().failure_count == 0
            assert loop.stats().call_count == int(model is back), "once, or not at all"


def test_an_error_of_arrow_in_the_function_is_that_error(place: Path):
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise pa.ArrowInvalid("seven is no number")

    model = hf.shared(fails, "n BIGINT")
    with served(model) as loop, pytest.raises(hf.InvalidPipeline, match="failed: ArrowInvalid: seven is no number"):
        model(pa.table({"n": [1]}))
    assert loop.stats().call_count == 1


def test_a_process_that_dies_each_time_is_given_up(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared, "RETRIES", RetryPolicy(attempts=3, first_s=0.001, seed=1))
    monkeypatch.setattr(shared, "reach", lambda declared, place, end_s: None)  # one that is gone when it is called
    model = hf.shared(one, "n BIGINT", name="mortal")
    with pytest.raises(hf.Unavailable, match="model 'mortal' died 3 times") as raised:
        model.row(n=1)
    assert "gRPC" not in str(raised.value)
