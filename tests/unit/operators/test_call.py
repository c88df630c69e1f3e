"""``call``: who is asked how often, what is recorded, and what leaves (design/0051)."""

from __future__ import annotations

import asyncio
import pickle
import re
import sqlite3
import time
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.health import CallStatus
from holdfast.spark.physical_plan import check_machines
from holdfast.testing import drive
from tests.asked_service import AskedService, twice

SCHEMA = "n BIGINT, t BIGINT"


def rows_of(*numbers: int | None) -> list[dict[str, Any]]:
    return [{"n": number, "t": at} for at, number in enumerate(numbers)]


def asked(port: int, path: Path, **more: Any) -> Any:
    async def ask(row: Any) -> Any:
        return await twice(port, row["n"])

    given: dict[str, Any] = {"key": "n", "answers": path / "answers.sqlite", "name": "asked", **more}
    return hf.read.rows([], schema=SCHEMA, timestamp="t", name="given") | hf.call(ask, "twice BIGINT", **given)


def answered(stream: Any, *numbers: int | None) -> list[dict[str, Any]]:
    (rows,) = drive(stream, {"given": [rows_of(*numbers)]})
    return rows


def test_rows_leave_in_their_order_with_what_the_service_answers(tmp_path: Path) -> None:
    with AskedService() as service:
        rows = answered(asked(service.port, tmp_path), 3, 1, 2)
    assert rows == [{"n": 3, "t": 0, "twice": 6}, {"n": 1, "t": 1, "twice": 2}, {"n": 2, "t": 2, "twice": 4}]


def test_a_key_is_asked_about_once_in_a_batch_and_never_again(tmp_path: Path) -> None:
    with AskedService() as service:
        stream = asked(service.port, tmp_path)
        assert [row["twice"] for row in answered(stream, 1, 2, 1)] == [2, 4, 2]
        assert [row["twice"] for row in answered(stream, 2, 3, 1)] == [4, 6, 2]
        again = asked(service.port, tmp_path)  # as after a restart
        assert [row["twice"] for row in answered(again, 1, 2, 3)] == [2, 4, 6]
    assert service.asked == {1: 1, 2: 1, 3: 1}


def begun(function: Any, *arguments: Any) -> Future[Any]:
    """Call in a thread that holds up no one where it hangs."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(function(*arguments))
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done


class TwoAskers:
    """A thread that asks about 1, and one that asks about 1 and 2 meanwhile: 1 is answered when 2 was asked about.

    Parameters
    ----------
    fails : bool
        1 is not answered, but fails.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails
        self._has_begun = Event()
        self._is_asked = asyncio.Event()
        self.asked: list[int] = []

    async def ask(self, row: Any) -> Any:
        self.asked.append(row["n"])
        if row["n"] == 2:
            self._is_asked.set()
            return {"twice": 4}
        self._has_begun.set()
        await self._is_asked.wait()
        if self._fails:
            raise ConnectionError("away")
        return {"twice": 2}

    def run(self, path: Path) -> list[Any]:
        """Return what both threads get: the answers, or the error."""
        rows = hf.read.rows([], schema=SCHEMA, name="given")
        stream = rows | hf.call(self.ask, "twice BIGINT", key="n", answers=path, name="asked", retry=0)
        calls = stream.node.spec.fn
        service = calls.open_service()

        def twices(*numbers: int) -> Any:
            return calls(pa.record_batch({"n": numbers}), service).column("twice").to_pylist()

        first = begun(twices, 1)
        assert self._has_begun.wait(60)
        return [one.exception(60) or one.result() for one in (first, begun(twices, 1, 2))]


def test_a_key_that_two_threads_of_a_process_ask_about_is_asked_about_once(tmp_path: Path) -> None:
    """An epoch of several megabytes is read by several threads, in the process that keeps state."""
    both = TwoAskers()
    assert both.run(tmp_path / "a.sqlite") == [[2], [2, 4]]
    assert both.asked == [1, 2]


def test_a_call_that_fails_fails_for_each_thread_that_asked(tmp_path: Path) -> None:
    both = TwoAskers(fails=True)
    first, second = both.run(tmp_path / "a.sqlite")
    assert isinstance(first, Unavailable)
    assert isinstance(second, Unavailable)
    assert both.asked == [1, 2]


