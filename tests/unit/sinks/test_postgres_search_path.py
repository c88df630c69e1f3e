"""PostgreSQL finds unqualified names by the search path, which the role, the database or the DSN choose, not we.

Whoever may create objects in a schema of that path could answer for the server: say that a transaction committed, that
two keys are equal, that no ledger is there.  So our statements name ``pg_catalog`` with every function, operator, type
and relation of the catalog; and the path itself stays as it is, as the user's defaults and triggers rely on it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

import holdfast.connectors.postgres
from holdfast.capabilities import offers
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Part, Publication, Rewindable, RunIdentity, Sink, Task
from tests.specs import postgres_spec

pytestmark = pytest.mark.postgres

SCHEMA = pa.schema([("id", pa.string()), ("word", pa.string()), ("day", pa.date32()), ("raw", pa.binary())])
GONE_SCHEMA = pa.schema([*SCHEMA, ("gone", pa.bool_())])

HOSTILE = """
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.answer(name text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'hostile object % was used', name; END $$;
DO $do$
DECLARE found record; made int := 0;
BEGIN
  -- Every function whose name our modules mention, with the server's own arguments.
  FOR found IN
    SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
      FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname IN (SELECT word FROM pg_temp.words)
  LOOP BEGIN
    EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS %s LANGUAGE plpgsql AS
      $f$ BEGIN PERFORM hostile.answer(%L); END $f$', found.proname, found.arguments, found.result, found.proname);
  EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP;  -- those of internal types have no place in a statement
  -- Functions of any types cannot be written in this language: such that fit texts and names are.
  EXECUTE $f$CREATE FUNCTION hostile.format(text, text, text) RETURNS text LANGUAGE plpgsql AS
    $g$ BEGIN PERFORM hostile.answer('format'); END $g$ $f$;
  EXECUTE $f$CREATE FUNCTION hostile.format(text, text, name) RETURNS text LANGUAGE plpgsql AS
    $g$ BEGIN PERFORM hostile.answer('format'); END $g$ $f$;
  EXECUTE $f$CREATE FUNCTION hostile.format(text, name, name) RETURNS text LANGUAGE plpgsql AS
    $g$ BEGIN PERFORM hostile.answer('format'); END $g$ $f$;
  FOR found IN
    SELECT o.oprname, format_type(o.oprleft, NULL) AS l, format_type(o.oprright, NULL) AS r,
           format_type(o.oprresult, NULL) AS result
      FROM pg_operator o WHERE o.oprname IN ('=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '%', '||')
       AND o.oprleft <> 0 AND o.oprnamespace = 'pg_catalog'::regnamespace
  LOOP BEGIN
    made := made + 1;
    EXECUTE format('CREATE FUNCTION hostile.operator_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS
      $f$ BEGIN PERFORM hostile.answer(%L); END $f$', made, found.l, found.r, found.result, found.oprname);
    EXECUTE format('CREATE OPERATOR hostile.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = hostile.operator_%s)',
      found.oprname, found.l, found.r, made);
  EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP;
  FOR found IN
    SELECT c.relname FROM pg_class c
     WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'v')
       AND c.relname IN (SELECT word FROM pg_temp.words)
  LOOP
    EXECUTE format('CREATE TABLE hostile.%I ()', found.relname);
  END LOOP;
  FOR found IN
    SELECT t.typname FROM pg_type t
     WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype = 'b' AND t.typelem = 0 AND t.typname <> 'unknown'
  LOOP
    EXECUTE format('CREATE DOMAIN hostile.%I AS pg_catalog.%I CHECK (false)', found.typname, found.typname);
  END LOOP;
END $do$;
"""

USERS = """
CREATE SCHEMA mart;
-- As the extension citext, which not every server has: an equality that is not the catalog's.
CREATE TYPE mart.citext;
CREATE FUNCTION mart.citext_in(cstring) RETURNS mart.citext LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION mart.citext_out(mart.citext) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE FUNCTION mart.citext_receive(internal) RETURNS mart.citext LANGUAGE internal STABLE STRICT AS 'textrecv';
CREATE TYPE mart.citext (INPUT = mart.citext_in, OUTPUT = mart.citext_out, RECEIVE = mart.citext_receive,
  LIKE = pg_catalog.text, CATEGORY = 'S');
CREATE CAST (mart.citext AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE FUNCTION mart.citext_cmp(mart.citext, mart.citext) RETURNS int LANGUAGE sql IMMUTABLE AS
$$ SELECT pg_catalog.bttextcmp(pg_catalog.lower($1::pg_catalog.text), pg_catalog.lower($2::pg_catalog.text)) $$;
DO $do$
DECLARE sign text;
BEGIN
  FOREACH sign IN ARRAY ARRAY['<', '<=', '=', '>=', '>'] LOOP
    EXECUTE format('CREATE FUNCTION mart.%I(mart.citext, mart.citext) RETURNS boolean LANGUAGE sql IMMUTABLE AS
      $f$ SELECT mart.citext_cmp($1, $2) OPERATOR(pg_catalog.%s) 0 $f$', 'citext ' || sign, sign);
    EXECUTE format('CREATE OPERATOR mart.%s (LEFTARG = mart.citext, RIGHTARG = mart.citext, FUNCTION = mart.%I)',
      sign, 'citext ' || sign);
  END LOOP;
END $do$;
CREATE OPERATOR CLASS mart.citext_ops DEFAULT FOR TYPE mart.citext USING btree AS
  OPERATOR 1 mart.<, OPERATOR 2 mart.<=, OPERATOR 3 mart.=, OPERATOR 4 mart.>=, OPERATOR 5 mart.>,
  FUNCTION 1 mart.citext_cmp(mart.citext, mart.citext);
CREATE FUNCTION mart.mine() RETURNS text LANGUAGE sql AS $$ SELECT 'mine' $$;
CREATE TABLE mart.words (id mart.citext NOT NULL, word varchar(20), day date, raw bytea,
  by_default text, by_trigger text);
CREATE UNIQUE INDEX words_by_id ON mart.words (id);
-- Their text is looked up when they run: by the search path of the session that writes.
CREATE FUNCTION mart.fill() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN mine(); END $$;
ALTER TABLE mart.words ALTER COLUMN by_default SET DEFAULT mart.fill();
CREATE FUNCTION mart.fill_row() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.by_trigger := mine(); RETURN NEW; END $$;
CREATE TRIGGER fill_row BEFORE INSERT ON mart.words FOR EACH ROW EXECUTE FUNCTION mart.fill_row();
"""


def words() -> list[str]:
    """Return every word that our SQL may use as a name."""
    sources = Path(holdfast.connectors.postgres.__file__).parent.rglob("*.py")
    return sorted({word for source in sources for word in re.findall(r"\w+", source.read_text())})


@pytest.fixture
def hostile(postgres_prepared: str) -> str:
    """Return the DSN of a session with a hostile schema first in its path."""
    with psycopg.connect(postgres_prepared, autocommit=True) as admin:
        admin.execute("CREATE TEMPORARY TABLE words AS SELECT unnest(%s::text[]) AS word", (words(),))
        admin.execute(HOSTILE)
        admin.execute(USERS)
    dsn = make_conninfo(postgres_prepared, options="-csearch_path=hostile,pg_catalog,mart")
    with (
        psycopg.connect(dsn) as session,
        pytest.raises(psycopg.errors.RaiseException, match="hostile object = was used"),
    ):
        session.execute("SELECT 1 WHERE 'a'::pg_catalog.text = 'a'::pg_catalog.text")
    return dsn


def publish(sink: Sink, epoch: int, rows: pa.Table, way: str, generation: int = 1) -> None:
    part: Part = Carried(rows)
    if way != "carried":
        writer = sink.writer_factory()(Task("words", generation, epoch, 0, 0))
        for batch in rows.to_batches():
            writer.write(batch)
        part = writer.stage()
    publication = Publication(EpochRecord("words", epoch, generation, {"s": {"a": epoch}}), (part,))
    sink.admit(publication)
    sink.publish([publication], Held())


def rows(schema: pa.Schema, *ids: str, gone: bool = False) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": each, "word": each, "day": None, "raw": b"x", "gone": gone} for each in ids], schema=schema
    )


def stored(dsn: str, statement: str) -> list[Any]:
    """Ask without the path."""
    with psycopg.connect(make_conninfo(dsn, options="")) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.parametrize("way", ["carried", "table"])
def test_an_upsert_uses_no_object_of_a_hostile_schema_and_users_triggers_keep_their_path(
    hostile: str, way: str
) -> None:
    spec = postgres_spec(hostile, "mart.words", mode="upsert", key=("id",), delete="gone")
    for generation in (1, 2):
        sink = spec.connect("words_table", "words", GONE_SCHEMA)
        held = sink.open(RunIdentity("words", generation))
        assert held.epoch == (0 if generation == 1 else 2)
        if generation == 1:
            publish(sink, 1, rows(GONE_SCHEMA, "a", "b"), way)
            # The column's own equality, not the catalog's: B is b.
            publish(sink, 2, rows(GONE_SCHEMA, "B", gone=True), way)
            assert sink.outcome(2) is Outcome.PUBLISHED
        assert sink.sweep(below_epoch=9) == 0
        sink.close()
    assert stored(hostile, "SELECT id::text, by_default, by_trigger FROM mart.words") == [("a", "mine", "mine")]


@pytest.mark.parametrize("way", ["carried", "table", "prepared"])
def test_a_rewindable_table_of_ours_uses_no_object_of_a_hostile_schema(hostile: str, way: str) -> None:
    stage = "auto" if way == "carried" else way
    spec = postgres_spec(hostile, "mart.new", stage=stage, rewindable=True)
    sink = spec.connect("words_table", "words", SCHEMA)
    sink.open(RunIdentity("words", 1))
    publish(sink, 1, rows(SCHEMA, "a"), way)
    publish(sink, 2, rows(SCHEMA, "b", "c"), way)
    assert offers(sink, Rewindable)
    withdrawal = sink.withdrawal({"s": {"a": 1}})
    assert (withdrawal.epoch, withdrawal.row_count) == (1, 2)
    orphan = sink.writer_factory()(Task("words", 1, 3, 0, 0))
    orphan.write(rows(SCHEMA, "d").to_batches()[0])
    orphan.stage()
    sink.close()
    again = spec.connect("words_table", "words", SCHEMA)
    assert again.open(RunIdentity("words", 2)) == Held(2, 1, {"s": {"a": 2}}, None)
    assert again.sweep(below_epoch=3) == 1
    back = EpochRecord("words", 3, 2, {"s": {"a": 1}}, rewound_to=1)
    again.publish([Publication(back, ())], Held())
    again.close()
    assert stored(hostile, "SELECT id FROM mart.new") == [("a",)]
    types = (
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'mart.new'::regclass AND attnum > 0"
    )
    assert stored(hostile, types) == [("text",), ("text",), ("date",), ("bytea",), ("bigint",)]


def test_a_takeover_ends_the_session_that_holds_the_ledger_row_by_the_catalogs_own_words(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connectors.postgres.sink.TAKEOVER_LOCK_TIMEOUT", "100ms")
    spec = postgres_spec(hostile, "mart.words", mode="upsert", key=("id",))
    first = spec.connect("words_table", "words", SCHEMA)
    first.open(RunIdentity("words", 1))
    publish(first, 1, rows(SCHEMA, "a"), "carried")
    with psycopg.connect(make_conninfo(hostile, options="")) as holder:
        holder.execute("SELECT * FROM mart.holdfast_ledger FOR UPDATE")
        holder.execute("UPDATE mart.holdfast_ledger SET updated_at = now()")
        second = spec.connect("words_table", "words", SCHEMA)
        assert second.open(RunIdentity("words", 2)).epoch == 1
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
    first.close()
    second.close()
