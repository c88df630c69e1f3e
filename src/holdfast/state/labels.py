"""The key under which Spark's shuffle takes a bucket to a task, chosen such that buckets are dealt out evenly."""

from __future__ import annotations

from functools import lru_cache

_M = 2**32 - 1


@lru_cache(maxsize=65536)
def label(operator: str, bucket: int, buckets: int, partitions: int) -> int:
    """Return the label that stands for a bucket in Spark's key: ``label % buckets == bucket``.

    Spark sends a key to the partition that its hash says.  With as many buckets as cores, two would often share a
    task while another idles; so the label is chosen such that bucket ``b`` is in partition ``b % partitions``.

    Examples
    --------
    >>> [spark_partition("counted", label("counted", b, 4, 2), 2) for b in range(4)]
    [0, 1, 0, 1]
    """
    number = bucket
    while spark_partition(operator, number, partitions) != bucket % partitions:
        number += buckets
    return number


def spark_partition(operator: str, number: int, partitions: int) -> int:
    """Return the partition in which Spark keeps the key (operator, number): its Murmur3 hash with seed 42."""
    mixed = _murmur_int(number, _murmur_bytes(operator.encode(), 42))
    return (mixed - 2**32 if mixed >= 2**31 else mixed) % partitions


def _mix(seed: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _M
    word = ((word << 15 | word >> 17) & _M) * 0x1B873593 & _M
    seed ^= word
    return ((seed << 13 | seed >> 19) & _M) * 5 + 0xE6546B64 & _M


def _finish(mixed: int, length: int) -> int:
    mixed ^= length
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _M
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _M
    return mixed ^ mixed >> 16


def _murmur_int(number: int, seed: int) -> int:
    return _finish(_mix(seed, number & _M), 4)


def _murmur_bytes(data: bytes, seed: int) -> int:
    whole = len(data) - len(data) % 4
    for start in range(0, whole, 4):
        seed = _mix(seed, int.from_bytes(data[start : start + 4], "little"))
    for octet in data[whole:]:  # NB one by one and signed, unlike the published Murmur3
        seed = _mix(seed, (octet - 256 if octet > 127 else octet) & _M)
    return _finish(seed, len(data))
