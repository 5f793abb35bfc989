# SPDX-License-Identifier: Apache-2.0
"""Timestamps and durations with nanoseconds, like those of Go's `time` package, and the functions on them.

Python's datetime has only microseconds and the years 1 to 9999. A CEL timestamp has nanoseconds and the offset from UTC
with which it was written, and because of the offset its local year may be outside of this range. The functions return
parts of timestamps, in UTC or in a time zone, and of durations (cel-go's `common/types`).
"""

import datetime
import functools
import re
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..declarations import CelLibrary, Function, Row, method
from ..errors import ErrorValue
from ..types import DURATION, INT, INT_MAX, STRING, TIMESTAMP

SECOND: Final = 10**9
_DAY: Final = 86_400
MIN_SECONDS: Final = -62_135_596_800
"""0001-01-01T00:00:00Z"""
MAX_SECONDS: Final = 253_402_300_799
"""9999-12-31T23:59:59Z"""

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_CYCLE_START: Final = 2000
_CYCLE_SECOND: Final = 946_684_800
"""2000-01-01T00:00:00Z"""
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
"""The calendar repeats after 400 years. So datetime can compute with the years before 1 and after 9999, too."""

_PIECE: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}

_RFC3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)

_OFFSET: Final = re.compile(r"([+-]?)([0-9]+):([+-]?[0-9]+)", re.ASCII)
_LONGEST: Final = 18

Part = Callable[[int, datetime.datetime, int], int]
"""Selects a number of a timestamp: its year, its date and time of day as in `civil`, or its nanoseconds."""


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time in nanoseconds, which fits into 64 bits."""

    nanos: int

    @property
    def is_zero(self) -> bool:
        """Whether the duration is zero."""
        return self.nanos == 0

    def in_units(self, unit: int) -> float:
        """The number of units of `unit` nanoseconds, rounded like Go's Hours(), Minutes() and Seconds()."""
        whole = abs(self.nanos) // unit
        part = abs(self.nanos) % unit
        length = whole + part / unit
        return length if self.nanos >= 0 else -length


def parse_duration(text: str) -> Duration | None:
    """The result of Go's time.ParseDuration for a text such as `1h30m`, `1.5s` or `-2ms`, None if it is invalid."""
    negative = text[:1] == "-"
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return Duration(0)
    if not rest:
        return None
    total, place = 0, 0
    while place < len(rest):
        piece = _PIECE.match(rest, place)
        if piece is None or not (piece[1] or piece[2]):
            return None
        unit = _UNITS[piece[3]]
        total += int(piece[1] or "0") * unit
        if piece[2]:
            digits = piece[2][:18]
            total += int(float(int(digits)) * (unit / 10.0 ** len(digits)))  # Go computes this in floating point, too
        if total > INT_MAX + 1:
            return None
        place = piece.end()
    if total > INT_MAX and not negative:
        return None
    return Duration(-total if negative else total)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time: seconds since 1970, and nanoseconds. `offset` (seconds east of UTC) only affects its text."""

    seconds: int
    nanos: int = 0
    offset: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __lt__(self, other: "Timestamp") -> bool:
        return self._key() < other._key()

    def __gt__(self, other: "Timestamp") -> bool:
        return self._key() > other._key()

    def _key(self) -> tuple[int, int]:
        return self.seconds, self.nanos

    @property
    def is_zero(self) -> bool:
        """Whether it is Go's zero time, the start of the year 1."""
        return self.seconds == MIN_SECONDS and self.nanos == 0

    @property
    def in_range(self) -> bool:
        """Whether it is in the years 1 to 9999, which CEL allows."""
        return MIN_SECONDS <= self.seconds <= MAX_SECONDS

    def plus(self, nanos: int) -> "Timestamp":
        """The point in time that is `nanos` nanoseconds later."""
        seconds, rest = divmod(self.nanos + nanos, SECOND)
        return Timestamp(self.seconds + seconds, rest, self.offset)

    def minus(self, other: "Timestamp") -> int:
        """The nanoseconds from `other` to this point in time."""
        return (self.seconds - other.seconds) * SECOND + self.nanos - other.nanos

    def civil(self, offset: int) -> tuple[int, datetime.datetime]:
        """The year, and the date and the time of day in the equivalent year from 2000 on, at an offset from UTC."""
        cycles, seconds = divmod(self.seconds + offset - _CYCLE_SECOND, _CYCLE_DAYS * _DAY)
        local = datetime.datetime(_CYCLE_START, 1, 1) + datetime.timedelta(seconds=seconds)
        return local.year + cycles * _CYCLE_YEARS, local

    def __str__(self) -> str:
        """The text in RFC 3339, with as few digits of the fraction as possible."""
        year, at = self.civil(self.offset)
        fraction = f".{self.nanos:09d}".rstrip("0") if self.nanos else ""
        sign, minutes = ("-" if self.offset < 0 else "+"), abs(self.offset) // 60
        zone = f"{sign}{minutes // 60:02d}:{minutes % 60:02d}" if self.offset else "Z"
        return f"{year:04d}-{at:%m-%dT%H:%M:%S}{fraction}{zone}"


