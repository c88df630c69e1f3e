"""What a checkpoint says of itself."""

import json
import socket

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from holdfast.cli.words import inspection_lines
from holdfast.connectors.reading.from_time import from_time
from holdfast.connectors.reading.until import up_to
from holdfast.json_values import as_json
from holdfast.observe.inspection import inspect_checkpoint
from holdfast.observe.time_indexes import TimeIndexReport
from holdfast.status import STATE_REPORT_KEY, OperatorStatus, Wait
from holdfast.store.paths import open_store


def test_the_owner_is_the_highest_generation_by_number_and_not_by_the_text_of_its_key(tmp_path):
    store = open_store(str(tmp_path))
    for generation in (99_999_999, 100_000_000, 2):
        noted = {"at_us": 1, "host": socket.gethostname(), "pid": generation}
        store.put(f"generations/{generation:08d}.json", json.dumps(noted).encode())
    owner = inspect_checkpoint(str(tmp_path), store, tmp_path).owner
    assert (owner.generation, owner.pid) == (100_000_000, 100_000_000)


def test_a_checkpoint_that_nobody_took_over_has_no_owner(tmp_path):
    assert inspect_checkpoint(str(tmp_path), open_store(str(tmp_path)), tmp_path).owner.generation == 0


WAIT = Wait({"k": "a"}, "lidar", 1_700_000_000_000_000)
OPERATORS = (
    OperatorStatus(
        "aligned", "sync", 3, 900, waiting_rows=2, late=1, waits=(Wait({"k": "a"}, "lidar", 1_700_000_000_000_000),)
    ),
    OperatorStatus("sums", "aggregate", 1, 64),
)


def keep(store, **more):
    operators = [operator.as_json() for operator in OPERATORS]
    report = {"format": 1, "epoch": 7, "generation": 2, "at_us": 1_700_000_001_000_000, "operators": operators}
    store.put(STATE_REPORT_KEY, json.dumps(report | more).encode())


def test_what_stateful_operators_reported_last_is_shown_with_who_waits_on_whom(tmp_path):
    store = open_store(str(tmp_path))
    keep(store)
    inspection = inspect_checkpoint(str(tmp_path), store, tmp_path)
    assert inspection.state.operators == OPERATORS
    assert as_json(inspection)["state"]["operators"][0]["waits"][0]["input"] == "lidar"
    text = "\n".join(inspection_lines(inspection))
    assert "state       as of epoch 7 of generation 2, noted 2023-11-14T22:13:21Z" in text
    assert "  aligned  sync, state 3 rows, 900 B; waiting 2, late 1" in text
    assert "    k=a waits on lidar since 2023-11-14T22:13:20Z, which has sent nothing yet: 0 rows" in text
    assert "  sums  aggregate, state 1 rows, 64 B" in text


def test_rejected_rows_of_sources_are_shown_with_their_reasons(tmp_path):
    store = open_store(str(tmp_path))
    keep(store, operators=[], rejects={"flights": {"it is not UTF-8": 2, "column 'v' is declared int64": 1}})
    text = "\n".join(inspection_lines(inspect_checkpoint(str(tmp_path), store, tmp_path)))
    assert "  flights  rejects 3 (it is not UTF-8 2, column 'v' is declared int64 1)" in text


def test_a_checkpoint_without_a_report_says_nothing_of_state(tmp_path):
    inspection = inspect_checkpoint(str(tmp_path), open_store(str(tmp_path)), tmp_path)
    assert inspection.state is None
    assert not any(line.startswith("state") for line in inspection_lines(inspection))


def test_a_report_that_cannot_be_read_hides_nothing_else(tmp_path):
    store = open_store(str(tmp_path))
    for damaged in (b"{", b'{"format": 1}', b'{"operators": [{"mood": 1}], "epoch": 1, "generation": 1, "at_us": 1}'):
        store.put(STATE_REPORT_KEY, damaged)
        inspection = inspect_checkpoint(str(tmp_path), store, tmp_path)
        assert STATE_REPORT_KEY in inspection.state.problem
        assert any(STATE_REPORT_KEY in line for line in inspection_lines(inspection))


def test_files_that_the_time_index_lets_nobody_read_are_counted_and_those_with_rows_for_later(tmp_path):
    for name, files in {"trips": range(4), "other": range(2)}.items():
        (tmp_path / name).mkdir()
        for number in files:
            path = tmp_path / name / f"{number}.parquet"
            pq.write_table(pa.table({"t": pa.array([10 * number, 10 * number + 5])}), path)
        stream = hf.read.files(str(tmp_path / name), format="parquet", schema="t BIGINT", timestamp="t", name=name)
        spec = stream.node.source_spec
        read = from_time(up_to(spec, 25), 12) if name == "trips" else spec
        source = read.open(name, str(tmp_path / "ckpt" / "sources" / name))
        source.latest(source.initial(), bounded=False)
    inspection = inspect_checkpoint(str(tmp_path), open_store(str(tmp_path / "ckpt")), tmp_path / "ckpt")
    assert inspection.time_indexes == (TimeIndexReport("trips", 4, 1, 1, 2),)
    assert "time index  trips: 1 of 4 files passed over (blocks: 1); 2 have rows for a later run" in list(
        inspection_lines(inspection)
    )
    assert as_json(inspection)["time_indexes"][0]["owing"] == 2
