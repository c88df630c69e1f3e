"""HTTP: what is posted, with which key, what is tried again and when, and what a refusal says."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.capabilities import offers
from holdfast.connectors.http import posting
from holdfast.connectors.http.spec import HttpSpec
from holdfast.errors import BadRow, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Guarantee, Held, Idempotent, Outcome, Publication, RunIdentity, Task
from holdfast.testing import SimulatedClock
from tests.http_servers import KeyedServer, Reply, serving

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
MINUTE_US = 60_000_000


class Clock(SimulatedClock):
    """Notes what is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def sleep_s(self, seconds: float) -> None:
        self.waits.append(seconds)
        super().sleep_s(seconds)


@pytest.fixture
def server() -> KeyedServer:
    return KeyedServer()


@pytest.fixture
def url(server: KeyedServer) -> Iterator[str]:
    with serving(server) as url:
        yield url


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("holdfast.connectors.http.spec.SystemClock", lambda: clock)
    return clock


@pytest.fixture
def opened(url: str, clock: Clock) -> Iterator[Any]:
    made = []

    def make(**arguments: Any) -> Any:
        spec = HttpSpec(arguments.pop("url", url), "id", id_column="id", **arguments)
        sink = spec.connect("out", "p", arguments.pop("schema", SCHEMA))
        made.append(sink)
        assert sink.open(RunIdentity("p", 1)) == Held()
        return sink

    yield make
    for sink in made:
        sink.close()


def epoch(number: int, *rows: tuple[Any, Any]) -> Publication:
    table = pa.Table.from_pylist([{"id": id, "n": n} for id, n in rows], SCHEMA)
    return Publication(EpochRecord("p", number, 1, {"s": {"log": number}}), (Carried(table),))


def staged(sink: Any, number: int, *rows: tuple[Any, Any]) -> Publication:
    writer = sink.writer_factory()(Task("p", 1, number, 0, 0))
    writer.write(epoch(number, *rows).parts[0].rows.to_batches()[0])
    return Publication(EpochRecord("p", number, 1, {}), (pickle.loads(pickle.dumps(writer.stage())),))


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_each_row_is_an_object_of_its_own_under_its_id(server: KeyedServer, opened: Any) -> None:
    sink = opened(headers=(("X-Tenant", "air"),))
    sink.publish([epoch(1, ("b", 1), ("a", None)), staged(sink, 2, ("c", 3))], Held())
    assert server.rows == [{"id": "b", "n": 1}, {"id": "a", "n": None}, {"id": "c", "n": 3}]
    assert [request.key for request in server.received] == ["b", "a", "c"]
    first = server.received[0].headers
    assert (first["Content-Type"], first["X-Tenant"]) == ("application/json", "air")
    assert [sink.outcome(number) for number in (1, 2, 3)] == [Outcome.PUBLISHED, Outcome.PUBLISHED, Outcome.ABSENT]


def test_an_epoch_that_was_sent_is_not_sent_again_by_this_process(server: KeyedServer, opened: Any) -> None:
    sink = opened()
    for _ in range(2):
        sink.publish([epoch(1, ("a", 1))], Held())
    assert len(server.received) == 1


def test_shards_send_side_by_side_and_one_that_begins_again_sends_under_the_same_keys(
    server: KeyedServer, url: str, clock: Clock
) -> None:
    spec = HttpSpec(url, "id", id_column="id")
    one, other, again = (spec.connect("out", name, SCHEMA) for name in ("p", "p-1", "p-1"))
    for sink, name, generation in ((one, "p", 1), (other, "p-1", 1), (again, "p-1", 2)):
        sink.open(RunIdentity(name, generation))
    one.publish([epoch(1, ("a", 1))], Held())
    other.publish([epoch(1, ("b", 1))], Held())
    again.publish([epoch(1, ("b", 1))], Held())
    one.publish([epoch(2, ("c", 2))], Held())
    assert [row["id"] for row in server.rows] == ["a", "b", "c"]
    assert [(one.outcome(2), other.outcome(2))] == [(Outcome.PUBLISHED, Outcome.ABSENT)]
    for sink in (one, other, again):
        sink.close()


@pytest.mark.parametrize("format", ["json", "lines"])
def test_several_rows_are_a_request_under_a_key_of_their_ids(server: KeyedServer, opened: Any, format: str) -> None:
    sink = opened(batch_rows=2, format=format)
    sink.publish([epoch(1, ("c", 3), ("a", 1), ("b", 2))], Held())
    assert [request.rows for request in server.received] == [
        [{"id": "a", "n": 1}, {"id": "b", "n": 2}],
        [{"id": "c", "n": 3}],
    ]
    assert server.received[1].key == "c"


def test_the_keys_of_batches_do_not_depend_on_the_order_of_rows_and_parts(server: KeyedServer, opened: Any) -> None:
    rows = [(f"r{n:02}", n) for n in range(11)]
    for publication in (epoch(1, *rows), epoch(1, *reversed(rows))):
        opened(batch_rows=4).publish([publication], Held())
    keys = [request.key for request in server.received]
    assert keys[:3] == keys[3:]
    assert len(set(keys)) == 3
    assert [row["n"] for row in server.rows] == list(range(11))


