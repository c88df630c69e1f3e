"""Errors of joins, look-ups and rows of the latest, with their cures: as in ``scenarios``."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from holdfast.connectors.sqlite.lookup_table import SqliteLookupTable
from holdfast.operators.lookup.tables import table_of
from holdfast.testing import drive
from tests.spec.cures.scenarios import Scenario, source

ORDERS = "id BIGINT, t TIMESTAMP"
TICKS = "id BIGINT, t BIGINT"
CODES = pa.table({"id": [1, 1], "name": ["one", "uno"]})
UNIQUE = pa.table({"id": [1], "name": ["one"]})


def orders(schema: str = ORDERS) -> hf.Stream:
    """Return a stream."""
    return source("orders", schema=schema)


def payments(schema: str = "id BIGINT, t TIMESTAMP, paid BIGINT") -> hf.Stream:
    """Return another one."""
    return source("payments", schema=schema)


def joined(right: hf.Stream | None = None, left: hf.Stream | None = None, **given: Any) -> Any:
    """Run a join of no rows: its types are looked at."""
    given = {"on": "id", "within": "2 h", **given}
    left, right = left or orders(), right or payments()
    stream = hf.join(left, right, name="paid", **given)
    return drive(stream, {"orders": [[]], "payments": [[]]})


def looked_up(table: Any, stream: hf.Stream | None = None, **given: Any) -> Any:
    """Run a look-up of one row."""
    found = hf.lookup(orders() if stream is None else stream, table, name="named", **{"on": "id", **given})
    return drive(found, {"orders": [[{"id": 1}]]})


def by_time(**given: Any) -> hf.Stream:
    """Return rows with what a stream of changes says."""
    changes = source("changes", schema="id BIGINT, at TIMESTAMP, t STRING, kind STRING", timestamp="at")
    return hf.lookup(orders(), hf.table(changes, key="id"), name="named", **{"on": "id", **given})


def written(work: Path) -> Path:
    """Write a file of Parquet; return its path."""
    pq.write_table(UNIQUE, work / "codes.parquet")
    return work / "codes.parquet"


def queried(work: Path, query: str) -> SqliteLookupTable:
    """Return a query of a file that exists."""
    with closing(sqlite3.connect(work / "shop.db")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS codes (id INTEGER, name TEXT)")
    return hf.lookup_table.sqlite(work / "shop.db", query)


def unnamed() -> hf.Stream:
    """Return a stream whose columns are not known."""
    return source() | hf.map(lambda df: df, timestamp="t", name="mapped")


PAIRING = {
    # --- joins ---------------------------------------------------------------------------------------------------
    "a join that never forgets": Scenario(
        "operators/join/spec.py:_range InvalidPipeline",
        lambda work: joined(within=None),
        'within=("-1 h", "2 h")',
        lambda work: joined(within=("-1 h", "2 h")),
    ),
    "a join that never forgets, by its other cure": Scenario(
        "operators/join/spec.py:_range InvalidPipeline",
        lambda work: joined(within=None),
        'forget_after="30 d"',
        lambda work: joined(within=None, forget_after="30 d"),
    ),
    "a join that never forgets, on purpose": Scenario(
        "operators/join/spec.py:_range InvalidPipeline",
        lambda work: joined(within=None),
        "forget_after=None",
        lambda work: joined(within=None, forget_after=None),
    ),
    "a join within one column": Scenario(
        "operators/join/spec.py:_range InvalidPipeline 2",
        lambda work: joined(within="t"),
        'within=("0 s", "t")',
        lambda work: joined(within=("0 s", "t")),
    ),
    "a join within three limits": Scenario(
        "operators/join/spec.py:_range InvalidPipeline 3",
        lambda work: joined(within=("-1 h", "0 s", "2 h")),
        'within="2 h"',
        lambda work: joined(within="2 h"),
    ),
    "a join with two ways to say how far": Scenario(
        "operators/join/spec.py:_range InvalidPipeline 4",
        lambda work: joined(within="2 h", forget_after="3 h"),
        'within="2 h"',
        lambda work: joined(within="2 h"),
    ),
    "a join whose range begins at any time": Scenario(
        "operators/join/spec.py:_check_waits InvalidPipeline",
        lambda work: joined(left=orders(f"{ORDERS}, opens TIMESTAMP"), within=("opens", "2 h")),
        'forget_after="30 d"',
        lambda work: joined(left=orders(f"{ORDERS}, opens TIMESTAMP"), within=("opens", "2 h"), forget_after="30 d"),
    ),
    "a join by a range of the right rows": Scenario(
        "operators/join/spec.py:_check_limits InvalidPipeline",
        lambda work: joined(payments(f"{ORDERS}, closes TIMESTAMP"), within=("0 s", "closes")),
        "hf.join(right, left, ...)",
        lambda work: joined(orders(), payments(f"{ORDERS}, closes TIMESTAMP"), within=("0 s", "closes")),
    ),
    "a join by a limit of another type": Scenario(
        "operators/join/spec.py:_limit_field InvalidPipeline",
        lambda work: joined(payments(TICKS), orders(f"{TICKS}, closes INT"), within=(0, "closes")),
        'left | hf.select("* except (closes)", closes="CAST(closes AS BIGINT)")',
        lambda work: joined(
            payments(TICKS),
            orders(f"{TICKS}, closes INT") | hf.select("* except (closes)", closes="CAST(closes AS BIGINT)"),
            within=(0, "closes"),
        ),
    ),
    "a join whose limits are exchanged": Scenario(
        "operators/join/spec.py:Join._pair_range InvalidPipeline",
        lambda work: joined(within=("2 h", "-1 h")),
        'within=("-1 h", "2 h")',
        lambda work: joined(within=("-1 h", "2 h")),
    ),
    "a join within ticks of a TIMESTAMP": Scenario(
        "operators/join/spec.py:_ticks InvalidPipeline",
        lambda work: joined(within=100),
        'within="2 h"',
        lambda work: joined(within="2 h"),
    ),
    "a join of a stream with itself": Scenario(
        "operators/join/spec.py:join InvalidPipeline 2",
        lambda work: [hf.join(each, each, on="id", within="2 h") for each in [orders()]],
        'stream | hf.select("*")',
        lambda work: [
            drive(hf.join(each, each | hf.select("*"), on="id", within="2 h"), {"orders": [[]]}) for each in [orders()]
        ],
    ),
    "a join of another kind": Scenario(
        "operators/join/spec.py:join InvalidPipeline 3",
        lambda work: joined(how="outer"),
        'within="2 h"',
        lambda work: joined(),
    ),
    "a suffix that is no text": Scenario(
        "operators/join/spec.py:join InvalidPipeline 4",
        lambda work: joined(suffix=None),
        'suffix="_2"',
        lambda work: joined(suffix="_2"),
    ),
    "a key whose name the right stream has twice": Scenario(
        "operators/join/spec.py:_check_renamed InvalidPipeline",
        lambda work: joined(payments("key BIGINT, id STRING, t TIMESTAMP"), on={"id": "key"}),
        'hf.select("* except (id)", other="id")',
        lambda work: joined(
            payments("key BIGINT, id STRING, t TIMESTAMP") | hf.select("* except (id)", other="id"), on={"id": "key"}
        ),
    ),
    "disorder of no stream of the join": Scenario(
        "operators/join/spec.py:_disorder InvalidPipeline",
        lambda work: joined(disorder={"payments": "5 min"}),
        'disorder={"right": "5 min"}',
        lambda work: joined(disorder={"right": "5 min"}),
    ),
    "a suffix that gives a name that is taken": Scenario(
        "operators/join/rules.py:right_names InvalidPipeline",
        lambda work: joined(payments("id BIGINT, t TIMESTAMP, t_right BIGINT")),
        'suffix="_2"',
        lambda work: joined(payments("id BIGINT, t TIMESTAMP, t_right BIGINT"), suffix="_2"),
    ),
    "the time of a pair in a column that is there": Scenario(
        "operators/join/rules.py:check_added InvalidPipeline",
        lambda work: joined(payments("id BIGINT, t TIMESTAMP, joined_time BIGINT")),
        'timestamp="pair_time"',
        lambda work: joined(payments("id BIGINT, t TIMESTAMP, joined_time BIGINT"), timestamp="pair_time"),
    ),
    # --- look-ups ------------------------------------------------------------------------------------------------
    "a table with two rows of one key": Scenario(
        "operators/lookup/spec.py:TableLookup.checked InvalidPipeline",
        lambda work: looked_up(CODES),
        'duplicates="all"',
        lambda work: looked_up(CODES, duplicates="all"),
    ),
    "a column that the stream has": Scenario(
        "operators/lookup/spec.py:_check_new InvalidPipeline",
        lambda work: looked_up(pa.table({"id": [1], "t": ["x"]})),
        'columns={"table_t": "t"}',
        lambda work: looked_up(pa.table({"id": [1], "t": ["x"]}), columns={"table_t": "t"}),
    ),
    "a look-up on no column": Scenario(
        "operators/lookup/spec.py:pairs_of InvalidPipeline",
        lambda work: looked_up(UNIQUE, on=[]),
        'on="id"',
        lambda work: looked_up(UNIQUE, on="id"),
    ),
    "a look-up of columns by number": Scenario(
        "operators/lookup/spec.py:added_of InvalidPipeline",
        lambda work: looked_up(UNIQUE, columns=[1]),
        'columns={"customer_name": "name"}',
        lambda work: looked_up(UNIQUE, columns={"customer_name": "name"}),
    ),
    "columns of a look-up that adds none": Scenario(
        "operators/lookup/look_up.py:lookup InvalidPipeline 3",
        lambda work: looked_up(UNIQUE, how="semi", columns=["name"]),
        "leave columns= out",
        lambda work: looked_up(UNIQUE, how="semi"),
    ),
    "disorder of a table that is loaded": Scenario(
        "operators/lookup/look_up.py:lookup InvalidPipeline 5",
        lambda work: looked_up(UNIQUE, disorder="5 s"),
        "leave it out",
        lambda work: looked_up(UNIQUE),
    ),
    "refresh of a table that is a stream": Scenario(
        "operators/lookup/look_up.py:lookup InvalidPipeline 4",
        lambda work: by_time(refresh="5 s", columns=["kind"]),
        "leave them out",
        lambda work: by_time(columns=["kind"]),
    ),
    "a column of a changing table that the stream has": Scenario(
        "operators/lookup/as_of.py:AsOfLookup.shape InvalidPipeline",
        lambda work: by_time(),
        'columns={"table_t": "t"}',
        lambda work: by_time(columns={"table_t": "t"}),
    ),
    "a table of what cannot be loaded": Scenario(
        "operators/lookup/tables.py:table_of InvalidPipeline",
        lambda work: looked_up({"id": 1}),
        "the path of a Parquet file",
        lambda work: looked_up(written(work)),
    ),
    "a file that is not there": Scenario(
        "operators/lookup/tables.py:ParquetTable._read Unavailable",
        lambda work: looked_up(work / "codes.parquet"),
        "name a Parquet file",
        lambda work: looked_up(written(work)),
    ),
    "a file without that column": Scenario(
        "operators/lookup/tables.py:_require InvalidPipeline",
        lambda work: table_of(written(work)).load(["id", "nme"]),
        "correct on= or columns=",
        lambda work: table_of(written(work)).load(["id", "name"]),
    ),
    "a query without that column": Scenario(
        "connectors/kit/queried_table.py:QueriedTable.load InvalidPipeline",
        lambda work: queried(work, "SELECT id FROM codes").load(["id", "name"]),
        "select it",
        lambda work: queried(work, "SELECT id, name FROM codes").load(["id", "name"]),
    ),
    # --- the latest rows -----------------------------------------------------------------------------------------
    "the latest rows of unknown columns": Scenario(
        "operators/aggregate/latest.py:_last InvalidPipeline",
        lambda work: hf.latest(unnamed(), by="origin"),
        "name them before: stream | hf.select(",
        lambda work: hf.latest(unnamed() | hf.select("origin", "n", "t"), by="origin"),
    ),
    "the latest rows of nothing but keys": Scenario(
        "operators/aggregate/latest.py:_last InvalidPipeline 2",
        lambda work: hf.latest(source(), by=["origin", "t", "n"]),
        "leave a column",
        lambda work: hf.latest(source(), by=["origin", "n"]),
    ),
    "combined streams of different timestamps": Scenario(
        "operators/aggregate/latest.py:combine InvalidPipeline 2",
        lambda work: hf.combine(
            orders(), source("names", schema="id BIGINT, since TIMESTAMP", timestamp="since"), by="id"
        ),
        'stream | hf.select("* except (since)", t="since")',
        lambda work: hf.combine(
            orders(),
            source("names", schema="id BIGINT, since TIMESTAMP, name STRING", timestamp="since")
            | hf.select("* except (since)", t="since"),
            by="id",
        ),
    ),
}