def test_threads_that_ask_about_the_same_keys_end_and_each_call_is_counted(tmp_path: Path) -> None:
    with AskedService(0.005) as service:
        calls = asked(service.port, tmp_path).node.spec.fn
        shared = calls.open_service()
        batch = pa.record_batch({"n": range(200)})
        found = [one.result(60) for one in [begun(calls, batch, shared) for _ in range(3)]]
    assert [rows.column("twice").to_pylist() for rows in found] == [[2 * n for n in range(200)]] * 3
    assert set(service.asked.values()) == {1}
    assert (calls.status().calls, calls.status().reused) == (200, 400)


def test_a_key_that_another_thread_records_after_this_one_has_looked_is_not_asked_about_again(tmp_path: Path) -> None:
    with AskedService() as service:
        calls = asked(service.port, tmp_path).node.spec.fn
        shared = calls.open_service()
        batch = pa.record_batch({"n": [1]})

        class Late:
            def take(self, numbers: Any) -> Any:
                calls(batch, shared)  # the other one
                return batch.take(numbers)

        assert shared.answers_of(["[1]"], Late()).keys() == {"[1]"}
    assert service.asked == {1: 1}


def test_no_more_calls_are_in_flight_than_allowed(tmp_path: Path) -> None:
    with AskedService(0.005) as service:
        answered(asked(service.port, tmp_path, max_concurrency=4), *range(40))
    assert service.in_flight_max == 4


def test_an_attempt_that_fails_or_hangs_is_followed_by_another(tmp_path: Path) -> None:
    with AskedService(fails={1: 1}, hangs={2}) as service:
        rows = answered(asked(service.port, tmp_path, timeout="500 ms", retry=1), 1, 2, 3)
    assert [row["twice"] for row in rows] == [2, 4, 6]
    assert service.asked == {1: 2, 2: 2, 3: 1}


def test_a_call_that_fails_fails_the_epoch_and_what_was_answered_is_not_asked_for_again(tmp_path: Path) -> None:
    with AskedService(fails={5: 1}) as service:
        stream = asked(service.port, tmp_path, max_concurrency=1, retry=0)
        with pytest.raises(Unavailable, match="'asked' has no answer") as failed:
            answered(stream, *range(10))
        assert "503 busy" in failed.value.why
        assert [row["twice"] for row in answered(stream, *range(10))] == [2 * n for n in range(10)]
    assert service.asked == {**dict.fromkeys(range(10), 1), 5: 2}


def test_with_a_column_for_errors_the_row_leaves_and_its_error_is_recorded(tmp_path: Path) -> None:
    with AskedService(fails={1: 9}) as service:
        stream = asked(service.port, tmp_path, retry=0, on_fail="keep", error="why")
        for _ in range(2):
            bad, good = answered(stream, 1, 2)
            assert (bad["twice"], bad["why"]) == (None, "ConnectionError: 503 busy")
            assert (good["twice"], good["why"]) == (4, None)
    assert service.asked == {1: 1, 2: 1}


def test_rows_without_an_answer_are_rejected_with_what_the_service_said(tmp_path: Path) -> None:
    with AskedService(fails={1: 9, 3: 9}) as service:
        good = asked(service.port, tmp_path, retry=0, on_fail="reject")
        assert (good.name, good.rejects.name) == ("asked", "asked_rejects")
        assert (good.columns, good.rejects.columns) == (("n", "t", "twice"), ("n", "t", "error"))
        assert good.timestamp == good.rejects.timestamp == "t"
        for _ in range(2):
            assert answered(good, 1, 2, 3) == [{"n": 2, "t": 1, "twice": 4}]
            said = "ConnectionError: 503 busy"
            assert answered(good.rejects, 1, 2, 3) == [{"n": 1, "t": 0, "error": said}, {"n": 3, "t": 2, "error": said}]
    assert service.asked == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("earlier", ["keep", "reject"])
def test_a_failure_that_was_recorded_is_no_answer_where_failures_stop_the_epoch(tmp_path: Path, earlier: Any) -> None:
    """Nulls would leave, and no column would say that nobody answered."""
    with AskedService(fails={1: 1}) as service:
        answered(asked(service.port, tmp_path, retry=0, on_fail=earlier), 1, 2)
        stream = asked(service.port, tmp_path)
        for _ in range(2):
            with pytest.raises(Unavailable, match="has failures for answers: 1 of 2 keys") as failed:
                answered(stream, 1, 2, 1)
        assert "[1], ConnectionError: 503 busy" in failed.value.why
        assert service.asked == {1: 1, 2: 1}
        assert [row["twice"] for row in answered(stream, 2)] == [4]
        (statement,) = re.findall("DELETE .* NULL", failed.value.do)
        with sqlite3.connect(tmp_path / "answers.sqlite") as other:
            assert other.execute(statement).rowcount == 1
        other.close()
        assert [row["twice"] for row in answered(stream, 1, 2, 1)] == [2, 4, 2]
    assert service.asked == {1: 2, 2: 1}


