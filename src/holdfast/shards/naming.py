"""Names and places of shards: shard 0 is the pipeline itself, shard 3 of ``trips`` is ``trips-3`` (design/0048, 2).

And of backfills: ``trips-backfill_3f2a91c0``, below the checkpoint of ``trips`` (design/0056).

Invariant: a user's name has no hyphen, so the name of a shard other than 0, or of a backfill, is no user's pipeline.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.errors import invariant

SHARDS_MAX = 1000
"""How many shards a pipeline can have."""

_NUMBERED = re.compile(r"(.+)-([1-9][0-9]*)")
_OF_BACKFILL = re.compile(r"(.+)-backfill_[0-9a-f]+")


def shard_name(pipeline: str, shard: int) -> str:
    """Return the name of a shard in its checkpoint and in every ledger.

    Parameters
    ----------
    pipeline : str
        The user's name.
    shard : int
        0 to ``SHARDS_MAX - 1``.

    Examples
    --------
    >>> shard_name("trips", 0), shard_name("trips", 3)
    ('trips', 'trips-3')
    """
    invariant(0 <= shard < SHARDS_MAX, f"{pipeline!r} has no shard {shard}.")
    return f"{pipeline}-{shard}" if shard else pipeline


def shard_of(name: str) -> tuple[str, int]:
    """Return the pipeline and the number of the shard of this name.

    Examples
    --------
    >>> shard_of("trips-3"), shard_of("trips")
    (('trips', 3), ('trips', 0))
    """
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, 0)


def shard_checkpoint(checkpoint: str, shard: int) -> str:
    """Return where the checkpoint of a shard lies, given that of the pipeline: a path or an address.

    Examples
    --------
    >>> shard_checkpoint("ckpt/trips", 0), shard_checkpoint("s3://bucket/trips/", 3)
    ('ckpt/trips', 's3://bucket/trips/shards/3')
    """
    return f"{checkpoint.rstrip('/')}/shards/{shard}" if shard else checkpoint


def backfill_name(pipeline: str, backfill: str) -> str:
    """Return the name of a backfill in its checkpoint and in every ledger.

    Parameters
    ----------
    pipeline : str
        The user's name.
    backfill : str
        Hexadecimal digits that stand for what it was asked for.

    Examples
    --------
    >>> backfill_name("trips", "3f2a91c0")
    'trips-backfill_3f2a91c0'
    >>> shard_of(backfill_name("trips", "12345678"))
    ('trips-backfill_12345678', 0)
    """
    return f"{pipeline}-backfill_{backfill}"


def user_pipeline(name: str) -> str:
    """Return the user's pipeline of the name of one, of a shard, or of a backfill.

    Examples
    --------
    >>> user_pipeline("trips"), user_pipeline("trips-3"), user_pipeline("trips-backfill_3f2a91c0")
    ('trips', 'trips', 'trips')
    """
    found = _OF_BACKFILL.fullmatch(name)
    return found[1] if found else shard_of(name)[0]


def backfill_checkpoint(checkpoint: str, backfill: str) -> str:
    """Return where the checkpoint of a backfill lies, given that of the pipeline: a path or an address.

    Examples
    --------
    >>> backfill_checkpoint("s3://bucket/trips/", "3f2a91c0")
    's3://bucket/trips/backfills/3f2a91c0'
    """
    return f"{checkpoint.rstrip('/')}/backfills/{backfill}"


def sources_place(checkpoint: Path, pipeline: str) -> Path:
    """Return the checkpoint that has the workspaces of a pipeline's sources: of all shards it is that of shard 0.

    Parameters
    ----------
    checkpoint : Path
        Of the pipeline, or of a shard.  What is computed for a shard elsewhere, a shadow for one, has its own.
    pipeline : str
        The name of either.

    Examples
    --------
    >>> print(sources_place(Path("ckpt/trips/shards/3"), "trips-3"), sources_place(Path("ckpt/shards/3"), "rides"))
    ckpt/trips ckpt/shards/3
    """
    shard = shard_of(pipeline)[1]
    is_below = shard > 0 and checkpoint.parts[-2:] == ("shards", str(shard))
    return checkpoint.parents[1] if is_below else checkpoint