def test_batches_that_are_cut_otherwise_have_other_keys(server: KeyedServer, opened: Any) -> None:
    """Why a server of batches must be unique by the id in each row."""
    rows = [(f"r{n}", n) for n in range(6)]
    opened(batch_rows=3).publish([epoch(1, *rows)], Held())
    opened(batch_rows=3).publish([epoch(1, *rows[:2]), epoch(2, *rows[2:])], Held())
    assert len({request.key for request in server.received}) == 5
    assert len(server.rows) > 6


def test_requests_at_once_send_every_row(server: KeyedServer, opened: Any) -> None:
    sink = opened(at_once=4)
    rows = [(f"r{n}", n) for n in range(200)]
    sink.publish([epoch(1, *rows)], Held())
    assert sorted(row["n"] for row in server.rows) == list(range(200))


def test_an_epoch_without_rows_sends_nothing(server: KeyedServer, opened: Any) -> None:
    sink = opened(batch_rows=5)
    sink.publish([epoch(1)], Held())
    assert server.received == []
    assert sink.outcome(1) is Outcome.PUBLISHED


def test_a_row_without_an_id_is_refused_before_anything_is_sent(server: KeyedServer, opened: Any) -> None:
    sink = opened()
    with pytest.raises(BadRow, match="null in the id column 'id'"):
        sink.admit(epoch(1, ("a", 1), (None, 2)))
    with pytest.raises(BadRow, match="null in the id column 'id'"):
        sink.publish([staged(sink, 1, ("a", 1), (None, 2))], Held())
    assert server.received == []


def test_another_header_can_have_the_key(server: KeyedServer, opened: Any) -> None:
    opened(key_header="X-Request-Id").publish([epoch(1, ("a", 1))], Held())
    assert server.received[0].headers["X-Request-Id"] == "a"


# --- what is tried again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 408, 425, 429, 500, 502, 503])
def test_a_server_that_cannot_now_is_asked_again_with_the_same_key(
    server: KeyedServer, opened: Any, clock: Clock, status: int
) -> None:
    server.replies = [Reply(status)] * 3
    opened().publish([epoch(1, ("a", 1), ("b", 2))], Held())
    assert [request.key for request in server.received] == ["a", "a", "a", "a", "b"]
    assert server.rows == [{"id": "a", "n": 1}, {"id": "b", "n": 2}]
    assert len(clock.waits) == 3
    for wait, whole in zip(clock.waits, (0.2, 0.4, 0.8), strict=True):
        assert whole / 2 <= wait <= whole


def test_after_the_last_attempt_it_is_unavailable_and_goes_on_where_it_was(server: KeyedServer, opened: Any) -> None:
    sink = opened(attempts=2)
    server.reply_to = lambda request: Reply(500, text="down") if request.key == "b" else None
    with pytest.raises(Unavailable, match="answered 500") as caught:
        sink.publish([epoch(1, ("a", 1), ("b", 2))], Held())
    assert "down" in caught.value.why
    assert sink.outcome(1) is Outcome.ABSENT
    server.reply_to = lambda _: None
    sink.publish([epoch(1, ("a", 1), ("b", 2))], Held())
    assert [request.key for request in server.received] == ["a", "b", "b", "b"]


def test_a_server_that_is_not_there_is_unavailable(opened: Any) -> None:
    with pytest.raises(Unavailable, match="did not answer"):
        opened(url="http://127.0.0.1:9/rows", attempts=2).publish([epoch(1, ("a", 1))], Held())


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds_is_obeyed(server: KeyedServer, opened: Any, clock: Clock, status: int) -> None:
    server.replies = [Reply(status, {"Retry-After": "7"})]
    before = clock.now_us()
    opened().publish([epoch(1, ("a", 1))], Held())
    assert clock.now_us() - before >= 7_000_000
    assert len(server.rows) == 1