def test_a_failure_that_another_process_records_meanwhile_is_no_answer_either(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"

    async def ask(row: Any) -> Any:
        with sqlite3.connect(path) as other:  # a pipeline that rejects, and was faster
            other.execute(
                "INSERT INTO answers (call, key, answer, error, attempts, seconds) VALUES (?, '[1]', x'', 'x', 1, 1)",
                [stream.node.spec.fn.recorded_as],
            )
        other.close()
        return {"said": "yes"}

    given = hf.read.rows([], schema=SCHEMA, name="given")
    stream = given | hf.call(ask, "said STRING", key="n", answers=path, name="asked")
    with pytest.raises(Unavailable, match="has failures for answers"):
        drive(stream, {"given": [rows_of(1)]})


def test_a_failure_that_is_deleted_while_an_epoch_is_evaluated_loses_no_row(tmp_path: Path) -> None:
    """Rows are divided by what they hold, and not by the file: whoever deletes failures, to ask again, may do so."""
    path = tmp_path / "a.sqlite"

    async def ask(row: Any) -> Any:
        raise ConnectionError("away")

    def emptied(batch: Any) -> Any:
        with sqlite3.connect(path) as other:
            other.execute("DELETE FROM answers WHERE error IS NOT NULL")
        other.close()
        return batch

    given = hf.read.rows([], schema=SCHEMA, timestamp="t", name="given")
    good = given | hf.call(ask, "said STRING", key="n", answers=path, name="asked", retry=0, on_fail="reject")
    both = hf.union(
        good | hf.map_batches(emptied, "n BIGINT, t BIGINT, said STRING") | hf.select("n", name="goods"),
        good.rejects | hf.select("n", name="bads"),
        name="both",
    )
    assert answered(both, 1, 2) == [{"n": 1}, {"n": 2}]


def test_explain_warns_of_rejected_rows_that_go_nowhere(tmp_path: Path) -> None:
    good = asked(1, tmp_path, on_fail="reject")
    table, bad = good | hf.write.console(name="table"), good.rejects | hf.write.console(name="bad")
    assert "Give asked.rejects a sink" in hf.Pipeline("p", table).explain()
    assert "Give asked.rejects a sink" not in hf.Pipeline("p", table, bad).explain()


def test_no_secret_of_an_error_is_recorded_or_leaves(tmp_path: Path) -> None:
    async def ask(row: Any) -> Any:
        raise ConnectionError("GET https://me:hunter2@models.example?api_key=hunter2")

    given = hf.read.rows([], schema=SCHEMA, name="given")
    path = tmp_path / "answers.sqlite"
    stream = given | hf.call(ask, "said STRING", key="n", answers=path, name="asked", retry=0, on_fail="keep")
    assert "hunter2" not in drive(stream, {"given": [rows_of(1)]})[0][0]["error"]
    assert all(b"hunter2" not in file.read_bytes() for file in tmp_path.iterdir())


def test_the_rate_holds_attempts_back(tmp_path: Path) -> None:
    with AskedService() as service:
        started = time.monotonic()
        answered(asked(service.port, tmp_path, rate="100/s"), *range(21))
    assert time.monotonic() - started >= 0.2


def test_a_client_is_made_once_in_a_process(tmp_path: Path) -> None:
    made = []

    async def client() -> str:
        made.append(asyncio.get_running_loop())
        return "client"

    async def ask(row: Any, client: Any) -> Any:
        return {"said": f"{client} {row['n']}"}

    given = hf.read.rows([], schema=SCHEMA, name="given")
    path = tmp_path / "new" / "answers.sqlite"
    stream = given | hf.call(ask, "said STRING", key="n", answers=path, name="asked", setup=client)
    epochs = drive(stream, {"given": [rows_of(1), rows_of(2)]})
    assert [[row["said"] for row in rows] for rows in epochs] == [["client 1"], ["client 2"]]
    assert len(made) == 1


@pytest.mark.parametrize("answer", [{"twice": "two"}, {"other": 2}, 7])
def test_an_answer_of_another_schema_is_refused(tmp_path: Path, answer: Any) -> None:
    async def ask(row: Any) -> Any:
        return answer

    given = hf.read.rows([], schema=SCHEMA, name="given")
    stream = given | hf.call(ask, "twice BIGINT", key="n", answers=tmp_path / "a.sqlite", name="asked")
    with pytest.raises(InvalidPipeline, match="does not have its schema"):
        drive(stream, {"given": [rows_of(1)]})


def test_answers_of_another_schema_or_name_are_not_used(tmp_path: Path) -> None:
    said = iter(range(9))

    async def ask(row: Any) -> Any:
        return {"said": next(said)}

    given = hf.read.rows([], schema=SCHEMA, name="given")
    for schema, name, wanted in (
        ("said INT", "a", 0),
        ("said BIGINT", "a", 1),
        ("said INT", "b", 2),
        ("said INT", "a", 0),
    ):
        stream = given | hf.call(ask, schema, key="n", answers=tmp_path / "a.sqlite", name=name)
        assert drive(stream, {"given": [rows_of(1)]})[0][0]["said"] == wanted


def test_none_is_an_answer_and_null_a_key(tmp_path: Path) -> None:
    seen = []

    async def ask(row: Any) -> None:
        seen.append(row["n"])

    given = hf.read.rows([], schema=SCHEMA, name="given")
    stream = given | hf.call(ask, "said STRING, at TIMESTAMP", key=["n"], answers=tmp_path / "a.sqlite", name="asked")
    for _ in range(2):
        rows = drive(stream, {"given": [rows_of(None, 1, None)]})[0]
        assert [(row["said"], row["at"]) for row in rows] == [(None, None)] * 3
    assert sorted(seen, key=str) == [1, None]


def test_the_first_recorded_answer_counts_whoever_asked(tmp_path: Path) -> None:
    """Two attempts of a task ask about one row: both use what was recorded first."""
    path = tmp_path / "a.sqlite"

    async def ask(row: Any) -> Any:
        with sqlite3.connect(path) as other:  # another process is faster
            schema = pa.schema([("said", pa.string())])
            answer = pa.RecordBatch.from_pylist([{"said": "first"}], schema).serialize().to_pybytes()
            other.execute(
                "INSERT INTO answers (call, key, answer, attempts, seconds) VALUES (?, '[1]', ?, 1, 0)",
                (stream.node.spec.fn.recorded_as, answer),
            )
        other.close()
        return {"said": "second"}

    given = hf.read.rows([], schema=SCHEMA, name="given")
    stream = given | hf.call(ask, "said STRING", key="n", answers=path, name="asked")
    assert drive(stream, {"given": [rows_of(1)]})[0][0]["said"] == "first"


def test_answers_that_cannot_be_recorded_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    path.mkdir()

    async def ask(row: Any) -> Any:
        raise AssertionError("nobody is asked")

    given = hf.read.rows([], schema=SCHEMA, name="given")
    stream = given | hf.call(ask, "said STRING", key="n", answers=path, name="asked")
    with pytest.raises(Unavailable, match="cannot be recorded"):
        drive(stream, {"given": [rows_of(1)]})


def test_the_status_says_what_calls_have_cost_in_all_runs(tmp_path: Path) -> None:
    with AskedService(fails={1: 1, 4: 9}) as service:
        stream = asked(service.port, tmp_path, retry=1, on_fail="keep")
        assert stream.node.spec.status() == CallStatus("asked")  # there is no file yet
        answered(stream, 1, 2)
        answered(stream, 2, 4, 1, 1)
        found = stream.node.spec.status()
    assert (found.calls, found.retries, found.failed, found.reused) == (5, 2, 1, 2)
    assert sum(service.asked.values()) == 5
    assert found.seconds >= 0.2
    assert found.cost == {}


def test_the_status_counts_calls_that_have_failed_their_epoch(tmp_path: Path) -> None:
    with AskedService(fails={1: 9}) as service:
        stream = asked(service.port, tmp_path, retry=1)
        with pytest.raises(Unavailable):
            answered(stream, 1)
    found = stream.node.spec.status()
    assert (found.calls, found.retries, found.failed) == (2, 1, 1)


def test_a_function_may_report_what_an_answer_has_cost(tmp_path: Path) -> None:
    async def ask(row: Any) -> Any:
        return hf.Answer({"said": "yes"} if row["n"] else None, cost={"tokens": row["n"], "usd": 0.5})

    given = hf.read.rows([], schema=SCHEMA, name="given")
    stream = given | hf.call(ask, "said STRING", key="n", answers=tmp_path / "a.sqlite", name="asked")
    for _ in range(2):
        assert [row["said"] for row in drive(stream, {"given": [rows_of(0, 4, 5)]})[0]] == [None, "yes", "yes"]
    found = stream.node.spec.status()
    assert (found.calls, found.reused, found.cost) == (3, 3, {"tokens": 9.0, "usd": 1.5})


@pytest.mark.parametrize("cost", [12, {"tokens": "many"}, {"calls": 2}, {"usd": float("nan")}])
def test_a_cost_that_cannot_be_added_up_is_refused(tmp_path: Path, cost: Any) -> None:
    async def ask(row: Any) -> Any:
        return hf.Answer({"said": "yes"}, cost)

    given = hf.read.rows([], schema=SCHEMA, name="given")
    stream = given | hf.call(ask, "said STRING", key="n", answers=tmp_path / "a.sqlite", name="asked")
    with pytest.raises(InvalidPipeline, match="reports a cost that cannot be added up"):
        drive(stream, {"given": [rows_of(1)]})


async def ask_nothing(row: Any) -> None:
    """Answer nothing."""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"key": "missing"}, "missing"),
        ({"key": []}, "does not name columns"),
        ({"name": ""}, "name"),
        ({"max_concurrency": 0}, "max_concurrency=0"),
        ({"retry": -1}, "retry=-1"),
        ({"timeout": "soon"}, "timeout"),
        ({"rate": "fast"}, "rate='fast'"),
        ({"rate": "0/s"}, "rate='0/s'"),
        ({"error": "why"}, "no row has it"),
        ({"on_fail": "drop"}, "none of stop, keep, reject"),
        ({"on_fail": "keep", "error": ""}, "error='' names no column"),
        ({"on_fail": "keep", "error": "said"}, "second column 'said'"),
        ({"on_fail": "reject", "error": "n"}, "second column 'n'"),
        ({"schema": "n INT"}, "second column 'n'"),
        ({"fn": lambda: None}, "cannot be called"),
        ({"setup": ask_nothing}, "cannot be called"),
    ],
)
def test_wrong_arguments_are_refused_while_the_graph_is_built(arguments: Any, says: str) -> None:
    given: dict[str, Any] = {"fn": ask_nothing, "schema": "said STRING", "key": "n", "answers": "a", "name": "a"}
    with pytest.raises(InvalidPipeline, match=says):
        hf.read.rows([], schema=SCHEMA, name="given") | hf.call(**given | arguments)


