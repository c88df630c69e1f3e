"""Mistakes in an expression that its text shows: functions that Spark has not, and arithmetic with texts."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from sqlglot import exp

from holdfast.expressions.functions import FUNCTIONS
from holdfast.expressions.text import plain_tree


def mistake_in(text: str, strings: Collection[str]) -> tuple[str, str] | None:
    """Return why an expression is wrong, and the cure; None where nothing wrong can be seen.

    Parameters
    ----------
    text : str
        An expression, or an item of a ``select``.
    strings : collection of str
        Columns that are texts, in lower case.

    Examples
    --------
    >>> mistake_in("roud(amount, 2)", ())[1]
    'did you mean round?'
    >>> mistake_in("city * 2", {"city"})[0]
    "'city' is a STRING, and Spark computes with it as a number: a row fails whose text is none."
    >>> mistake_in("round(amount)", ()) is None
    True
    """
    tree = plain_tree(text)
    if tree is None:
        return None
    for call in tree.find_all(exp.Anonymous):
        name = str(call.this).lower()
        if name not in FUNCTIONS:
            near = get_close_matches(name, FUNCTIONS, n=1)
            do = f"did you mean {near[0]}?" if near else "look up its name in Spark's list of functions."
            return f"Spark has no function {name!r}.", do
    for sign in tree.find_all(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod):
        for side in (sign.this, sign.expression):
            if isinstance(side, exp.Column) and len(side.parts) == 1 and side.name.lower() in strings:
                why = f"{side.name!r} is a STRING, and Spark computes with it as a number: a row fails whose text is none."  # noqa: E501
                return why, f"write try_cast({side.name} as double), or cast it if every text is a number."
    return None
