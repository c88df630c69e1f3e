"""``${VARIABLE}`` in addresses and secrets: filled in on the driver when a run starts, so that no graph has them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote

from holdfast.errors import InvalidPipeline

VARIABLE = re.compile(r"\$\{(\w+)\}")


def filled_in(
    text: str, what: str, encode: Callable[[str], str] = str, environment: Mapping[str, str] = os.environ
) -> str:
    """Return a text with the variables that it names filled in.

    Parameters
    ----------
    text : str
        May hold secrets.
    what : str
        What it is, for the error.
    encode : callable
        Makes of a variable's value what may stand in the text.
    environment : mapping of str to str
        The variables.

    Raises
    ------
    InvalidPipeline
        If one is not set.

    Examples
    --------
    >>> filled_in("https://${HOST}/rows", "the address", environment={"HOST": "api.example"})
    'https://api.example/rows'
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise InvalidPipeline(
                f"{what} names the environment variable {match[1]}, which is not set.",
                why="it is filled in when the run starts, on the driver.",
                do=f"set it: export {match[1]}=...",
            )
        return encode(environment[match[1]])

    return VARIABLE.sub(value, text)


def filled_in_url(text: str, what: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return an address with its variables filled in: percent-encoded, apart from one that is the whole text.

    Raises
    ------
    InvalidPipeline
        If one is not set.

    Examples
    --------
    >>> filled_in_url("redis://:${SECRET}@host", "the address", {"SECRET": "a/b"})
    'redis://:a%2Fb@host'
    >>> filled_in_url("${URL}", "the address", {"URL": "redis://host/1"})
    'redis://host/1'
    """
    is_whole = VARIABLE.fullmatch(text) is not None
    return filled_in(text, what, str if is_whole else lambda value: quote(value, safe=""), environment)