def day_of(year: int, month: int, day: int) -> int | None:
    """The number of days from 1970-01-01 to a date, None if the month does not have this day."""
    try:
        date = datetime.date(_CYCLE_START + year % _CYCLE_YEARS, month, day)
    except ValueError:
        return None
    return date.toordinal() - _EPOCH.toordinal() + (year - date.year) // _CYCLE_YEARS * _CYCLE_DAYS


def parse_timestamp(text: str) -> Timestamp | None:
    """The result of Go's time.Parse(time.RFC3339, text), None if it is invalid. It may be outside of CEL's range."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    days = day_of(year, month, day)
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    offset = 0
    if match[8]:
        east_hours, east_minutes = int(match[9]), int(match[10])
        if east_hours > 24 or east_minutes > 60:
            return None
        offset = (east_hours * 60 + east_minutes) * 60 * (-1 if match[8] == "-" else 1)
    seconds = days * _DAY + hour * 3600 + minute * 60 + second - offset
    nanos = int((match[7] or "")[:9].ljust(9, "0"))
    return Timestamp(seconds, nanos, offset)


def _offset(zone: str, at: Timestamp) -> int:
    """Seconds east of UTC. Raises ErrorValue for an unknown time zone."""
    if ":" not in zone:
        return _offset_of_place(_place(zone), at)
    match = _OFFSET.fullmatch(zone)
    if match is None or len(zone) > _LONGEST:
        raise ErrorValue("other", f"{zone!r} is not an offset from UTC (such as -05:30)")
    hours, minutes = int(match[2]), int(match[3])
    return (-hours * 60 - minutes if match[1] == "-" else hours * 60 + minutes) * 60


@functools.lru_cache(maxsize=64)
def _place(name: str) -> datetime.tzinfo:
    if name in ("", "UTC", "Local"):
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ErrorValue("time_zone", f"unknown time zone {name!r}") from None


def _offset_of_place(place: datetime.tzinfo, at: Timestamp) -> int:
    # local time may reach the years 0 and 10000, which datetime does not have; zones do not change there
    seconds = min(max(at.seconds, MIN_SECONDS + _DAY), MAX_SECONDS - _DAY)
    offset = (_EPOCH + datetime.timedelta(seconds=seconds)).astimezone(place).utcoffset()
    return int(offset.total_seconds()) if offset else 0


def _parts(name: str, suffix: str, part: Part, unit: int = 0) -> Function:
    """The function `name` on timestamps, in UTC or a time zone.

    With `unit`, also on durations, in units of nanoseconds.
    """

    def in_utc(at: Timestamp) -> int:
        return part(*at.civil(0), at.nanos)

    def in_zone(at: Timestamp, zone: str) -> int:
        return part(*at.civil(_offset(zone, at)), at.nanos)

    def count(duration: Duration) -> int:
        return int(duration.in_units(unit))  # Go also computes a double here, which is visible near whole units

    of_timestamp: tuple[Row, ...] = (
        (f"timestamp_to_{suffix}", (TIMESTAMP,), INT, in_utc),
        (f"timestamp_to_{suffix}_with_tz", (TIMESTAMP, STRING), INT, in_zone),
    )
    of_duration: tuple[Row, ...] = ((f"duration_to_{suffix}", (DURATION,), INT, count),) if unit else ()
    return method(name, *of_timestamp, *of_duration)


TIME = CelLibrary(
    _parts("getFullYear", "year", lambda year, at, nanos: year),
    _parts("getMonth", "month", lambda year, at, nanos: at.month - 1),
    _parts("getDayOfYear", "day_of_year", lambda year, at, nanos: at.timetuple().tm_yday - 1),
    _parts("getDayOfMonth", "day_of_month", lambda year, at, nanos: at.day - 1),
    _parts("getDate", "day_of_month_1_based", lambda year, at, nanos: at.day),
    _parts("getDayOfWeek", "day_of_week", lambda year, at, nanos: at.isoweekday() % 7),
    _parts("getHours", "hours", lambda year, at, nanos: at.hour, 3600 * SECOND),
    _parts("getMinutes", "minutes", lambda year, at, nanos: at.minute, 60 * SECOND),
    _parts("getSeconds", "seconds", lambda year, at, nanos: at.second, SECOND),
    _parts("getMilliseconds", "milliseconds", lambda year, at, nanos: nanos // 10**6, 10**6),
)
