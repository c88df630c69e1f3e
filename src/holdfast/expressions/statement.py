"""A ``select`` statement over one table, parted into what ``select`` and ``filter`` take: its items, and a condition.

Only the text is parted here, at words and commas outside of parentheses; what an item or a condition means is said by
:mod:`holdfast.expressions.compile`, as for ``select`` and ``filter``.  Any other clause, a name for the table, and
whatever sqlglot and Spark may read in two ways make a statement Spark's to evaluate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import sqlglot
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

from holdfast.expressions.compile import UNLIKE
from holdfast.expressions.text import query_of

_OPENED = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSED = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})
_BETWEEN_TOKENS = frozenset(" \t\r\n")
"""What sqlglot and Spark both take for nothing."""


@dataclass(frozen=True)
class Statement:
    """A statement that is nothing but a projection of one table, and perhaps a filter before it.

    Parameters
    ----------
    items : tuple of str
        Its select list, each item as it is written.
    condition : str, optional
        What follows ``where``.
    """

    items: tuple[str, ...]
    condition: str | None


def statement_of(query: str, table: str) -> Statement | None:
    """Return the parts of a statement; None when it is anything but items, the table, and perhaps a condition.

    Parameters
    ----------
    query : str
        A statement, in Spark SQL.
    table : str
        The one table that it may read, in lower case.

    Examples
    --------
    >>> statement_of("select k, v * 2 as v from input where v > 0", "input")
    Statement(items=('k', 'v * 2 as v'), condition='v > 0')
    >>> statement_of("select k from input order by k", "input") is None
    True
    """
    tokens = _tokens(query)
    if tokens is None or _is_qualified(tokens, table):
        return None
    top = list(_outside_parentheses(tokens))
    start = next((place for place in top if tokens[place].token_type is TokenType.FROM), None)
    if start is None or tokens[0].token_type is not TokenType.SELECT:
        return None
    commas = [place for place in top if place < start and tokens[place].token_type is TokenType.COMMA]
    items = [tokens[before + 1 : after] for before, after in pairwise([0, *commas, start])]
    of, rest = tokens[start + 1 : start + 2], tokens[start + 2 :]
    if not all(items) or items[0][0].token_type is TokenType.ALL or not _is_table(of, table):
        return None
    if rest and (rest[0].token_type is not TokenType.WHERE or len(rest) == 1 or _may_rename(rest)):
        return None
    known = query_of(query)  # by its tree: there is no other clause, and no further query
    if known is None or known.items is None or len(known.items) != len(items):
        return None
    return Statement(tuple(_text(query, item) for item in items), _text(query, rest[1:]) if rest else None)


def _tokens(query: str) -> list[Token] | None:
    """Return the tokens of a text that sqlglot and Spark cut alike; None of every other one."""
    if UNLIKE.search(query):
        return None
    try:
        tokens = sqlglot.tokenize(query, read="spark")
    except SqlglotError:
        return None
    gaps = (query[before.end + 1 : after.start] for before, after in pairwise(tokens))
    if not tokens or not all(_BETWEEN_TOKENS.issuperset(gap) for gap in gaps):
        return None
    return tokens


def _outside_parentheses(tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the places of tokens outside of all parentheses and brackets."""
    depth = 0
    for place, token in enumerate(tokens):
        depth -= token.token_type in _CLOSED
        if depth == 0 and token.token_type not in _OPENED | _CLOSED:
            yield place
        depth += token.token_type in _OPENED


def _is_qualified(tokens: Sequence[Token], table: str) -> bool:
    """Return whether a name begins with the table's: to a ``select`` that is the field of a struct column."""
    return any(before.text.lower() == table and after.token_type is TokenType.DOT for before, after in pairwise(tokens))


def _is_table(tokens: Sequence[Token], table: str) -> bool:
    return len(tokens) == 1 and tokens[0].token_type is TokenType.VAR and tokens[0].text.lower() == table


def _may_rename(tokens: Sequence[Token]) -> bool:
    """Return whether Spark may take ``where (p)`` for a name of the table, with a name for its column."""
    kinds = [token.token_type for token in tokens[1:4]]
    return kinds[0] is TokenType.L_PAREN and kinds[2:] in ([], [TokenType.R_PAREN])


def _text(query: str, tokens: Sequence[Token]) -> str:
    return query[tokens[0].start : tokens[-1].end + 1]
