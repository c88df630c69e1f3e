"""Lifecycle hooks: what is called, with what, and what becomes of one that raises (design/0013, section 2)."""

import logging
import sys

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.graph.hooks import Lifecycle


@pytest.mark.parametrize("given", [{"on_start": print}, print, None])
def test_hooks_that_are_none_are_refused_when_the_pipeline_is_built(given):
    rows = hf.read.rows([[{"k": 1}]], schema="k BIGINT", name="rows")
    with pytest.raises(InvalidPipeline) as refused:
        hf.Pipeline("trips", rows | hf.write.memory(name="shown"), hooks=given)
    assert "hooks= of pipeline 'trips', built at " in refused.value.what
    assert "hooks=hf.Hooks(on_start=function)" in refused.value.do


def boom(*_):
    raise ZeroDivisionError("of the hook")


def recording(calls, **more):
    def hook(name):
        return lambda *arguments: calls.append((name, *arguments))

    names = ("on_setup", "on_start", "on_recover", "on_error", "on_finish", "on_teardown")
    return hf.Hooks(**({name: hook(name) for name in names} | more))


def test_hooks_are_called_in_their_order_with_what_they_are_given():
    calls = []
    life = Lifecycle(recording(calls, on_checkpoint=lambda: {"n": 1}), "trips")
    life.set_up()
    life.begin({"n": 0}, has_value=True)
    assert life.ask() == {"n": 1}
    life.finish()
    life.tear_down()
    life.tear_down()
    assert calls == [("on_setup",), ("on_recover", {"n": 0}), ("on_start",), ("on_finish",), ("on_teardown",)]


def test_without_a_value_there_is_nothing_to_recover_and_none_is_a_value():
    calls = []
    Lifecycle(recording(calls), "trips").begin(None, has_value=False)
    Lifecycle(recording(calls), "trips").begin(None, has_value=True)
    assert calls == [("on_start",), ("on_recover", None), ("on_start",)]


@pytest.mark.parametrize("name", ["on_setup", "on_start", "on_recover", "on_checkpoint"])
def test_a_hook_that_raises_before_the_end_is_named(name):
    life = Lifecycle(hf.Hooks(**{name: boom}), "trips")
    calls = {
        "on_setup": life.set_up,
        "on_start": lambda: life.begin(1, has_value=True),
        "on_recover": lambda: life.begin(1, has_value=True),
        "on_checkpoint": life.ask,
    }
    with pytest.raises(InvalidPipeline) as caught:
        calls[name]()
    assert caught.value.what == f"{name} of pipeline 'trips' raised ZeroDivisionError."
    assert "of the hook" in caught.value.why
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_hook_that_raises_at_the_end_hides_nothing_and_is_told_of(caplog):
    life = Lifecycle(hf.Hooks(on_error=boom, on_finish=boom, on_teardown=boom), "trips")
    life.set_up()
    with caplog.at_level(logging.ERROR, "holdfast"):
        life.fail(Unavailable("away"))
        life.finish()
        life.tear_down()
    assert [message.split()[0] for message in caplog.messages] == ["on_error", "on_finish", "on_teardown"]


def test_a_hook_that_exits_ends_no_thread_of_the_run_instead_of_the_run(caplog):
    life = Lifecycle(hf.Hooks(on_checkpoint=lambda: sys.exit(0), on_finish=lambda: sys.exit(0)), "trips")
    with pytest.raises(InvalidPipeline, match="on_checkpoint of pipeline 'trips' raised SystemExit"):
        life.ask()
    life.finish()
    assert [message.split()[0] for message in caplog.messages] == ["on_finish"]


def test_what_was_not_set_up_is_not_torn_down():
    calls = []
    life = Lifecycle(recording(calls, on_setup=boom), "trips")
    with pytest.raises(InvalidPipeline):
        life.set_up()
    life.tear_down()
    assert calls == []


def test_an_error_comes_with_the_node_that_is_concerned():
    calls = []
    life = Lifecycle(recording(calls), "trips")
    known, unknown = Unavailable("away", participant="trips_table"), Unavailable("away")
    life.fail(known)
    life.fail(unknown, rows="rows")
    assert calls == [("on_error", known, "trips_table", None), ("on_error", unknown, None, "rows")]


def test_a_hook_must_be_a_function_and_hooks_are_no_part_of_the_graph():
    with pytest.raises(InvalidPipeline, match="on_start=3 is not a function"):
        hf.Hooks(on_start=3)
    rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
    plain = hf.Pipeline("trips", rows | hf.write.memory(name="out"))
    hooked = hf.Pipeline("trips", rows | hf.write.memory(name="out"), hooks=hf.Hooks(on_start=boom))
    assert plain.fingerprint() == hooked.fingerprint()


def test_a_hook_with_a_parameter_for_it_is_told_of_which_shard_it_is_called():
    calls = []

    def note(*arguments, shard):
        calls.append((*arguments, shard))

    hooks = hf.Hooks(on_start=note, on_checkpoint=note, on_recover=note, on_error=note, on_finish=note)
    life = Lifecycle(hooks, "trips-3", 3)
    life.begin({"n": 1}, has_value=True)
    life.ask()
    life.finish()
    assert calls == [({"n": 1}, 3), (3,), (3,), (3,)]
    error = Unavailable("it is away.")
    Lifecycle(hooks, "trips", None).fail(error)
    assert calls[-1] == (error, None, None, None)
    seen = {}
    Lifecycle(hf.Hooks(on_recover=seen.update), "trips-3", 3).begin({"n": 1}, has_value=True)
    assert seen == {"n": 1}


@pytest.mark.parametrize("name", ["on_setup", "on_teardown"])
def test_a_hook_that_is_called_once_for_all_shards_is_told_of_none(name):
    with pytest.raises(InvalidPipeline, match="has a parameter 'shard'"):
        hf.Hooks(**{name: lambda *, shard: None})
