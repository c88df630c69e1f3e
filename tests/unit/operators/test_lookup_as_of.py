"""``hf.table``: each row finds what was valid at its own event time, against a loop over all rows."""

import random

import pytest

import holdfast as hf
from holdfast.state import tables
from holdfast.testing import bound, close, drive
from holdfast.testing.drive import Drive

pytestmark = pytest.mark.slow

ORDERS = "customer STRING, t BIGINT, n BIGINT"
CUSTOMERS = "id STRING, since BIGINT, city STRING"


def looked_up(how="left", *, disorder=None, changes_disorder=None, **arguments):
    orders = hf.read.rows([], schema=ORDERS, timestamp="t", name="orders")
    customers = hf.read.rows([], schema=CUSTOMERS, timestamp="since", name="customers")
    table = hf.table(customers, key="id", disorder=changes_disorder)
    return hf.lookup(orders, table, on="customer", how=how, disorder=disorder, name="known", **arguments)


def order(customer, t, n=0):
    return {"customer": customer, "t": t, "n": n}


def change(customer, since, city):
    return {"id": customer, "since": since, "city": city}


def test_an_order_gets_the_row_that_is_valid_at_its_time_and_waits_until_that_is_known():
    epochs = {
        "orders": [[order("ann", 5), order("ann", 15)], [], []],
        "customers": [[change("ann", 0, "Rome")], [change("bob", 12, "Bonn")], [change("ann", 20, "Oslo")]],
    }
    found = [[(row["t"], row["city"]) for row in rows] for rows in drive(looked_up(), epochs)]
    assert found == [[], [(5, "Rome")], [(15, "Rome")]]  # a change of another customer says how far the table is


def test_columns_are_those_of_the_row_then_those_of_the_table_without_key_and_time():
    epochs = {"orders": [[order("ann", 5)], [close()]], "customers": [[change("ann", 5, "Rome")], [close()]]}
    (_, (row,)) = drive(looked_up(), epochs)
    assert row == {"customer": "ann", "t": 5, "n": 0, "city": "Rome"}
    stream = looked_up(columns={"at": "city", "valid_from": "since"})
    assert stream.columns == ("customer", "t", "n", "at", "valid_from")
    (_, (row,)) = drive(stream, epochs)
    assert (row["at"], row["valid_from"]) == ("Rome", 5)


@pytest.mark.parametrize(("how", "found"), [("inner", [1]), ("semi", [1]), ("anti", [2]), ("left", [1, 2])])
def test_which_rows_stay(how, found):
    epochs = {
        "orders": [[order("ann", 5, 1), order("eve", 6, 2)], [close()]],
        "customers": [[change("ann", 1, "Rome")], [close()]],
    }
    rows = drive(looked_up(how), epochs)[1]
    assert [row["n"] for row in rows] == found
    assert ("city" in rows[0]) == (how in ("inner", "left"))


def test_what_is_below_the_promise_of_an_input_is_late():
    epochs = {
        "orders": [[order("ann", 9), order("bob", 3)]],
        "customers": [[change("ann", 9, "a"), change("b", 1, "b")]],
    }
    rows = drive(looked_up().late, epochs)[0]
    assert [row["input"] for row in rows] == ["main", "table"]
    assert drive(looked_up(disorder=6, changes_disorder=8).late, epochs) == [[]]


def test_unmatched_rows_are_a_side_output():
    epochs = {"orders": [[order("eve", 5)], [close()]], "customers": [[], [close()]]}
    assert [row["customer"] for row in drive(looked_up().unmatched, epochs)[1]] == ["eve"]


def test_bounds_of_a_source_let_rows_go_too():
    epochs = {"orders": [[order("ann", 5)], []], "customers": [[change("ann", 1, "Rome")], [bound(6)]]}
    assert [len(rows) for rows in drive(looked_up(), epochs)] == [0, 1]


def reference(orders, changes):
    """Return each order with the city of the last change at or before it; of one time the last to arrive."""
    found = []
    for row in orders:
        valid = [each for each in changes if each["id"] == row["customer"] and each["since"] <= row["t"]]
        latest = max(enumerate(valid), key=lambda pair: (pair[1]["since"], pair[0]), default=(0, {"city": None}))[1]
        found.append((row["n"], latest["city"]))
    return sorted(found)


@pytest.mark.parametrize("seed", range(12))
def test_the_result_is_a_function_of_timestamps_however_rows_arrive_and_are_cut(seed):
    chance = random.Random(seed)
    disorder = chance.choice([0, 3])
    orders = [order(chance.choice("abc"), t, n) for n, t in enumerate(sorted(chance.choices(range(40), k=30)))]
    changes = [change(chance.choice("abcd"), t, f"c{t}") for t in sorted(chance.sample(range(40), 20))]
    wanted = reference(orders, changes)
    for buckets in (1, 3):
        stream = looked_up(disorder=disorder, changes_disorder=disorder)
        late_of = {
            name: sorted(rows, key=lambda row: row[time] + chance.uniform(0, disorder))
            for name, rows, time in (("orders", orders, "t"), ("customers", changes, "since"))
        }
        count = chance.randrange(1, 9)
        epochs = {name: [[] for _ in range(count)] for name in late_of}
        for name, rows in late_of.items():
            cuts = sorted(chance.choices(range(len(rows) + 1), k=count - 1))
            for at, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
                epochs[name][at] = rows[first:last]
            epochs[name].append([close()])
        found = drive(stream, epochs, buckets=buckets)
        assert sorted((row["n"], row["city"]) for rows in found for row in rows) == wanted


def test_state_is_the_latest_row_of_each_key_and_what_is_still_needed():
    customers = [[change("ann", t, f"c{t}"), change("bob", t, "b")] for t in range(0, 100, 10)]
    orders = [[order("eve", t)] for t in range(1, 100, 10)]
    driven = Drive(looked_up(), {"orders": orders, "customers": customers}, buckets=1)
    list(driven.tables())
    (state,) = map(tables.decode, driven.states["known"])
    assert state["slow_table"].num_rows <= 6  # of twenty
    assert state["waiting"].num_rows <= 1
    assert "bounds" not in state or not state["bounds"].num_rows  # a key that never comes again leaves nothing


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda stream, table: hf.lookup(stream, table, on="customer", refresh="1 min"), "tables that are loaded"),
        (lambda stream, table: hf.lookup(stream, table, on={"customer": "city"}), "its key is id"),
        (lambda stream, table: hf.lookup(stream, table, on="customer", columns=["n"]), "n"),
        (lambda stream, table: hf.lookup(stream, table, on="customer", columns={"n": "city"}), "second column 'n'"),
        (lambda stream, table: hf.table(stream, key="nobody"), "nobody"),
        (lambda stream, table: hf.table("customers", key="id"), "stands for the stream"),
        (lambda stream, table: hf.lookup(stream, "a.parquet", on="customer", disorder=3), "is for hf.table"),
    ],
)
def test_what_cannot_work_is_refused_with_its_cure(make, says):
    orders = hf.read.rows([], schema=ORDERS, timestamp="t", name="orders")
    customers = hf.read.rows([], schema=CUSTOMERS, timestamp="since", name="customers")
    with pytest.raises(hf.InvalidPipeline, match=says) as raised:
        make(orders, hf.table(customers, key="id"))
    assert raised.value.do
