"""How a run, or a shard, has ended, and what follows: whether it is started again.

What is final: ``Fenced`` (two would keep fencing each other), ``InvalidPipeline``, ``BadRow``, ``Diverged`` unless a
sink went back under a live run, and ``Corrupt`` unless it says that the next start restores.
"""

from __future__ import annotations

from enum import Enum

from holdfast.errors import STATE, BadRow, Corrupt, Diverged, Fenced, HoldfastError, InvalidPipeline, Unavailable


def is_final(error: HoldfastError) -> bool:
    """Return whether a restart would hit the same error again.

    Examples
    --------
    >>> is_final(Fenced("it")), is_final(HoldfastError("it")), is_final(Corrupt("it", participant="@state"))
    (True, False, False)
    """
    if isinstance(error, Corrupt):
        return error.participant != STATE
    if isinstance(error, BadRow):
        return not (error.is_isolated_later or error.is_mended_by_start)
    if isinstance(error, Diverged):
        return not error.is_mended_by_start
    return isinstance(error, InvalidPipeline | Fenced)


class Reaction(Enum):
    """What follows when a shard has failed."""

    AGAIN = "it is started again, for ever"
    FEW_TIMES = "it is started again, a number of times in a row at most"
    DOWN = "it stays down, and the others go on"
    ALL_STOP = "another controller has taken over: all shards stop"
    ALL_END = "the JVM is gone, and all shards with it"


def reaction(error: HoldfastError, *, has_jvm: bool) -> Reaction:
    """Return what follows when a shard has failed (design/0048, section 5).

    Parameters
    ----------
    error : HoldfastError
        Why.
    has_jvm : bool
        Whether the JVM of all shards answers.

    Examples
    --------
    >>> reaction(Unavailable("the table does not answer"), has_jvm=True).name
    'AGAIN'
    """
    if isinstance(error, Fenced):
        return Reaction.ALL_STOP
    if not has_jvm:
        return Reaction.ALL_END
    if is_final(error):
        return Reaction.DOWN
    return Reaction.AGAIN if isinstance(error, Unavailable) else Reaction.FEW_TIMES