def test_rows_keep_timestamp_ids_and_columns_and_the_declaration_travels(tmp_path: Path) -> None:
    rows = hf.read.rows([], schema=SCHEMA, timestamp="t", name="given") | hf.row_id()
    stream = rows | hf.call(ask_nothing, "said STRING", key="row_id", answers="a", name="asked", on_fail="keep")
    assert stream.columns == ("n", "t", "row_id", "said", "error")
    assert stream.timestamp == "t"
    assert stream.node.shape.ids == rows.node.shape.ids
    assert pickle.loads(pickle.dumps(stream.node.spec)) == stream.node.spec
    assert stream.node.spec.arguments()["key"] == ["row_id"]


def test_a_cluster_is_refused_since_each_machine_would_have_a_file_of_its_own(tmp_path: Path) -> None:
    async def ask(row: Any) -> dict[str, Any]:
        return {"answer": 1}

    rows = hf.read.rows([[{"id": 1}]], schema="id BIGINT", name="rows")
    asked = rows | hf.call(ask, "answer BIGINT", key="id", answers=tmp_path / "answers", name="asked")
    pipeline = hf.Pipeline("calls", asked | hf.write.memory("calls_refused"))
    for master in ("local[2]", "local-cluster[2,1,1024]"):
        check_machines(pipeline, master)
    with pytest.raises(InvalidPipeline, match="call 'asked' cannot run on 'spark://host:7077'"):
        check_machines(pipeline, "spark://host:7077")


def test_an_answer_to_another_column_is_none(tmp_path: Path) -> None:
    """Two columns may hold the same value, and mean something else by it."""
    with AskedService() as service:
        for key in ("n", "t"):

            async def ask(row: Any, key: str = key) -> Any:
                return await twice(service.port, row[key])

            given = hf.read.rows([], schema=SCHEMA, timestamp="t", name="given")
            stream = given | hf.call(ask, "twice BIGINT", key=key, answers=tmp_path / "answers.sqlite", name="asked")
            (found,) = drive(stream, {"given": [[{"n": 5, "t": 5}]]})
            assert [row["twice"] for row in found] == [10]
        assert sum(service.asked.values()) == 2
