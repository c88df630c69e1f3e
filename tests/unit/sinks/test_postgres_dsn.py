"""Connection strings: what is filled in, and that no secret is ever shown."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.connectors.postgres.dsn import Dsn
from holdfast.connectors.postgres.spec import postgres
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import SinkNode
from tests.specs import postgres_spec

SECRET = "hunter2"

DSNS = [
    f"postgresql://ann:{SECRET}@db.example:5433/trips",
    f"postgres://ann:{SECRET}@db.example/trips?password={SECRET}&sslpassword={SECRET}",
    f"postgresql:///trips?host=/var/run&password={SECRET}",
    f"postgresql://ann:{SECRET}@[::1/trips",
    f"host=db.example dbname=trips password={SECRET}",
    f"host = db.example password = '{SECRET} with spaces' dbname=trips",
    f"host=db.example password=top\\ user={SECRET} dbname=trips",
    f"passfile=/tmp/x password='it\\'s {SECRET}' user=ann",
]


@pytest.mark.parametrize("text", DSNS)
def test_a_password_is_never_shown(text: str) -> None:
    spec = postgres_spec(text, "trips")
    node = postgres(text, table="trips")
    shown = [str(Dsn(text)), repr(Dsn(text)), repr(spec), json.dumps(spec.arguments()), repr(node), node.name]
    assert not any(SECRET in text for text in shown)
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (DSNS[0], "postgresql://ann@db.example:5433/trips"),
        (DSNS[4], "host=db.example dbname=trips"),
        ("${TRIPS_DSN}", "${TRIPS_DSN}"),
        ("postgresql://ann:${PASSWORD}@db.example/trips", "postgresql://ann@db.example/trips"),
    ],
)
def test_host_port_database_and_user_are_shown(text: str, shown: str) -> None:
    assert str(Dsn(text)) == shown


def test_variables_are_filled_in_from_the_environment() -> None:
    dsn = Dsn("postgresql://${USER_NAME}:${PASSWORD}@db/trips")
    assert dsn.expanded({"USER_NAME": "ann", "PASSWORD": SECRET}).text == f"postgresql://ann:{SECRET}@db/trips"


HARD = f"p@{SECRET}/x?y#z%40&= ü"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://${USER_NAME}:${PASSWORD}@${SERVER}/${DATABASE}",
        "postgresql://${USER_NAME}@${SERVER}/${DATABASE}?password=${PASSWORD}",
        "postgresql://${SERVER}/${DATABASE}?user=${USER_NAME}&password=${PASSWORD}&${MORE}",
    ],
)
def test_a_password_from_the_environment_reaches_the_server_whatever_letters_it_has(text: str) -> None:
    given = {
        "USER_NAME": "ann@tenant",
        "PASSWORD": HARD,
        "SERVER": "a.example:5433,[::1]:5434",
        "DATABASE": "tri ps",
        "MORE": "sslmode=require&connect_timeout=3",
    }
    dsn = Dsn(text).expanded(given)
    parsed = conninfo_to_dict(dsn.text)
    assert (parsed["user"], parsed["password"], parsed["dbname"]) == ("ann@tenant", HARD, "tri ps")
    assert (parsed["host"], parsed["port"]) == ("a.example,::1", "5433,5434")
    assert not any(piece in str(dsn) for piece in (SECRET, "p%40"))


def test_a_variable_that_is_the_whole_dsn_is_taken_as_it_is() -> None:
    text = "postgresql://ann:p%40ss@db/trips"
    assert Dsn("${TRIPS_DSN}").expanded({"TRIPS_DSN": text}).text == text


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ann:top@{SECRET}@db/trips",
        f"postgresql://ann:12/{SECRET}@db/trips",
        f"postgresql://ann:/{SECRET}@db/trips",
        f"postgresql://ann:{SECRET}/@db",
        f"postgresql://ann@{SECRET}@db:5432/trips?sslmode=require",
        f"postgres://ann:1/2@{SECRET}@db/trips",
        f"host=top@{SECRET} dbname=trips",
        f"host=db dbname=postgresql://ann:{SECRET}@db/trips",
    ],
)
def test_a_piece_of_a_password_in_the_place_of_a_host_or_database_is_refused_without_showing_it(text: str) -> None:
    for refused in (lambda: postgres(text, table="trips"), lambda: Dsn("${ALL}").expanded({"ALL": text})):
        with pytest.raises(InvalidPipeline, match="has an @ in it") as told:
            refused()
        assert "%40" in told.value.do
        assert "write.postgres" not in told.value.what  # a look-up says the same
        assert not any(piece in str(told.value) for piece in (SECRET, "top", "12/"))
    assert SECRET not in str(Dsn(text))


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(InvalidPipeline, match="environment variable PASSWORD, which is not set"):
        Dsn("postgresql://ann:${PASSWORD}@db/trips").expanded({})


def test_the_user_function_makes_a_sink_node() -> None:
    node = postgres("host=db", table="mart.trips", mode="upsert", key=["id"], name="trips_table")
    assert isinstance(node, SinkNode)
    assert (node.kind, node.name) == ("postgres", "trips_table")
    assert node.arguments() == {
        "dsn": "host=db",
        "table": "mart.trips",
        "mode": "upsert",
        "key": ["id"],
        "delete": None,
        "stage": "auto",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"postgresql://ann:{SECRET}@127.0.0.1:notaport/trips", "port"),
        (f"postgresql://ann:{SECRET}@127.0.0.1:99999/trips", "port"),
        (f"host=127.0.0.1,127.0.0.1 port=1,2,3 password={SECRET}", "port"),
        (f"host=127.0.0.1 port=1 sslmode=always password={SECRET}", "sslmode"),
        (f"host=127.0.0.1 port=1 connect_timeout=long password={SECRET}", "connect_timeout"),
        (f"hostaddr=nowhere port=1 password={SECRET}", "address"),
    ],
)
def test_a_parameter_that_no_server_would_be_asked_with_is_wrong_for_good(text: str, said: str) -> None:
    with pytest.raises(InvalidPipeline, match="the DSN cannot be read") as refused:
        postgres_spec(text, "trips").connect("trips_table", "trips", pa.schema([("x", pa.int64())]))
    assert refused.value.why == f"its {said} is not a valid value."
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None, "a log would show the cause"


@pytest.mark.parametrize("arguments", [{"stage": "temp"}, {"stage": "prepared", "mode": "upsert", "key": ("id",)}])
def test_a_way_of_staging_that_cannot_be_is_refused_while_building(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidPipeline, match="stage="):
        postgres_spec("host=db", "trips", **arguments)  # type: ignore[arg-type]
