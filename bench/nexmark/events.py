"""The events of Nexmark, in columns: any slice of the sequence by itself.

Every value is drawn by the number of its event, its field and the seed, and by nothing before it; texts are drawn from
tables that the seed alone makes.  So two processes that make overlapping slices make equal rows, at millions a second.

The rules are those of the benchmark's generator (github.com/nexmark/nexmark), stated in ``design/0057-nexmark.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Draws = npt.NDArray[np.uint64]

BLOCK, PERSONS, AUCTIONS = 50, 1, 3
"""Of so many events in sequence the first is a person, the next three are auctions, the others bids."""
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
ACTIVE_PERSONS, PERSONS_TO_COME = 1000, 10
AUCTIONS_IN_FLIGHT, AUCTIONS_TO_COME, HOT = 100, 10, 100
CHANNELS = 10_000
BASE_US = 1_436_918_400_000_000
"""Event time of number 0: 2015-07-15T00:00:00Z, the default of the benchmark."""

TIME = pa.timestamp("us", tz="UTC")
SCHEMAS: Mapping[str, pa.Schema] = {
    "person": pa.schema(
        {
            "id": pa.int64(),
            "name": pa.string(),
            "emailAddress": pa.string(),
            "creditCard": pa.string(),
            "city": pa.string(),
            "state": pa.string(),
            "dateTime": TIME,
            "extra": pa.string(),
        }
    ),
    "auction": pa.schema(
        {
            "id": pa.int64(),
            "itemName": pa.string(),
            "description": pa.string(),
            "initialBid": pa.int64(),
            "reserve": pa.int64(),
            "dateTime": TIME,
            "expires": TIME,
            "seller": pa.int64(),
            "category": pa.int64(),
            "extra": pa.string(),
        }
    ),
    "bid": pa.schema(
        {
            "auction": pa.int64(),
            "bidder": pa.int64(),
            "price": pa.int64(),
            "channel": pa.string(),
            "url": pa.string(),
            "dateTime": TIME,
            "extra": pa.string(),
        }
    ),
}

_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
_FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
_LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", dtype=np.uint8)
_WORD = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz_", dtype=np.uint8)
_DIGITS = np.frombuffer(b"0123456789", dtype=np.uint8)
_TEXTS = 16_384
"""How many texts of a field there are."""


@dataclass(frozen=True)
class Events:
    """A sequence of events.

    Parameters
    ----------
    rate : int
        Events in a second of event time.
    seed : int
        Another one makes other values; which events are persons, auctions or bids, and their times, stay.
    out_of_order : int
        Within so many events in sequence they come in another order; 1: in order of event time.
    """

    rate: int = 10_000
    seed: int = 1
    out_of_order: int = 1

    def make(self, table: str, start: int, stop: int, columns: Collection[str] | None = None) -> pa.RecordBatch:
        """Return the rows of ``person``, ``auction`` or ``bid`` among the events ``start`` to ``stop``, exclusive.

        With ``columns`` only these are made, in the order of the table.
        """
        slice_ = Slice(self, self.numbers(table, start, stop))
        schema = SCHEMAS[table]
        fields = [field for field in schema if columns is None or field.name in columns]
        made = [COLUMNS[table][field.name](slice_) for field in fields]
        arrays = [
            pa.array(values).cast(field.type) if isinstance(values, np.ndarray) else values
            for field, values in zip(fields, made, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def numbers(self, table: str, start: int, stop: int) -> Numbers:
        """Return the numbers that the events of a table have, in the order in which they come."""
        numbers = np.arange(start, stop, dtype=np.int64)
        if self.out_of_order > 1:
            group = self.out_of_order
            numbers = numbers // group * group + numbers * 953 % group
        place = numbers % BLOCK
        if table == "person":
            return numbers[place < PERSONS]
        if table == "auction":
            return numbers[(place >= PERSONS) & (place < PERSONS + AUCTIONS)]
        return numbers[place >= PERSONS + AUCTIONS]

    def times(self, numbers: Numbers) -> Numbers:
        """Return their event times, microseconds; whole milliseconds."""
        return BASE_US + numbers // self.rate * 1_000_000 + numbers % self.rate * 1000 // self.rate * 1000

    def time_of(self, number: int) -> int:
        """Return the event time of one number, microseconds."""
        return int(self.times(np.array([number]))[0])

    def expiry_ms(self) -> int:
        """Return below how many milliseconds an auction is open."""
        return max(2 * (AUCTIONS_IN_FLIGHT * BLOCK // AUCTIONS * 1000 // self.rate), 1)


class Slice:
    """Some events of a table, and the draws for them by the number of the event: a counter-based generator."""

    def __init__(self, events: Events, numbers: Numbers) -> None:
        self.events = events
        self.seed = events.seed
        self.numbers = numbers
        self.block = numbers // BLOCK
        """As many persons were there before."""

    @cached_property
    def times(self) -> Numbers:
        """Event times, microseconds."""
        return self.events.times(self.numbers)

    @cached_property
    def initial(self) -> Numbers:
        """The first price of an auction."""
        return self.price("initial")

    @cached_property
    def channel(self) -> pa.Array:
        """The number of a bid's channel in the tables of names and addresses."""
        rare = len(_HOT_CHANNELS) + self.below("channel", CHANNELS)
        hot = self.below("hot channel", len(_HOT_CHANNELS))
        return pa.array(np.where(self.below("is hot channel", 2) > 0, hot, rare).astype(np.int32))

    @property
    def auction(self) -> Numbers:
        """The auction of a bid, from 0: in half of all rows the hot one, else one that is open or comes soon."""
        last = self.block * AUCTIONS + AUCTIONS - 1
        first = np.maximum(last - AUCTIONS_IN_FLIGHT, 0)
        cold = first + self.below("auction", last - first + 1 + AUCTIONS_TO_COME)
        return np.where(self.below("is hot auction", 2) > 0, last // HOT * HOT, cold)

    def some_person(self, field: str, *, hot: int) -> Numbers:
        """Return in three of four rows the hot person, else one of those that are active or come soon, from 0."""
        active = np.minimum(self.block + 1, ACTIVE_PERSONS)
        cold = self.block + 1 - active + self.below(field, active + PERSONS_TO_COME)
        return np.where(self.below(f"is hot {field}", 4) > 0, self.block // HOT * HOT + hot, cold)

    def price(self, field: str) -> Numbers:
        """Return cents between 100 and 10^8, log-uniform."""
        return np.rint(100.0 * np.exp(self.unit(field) * (6 * np.log(10.0)))).astype(np.int64)

    def text(self, field: str, least: int, below: int) -> pa.StringArray:
        """Return texts of random letters and blanks."""
        return self.one_of(field, _texts(self.seed, field, least, below))

    def extra(self, table: str, size: int) -> pa.StringArray:
        """Return what fills a row up to its size, a fifth more or less."""
        return self.text(f"extra of {table}", size - size // 5, size + size // 5 + 1)

    def bits(self, field: str) -> Draws:
        """Return 64 bits of each row."""
        return _mixed(self.numbers, _key(self.seed, field))

    def below(self, field: str, limit: int | Numbers) -> Numbers:
        """Return a number from 0 to ``limit``, exclusive."""
        high = (self.bits(field) >> np.uint64(32)).view(np.int64)
        return high * limit >> 32

    def unit(self, field: str) -> npt.NDArray[np.float64]:
        """Return a number in [0, 1)."""
        return (self.bits(field) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def one_of(self, field: str, texts: pa.StringArray) -> pa.StringArray:
        """Return one of some texts."""
        return texts.take(pa.array(self.below(field, len(texts)).astype(np.int32)))


def _mixed(numbers: Numbers, key: int) -> Draws:
    """Return each number's bits under a key: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    bits = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits += np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


@lru_cache(maxsize=256)
def _key(seed: int, field: str) -> int:
    return int.from_bytes(np.random.default_rng([seed, *field.encode()]).bytes(8), "little")


@lru_cache(maxsize=64)
def _texts(seed: int, field: str, least: int, below: int) -> pa.StringArray:
    """Return texts of random letters and blanks, of ``least`` to ``below`` letters, exclusive."""
    random = np.random.default_rng([seed, *field.encode()])
    lengths = random.integers(least, below, _TEXTS)
    return _cut(random.choice(_LETTERS, lengths.sum()), lengths)


def _cut(letters: npt.NDArray[np.uint8], lengths: Numbers) -> pa.StringArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(letters))


@lru_cache(maxsize=1)
def _names() -> pa.StringArray:
    return pa.array([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES])


@lru_cache(maxsize=4)
def _addresses(seed: int) -> pa.StringArray:
    parts = (_texts(seed, "account", 3, 7).to_pylist(), _texts(seed, "domain", 3, 5).to_pylist())
    return pa.array([f"{account}@{domain}.com".replace(" ", "") for account, domain in zip(*parts, strict=True)])


@lru_cache(maxsize=4)
def _cards(seed: int) -> pa.StringArray:
    digits = np.random.default_rng([seed, *b"card"]).choice(_DIGITS, (_TEXTS, 16))
    numbers = [row.tobytes().decode() for row in digits]
    return pa.array([" ".join(number[at : at + 4] for at in range(0, 16, 4)) for number in numbers])


@lru_cache(maxsize=4)
def _channels(seed: int) -> tuple[pa.StringArray, pa.StringArray]:
    """Return names and addresses of all channels: four hot ones, then those with a number."""
    random = np.random.default_rng([seed, *b"channels"])

    def url() -> str:
        parts = [random.choice(_WORD, random.integers(3, 5)).tobytes().decode() for _ in range(3)]
        return f"https://www.nexmark.com/{'/'.join(parts)}/item.htm?query=1"

    hot = [url() for _ in _HOT_CHANNELS]
    others = [
        url() + (f"&channel_id={abs(_reversed_bits(number))}" if random.integers(10) > 0 else "")
        for number in range(CHANNELS)
    ]
    names = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]
    return pa.array(names), pa.array(hot + others)


def _reversed_bits(number: int) -> int:
    """Return the 32 bits in reverse, as a signed number."""
    unsigned = int(f"{number:032b}"[::-1], 2)
    return unsigned - 2**32 if unsigned >= 2**31 else unsigned


COLUMNS: Mapping[str, Mapping[str, Callable[[Slice], Any]]] = {
    "person": {
        "id": lambda made: FIRST_ID + made.block,
        "name": lambda made: made.one_of("name", _names()),
        "emailAddress": lambda made: made.one_of("email", _addresses(made.seed)),
        "creditCard": lambda made: made.one_of("card", _cards(made.seed)),
        "city": lambda made: made.one_of("city", pa.array(_CITIES)),
        "state": lambda made: made.one_of("state", pa.array(_STATES)),
        "dateTime": lambda made: made.times,
        "extra": lambda made: made.extra("person", 200 - 70),
    },
    "auction": {
        "id": lambda made: FIRST_ID + made.block * AUCTIONS + made.numbers % BLOCK - PERSONS,
        "itemName": lambda made: made.text("item", 3, 20),
        "description": lambda made: made.text("description", 3, 100),
        "initialBid": lambda made: made.initial,
        "reserve": lambda made: made.initial + made.price("reserve"),
        "dateTime": lambda made: made.times,
        "expires": lambda made: made.times + 1000 * (1 + made.below("expires", made.events.expiry_ms())),
        "seller": lambda made: FIRST_ID + made.some_person("seller", hot=0),
        "category": lambda made: FIRST_CATEGORY + made.below("category", CATEGORIES),
        "extra": lambda made: made.extra("auction", 500 - 110),
    },
    "bid": {
        "auction": lambda made: FIRST_ID + made.auction,
        # The benchmark adds the first id to a bidder twice.
        "bidder": lambda made: 2 * FIRST_ID + made.some_person("bidder", hot=1),
        "price": lambda made: made.price("price"),
        "channel": lambda made: _channels(made.seed)[0].take(made.channel),
        "url": lambda made: _channels(made.seed)[1].take(made.channel),
        "dateTime": lambda made: made.times,
        "extra": lambda made: made.extra("bid", 100 - 32),
    },
}
"""Of each table: how its columns are made."""
