"""A model whose code has changed is another model (design/0046)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import holdfast as hf
from holdfast.models.identity import code_digest

CODE = """
LIMIT = 3

def cut(rows):
    return rows[:LIMIT]

class Base:
    pad = ("x", 1)

    def shape(self, rows):
        return cut(rows)

class Model(Base):
    def __call__(self, rows):
        return self.shape(rows)

    @staticmethod
    def once(rows):
        return rows

    @property
    def size(self):
        return 4

def called(rows):
    return (lambda given: cut(given))(rows)

def wrapped(rows, other=None):
    return rows

def around(function):
    def inner(rows):
        return function(rows)
    return inner

decorated = around(wrapped)
"""


def module(code: str = CODE, name: str = "of_the_user") -> dict[str, Any]:
    made: dict[str, Any] = {"__name__": name}
    exec(compile(code, name, "exec"), made)
    return made


@pytest.mark.parametrize("name", ["Model", "called", "decorated"])
def test_the_same_code_is_the_same_model_wherever_it_is_defined(name):
    assert code_digest(module()[name]) == code_digest(module(name="__main__")[name])


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("called", "rows[:LIMIT]", "rows[LIMIT:]"),
        ("called", "LIMIT = 3", "LIMIT = 4"),
        ("called", "cut(given)", "cut(given[1:])"),
        ("Model", "rows[:LIMIT]", "rows[LIMIT:]"),
        ("Model", "return cut(rows)", "return cut(cut(rows))"),
        ("Model", '("x", 1)', '("x", 2)'),
        ("Model", "        return rows\n", "        return 2 * rows\n"),
        ("Model", "return 4", "return 5"),
        ("decorated", "other=None", "other=0"),
        ("decorated", "return function(rows)", "return function(rows) + rows"),
    ],
)
def test_what_the_code_refers_to_in_its_module_counts(name, before, after):
    assert before in CODE
    assert code_digest(module()[name]) != code_digest(module(CODE.replace(before, after))[name])


def test_what_it_does_not_refer_to_does_not():
    assert code_digest(module()["called"]) == code_digest(module(CODE.replace("return 4", "return 5"))["called"])


def test_an_object_and_a_partial_count_with_what_they_hold():
    made = module()
    one, other = made["Model"](), made["Model"]()
    assert code_digest(one) == code_digest(other)
    other.threshold = 0.5
    assert code_digest(one) != code_digest(other)
    assert code_digest(partial(made["wrapped"], other=1)) != code_digest(partial(made["wrapped"], other=2))
    changed = module(CODE.replace("rows[:LIMIT]", "rows[LIMIT:]"))
    assert code_digest(partial(made["called"])) != code_digest(partial(changed["called"]))


def test_a_default_that_is_given_by_name_alone_counts():
    code = "def called(rows, *, limit=3): return rows[:limit]"
    assert code_digest(module(code)["called"]) != code_digest(module(code.replace("3", "4"))["called"])


@pytest.mark.slow
def test_code_is_the_same_after_a_journey():
    from holdfast.spark import private

    for name in ("called", "decorated"):
        fn = module()[name]
        moved = private.unpickled(private.pickled(hf.shared(fn, "n BIGINT")))._declared
        assert moved.fn is not fn
        assert code_digest(moved.fn) == code_digest(fn)
        assert moved.identity == hf.shared(fn, "n BIGINT")._declared.identity


def model(fn: Any = None, schema: str = "n BIGINT", **more: Any) -> str:
    return hf.shared(fn or module()["called"], schema, **more)._declared.identity


def test_what_is_declared_otherwise_is_another_model():
    others = [
        model(name="other"),
        model(schema="m BIGINT"),
        model(version="2"),
        model(inputs="n BIGINT"),
        model(max_batch=8),
        model(max_delay="6 ms"),
        model(module()["wrapped"], setup=lambda: None),
        model(module()["wrapped"], setup=lambda: 1),
        model(module()["wrapped"], setup=lambda device: None, device="cuda:0"),
        model(module()["wrapped"], setup=lambda device: None, device="cuda:1"),
    ]
    assert model() == model()
    assert len({model(), *others}) == len(others) + 1
