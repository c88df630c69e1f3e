"""The leap seconds: how far UTC is behind atomic time, and until when that is known."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.errors import InvalidPipeline

SECOND = 1_000_000
NTP = 2_208_988_800 * SECOND
"""From 1900, from where NTP counts, to 1970."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LeapSeconds:
    """A table of leap seconds; times are microseconds since 1970, in UTC as POSIX counts it: without leap seconds.

    Parameters
    ----------
    steps : tuple of (int, int)
        Time in UTC from which on, and seconds that TAI is ahead of UTC, ascending.
    expires : int
        Time in UTC from which on another leap second may have come.

    References
    ----------
    IERS, Bulletin C, https://hpiers.obspm.fr/iers/bul/bulc/ntp/leap-seconds.list.  POSIX.1-2024, "Seconds Since the
    Epoch".
    """

    steps: tuple[tuple[int, int], ...]
    expires: int
    _utc: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _tai: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _ahead: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if list(self.steps) != sorted(self.steps) or not self.steps or self.expires <= self.steps[-1][0]:
            raise InvalidPipeline(
                f"{len(self.steps)} steps until {_text(self.expires)} are no table of leap seconds.",
                why="it needs steps in ascending order, and a date of expiry after them.",
                do="read one that IERS has published: LeapSeconds.read(path), or leave it out.",
            )
        utc, ahead = zip(*self.steps, strict=True)
        object.__setattr__(self, "_utc", utc)
        object.__setattr__(self, "_ahead", tuple(seconds * SECOND for seconds in ahead))
        object.__setattr__(self, "_tai", tuple(t + seconds * SECOND for t, seconds in self.steps))

    @classmethod
    def read(cls, path: str | Path) -> LeapSeconds:
        """Read a file of the form of IERS and NIST: ``/usr/share/zoneinfo/leap-seconds.list`` on most systems.

        Raises
        ------
        InvalidPipeline
            If it is no such file, or its date of expiry is missing.
        """
        steps, expires = [], 0
        try:
            for line in Path(path).read_text().splitlines():
                if line.startswith("#@"):
                    expires = int(line[2:]) * SECOND - NTP
                elif line.strip() and not line.startswith("#"):
                    since, ahead = line.partition("#")[0].split()
                    steps.append((int(since) * SECOND - NTP, int(ahead)))
        except (OSError, ValueError) as error:
            raise InvalidPipeline(
                f"{str(path)!r} is no table of leap seconds.",
                why=f"{error}.",
                do="give the file https://hpiers.obspm.fr/iers/bul/bulc/ntp/leap-seconds.list, or that of the system, "
                "for instance /usr/share/zoneinfo/leap-seconds.list.",
            ) from None
        return cls(tuple(steps), expires)

    def tai(self, utc: int) -> int:
        """Return a time of UTC in TAI."""
        return utc + self._ahead[max(bisect_right(self._utc, utc) - 1, 0)]

    def utc(self, tai: int) -> int:
        """Return a time of TAI in UTC.

        POSIX gives a leap second the times of the second after it, so that time goes back.  Here the second before a
        leap second and the leap second itself share one second, in which time passes at half its pace.
        """
        place = bisect_right(self._tai, tai)
        if 0 < place < len(self._tai):
            inserted = self._ahead[place] - self._ahead[place - 1]
            if (left := self._tai[place] - tai) <= 2 * inserted:
                return self._utc[place] - (left + 1) // 2
        return tai - self._ahead[max(place - 1, 0)]

    def check(self, utc: int) -> None:
        """Check that the table knows a time.

        Raises
        ------
        InvalidPipeline
            If it is before the first step, or not before the table expires.
        """
        if self._utc[0] <= utc < self.expires:
            return
        is_late = utc >= self.expires
        raise InvalidPipeline(
            f"The distance of UTC from TAI at {_text(utc)} is not known.",
            why=f"the table of leap seconds ends at {_text(self.expires)}; later ones are announced half a year before."
            if is_late
            else f"it is a whole number of seconds since {_text(self._utc[0])} only.",
            do="give a newer table, of https://hpiers.obspm.fr/iers/bul/bulc/ntp/leap-seconds.list: "
            'leap_seconds=LeapSeconds.read("leap-seconds.list").'
            if is_late
            else "give times in microseconds since 1970, or since 1900 for NTP.",
        )


def _text(utc: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=utc)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{utc} microseconds after 1970"


def _us(date: str) -> int:
    return int(datetime.fromisoformat(f"{date}T00:00:00+00:00").timestamp()) * SECOND


# Each the first day with one second more; the first of them with ten.
_DAYS = """
1972-01-01 1972-07-01 1973-01-01 1974-01-01 1975-01-01 1976-01-01 1977-01-01 1978-01-01 1979-01-01 1980-01-01
1981-07-01 1982-07-01 1983-07-01 1985-07-01 1988-01-01 1990-01-01 1991-01-01 1992-07-01 1993-07-01 1994-07-01
1996-01-01 1997-07-01 1999-01-01 2006-01-01 2009-01-01 2012-07-01 2015-07-01 2017-01-01
"""

LEAP_SECONDS = LeapSeconds(
    tuple((_us(day), ahead) for ahead, day in enumerate(_DAYS.split(), start=10)), _us("2027-06-28")
)
"""Those of IERS's file leap-seconds.list as it was in the time zone database of October 2026 (tzdata 2026.6)."""