def test_retry_after_as_a_date_is_obeyed_by_the_clock_of_the_server(
    server: KeyedServer, opened: Any, clock: Clock
) -> None:
    dates = {"Date": "Wed, 21 Oct 2026 07:27:30 GMT", "Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
    server.replies = [Reply(503, dates)]
    before = clock.now_us()
    opened().publish([epoch(1, ("a", 1))], Held())
    assert 30_000_000 <= clock.now_us() - before < 31 * 1_000_000


def test_a_time_that_is_far_away_is_not_waited_for_in_one_go_and_nothing_is_sent_before(
    server: KeyedServer, opened: Any, clock: Clock
) -> None:
    sink = opened()
    server.replies = [Reply(429, {"Retry-After": "3600"})]
    for _ in range(3):
        with pytest.raises(Unavailable, match=r"is not to be asked yet(.|\n)*Retry-After"):
            sink.publish([epoch(1, ("a", 1))], Held())
    assert len(server.received) == 1
    clock.sleep_s(3600)
    sink.publish([epoch(1, ("a", 1))], Held())
    assert len(server.received) == 2


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refused_row_is_a_bad_row_with_the_servers_words(server: KeyedServer, opened: Any, status: int) -> None:
    server.replies = [Reply(status, text="n must be positive\n" + "x" * 5000 + " password=hunter2")]
    with pytest.raises(BadRow, match=f"refused the row 'a': {status}") as caught:
        opened().publish([epoch(1, ("a", 1))], Held())
    assert caught.value.epoch == 1
    assert "n must be positive xxx" in caught.value.why
    assert len(caught.value.why) < 350
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 405, 410])
def test_a_wrong_address_or_login_stops_the_run(server: KeyedServer, opened: Any, status: int) -> None:
    server.replies = [Reply(status, {"Location": "http://127.0.0.1:9/"}, "go away")]
    with pytest.raises(InvalidPipeline, match=f"answered {status}") as caught:
        opened().publish([epoch(1, ("a", 1))], Held())
    assert "go away" in caught.value.why
    assert len(server.received) == 1


def test_an_answer_that_says_that_the_row_is_there_is_no_refusal(server: KeyedServer, opened: Any) -> None:
    server.replies = [Reply(409)]
    sink = opened(duplicate_status=(409,))
    sink.publish([epoch(1, ("a", 1))], Held())
    assert sink.outcome(1) is Outcome.PUBLISHED


# --- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ("Bearer ${API_TOKEN}", "Authorization", "Bearer s3cr3t-t0ken"),
        (("ann", "${API_TOKEN}"), "Authorization", "Basic YW5uOnMzY3IzdC10MGtlbg=="),
        ((("X-Api-Key", "${API_TOKEN}"),), "X-Api-Key", "s3cr3t-t0ken"),
    ],
)
def test_a_secret_is_sent_and_shown_nowhere(
    server: KeyedServer,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    auth: Any,
    header: str,
    value: str,
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cr3t-t0ken")
    sink = opened(auth=auth)
    server.replies = [Reply(500, text=f"you said {value}"), Reply(422, text=f"I got {value} from you")]
    with caplog.at_level("DEBUG", logger="holdfast"), pytest.raises(BadRow) as caught:
        sink.publish([epoch(1, ("a", 1))], Held())
    assert server.received[0].headers[header] == value
    spec = HttpSpec("https://api.example/rows?k=s3cr3t-t0ken", auth=auth)
    for text in (str(caught.value), caplog.text, repr(spec), str(spec.arguments())):
        assert "s3cr3t" not in text
        assert "YW5u" not in text
    assert "I got ***" in caught.value.why


def test_a_variable_that_is_not_set_is_named(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("API_TOKEN", raising=False)
    with pytest.raises(InvalidPipeline, match="API_TOKEN, which is not set"):
        opened(auth="Bearer ${API_TOKEN}")


# --- the graph ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "ftp://h/rows"}, "no address"),
        ({"url": "https://user:pw@h/rows"}, "has a login"),
        ({"batch_rows": 0}, "batch_rows=0"),
        ({"at_once": True}, "at_once=True"),
        ({"attempts": "3"}, "attempts='3'"),
        ({"format": "xml"}, "format='xml'"),
        ({"timeout": "soon"}, "timeout"),
        ({"headers": {"Authorization": "Bearer x"}}, "looks like a secret"),
        ({"headers": {"X-Auth-Token": "x"}}, "looks like a secret"),
        ({"headers": {"X Y": "x"}}, "no header"),
        ({"headers": {"X": "a\r\nB: c"}}, "no header"),
        ({"headers": {"Content-Type": "text/plain"}}, "no header"),
        ({"duplicate_status": (200,)}, "duplicate_status"),
        ({"id": ""}, "is no column"),
        ({"control": "c"}, "control"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], said: str) -> None:
    given = {"url": "https://api.example/rows", **arguments}
    with pytest.raises(InvalidPipeline, match=said) as caught:
        hf.write.http(given.pop("url"), **given)
    assert "user:pw" not in str(caught.value)


def test_the_graph_finds_the_id_and_says_what_is_promised() -> None:
    numbers = hf.read.rows([{"n": 1}], schema="n BIGINT", name="numbers")
    with pytest.raises(InvalidPipeline, match=r"hf\.row_id"):
        _ = numbers | hf.write.http("https://api.example/rows", name="api")
    sink = numbers | hf.row_id() | hf.write.http("https://api.example/rows", auth="Bearer ${T}", name="api")
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    assert sink.arguments()["auth"] == ["Authorization"]
    text = hf.Pipeline("p", sink).explain()
    assert "rows are identified by row_id" in text
    assert "it can receive rows twice, with the same row_id each time: exactly-once in effect" in text


def test_it_says_that_rows_may_be_sent_again(opened: Any) -> None:
    sink = opened()
    assert offers(sink, Idempotent)
    assert sink.is_idempotent


def test_waits_are_bounded() -> None:
    assert posting.LONGEST_WAIT_S <= posting.OBEYED_S
