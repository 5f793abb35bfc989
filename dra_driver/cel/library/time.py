# SPDX-License-Identifier: Apache-2.0
"""Parts of timestamps, in UTC or a given zone, and of durations (cel-go's `common/types`)."""

import datetime
import functools
import re
import zoneinfo
from collections.abc import Callable
from typing import Final

from ..declarations import Function, Library, Overload
from ..errors import Fault
from ..times import MAX_SECONDS, MIN_SECONDS, SECOND, Civil, Duration, Timestamp
from ..types import DURATION, INT, STRING, TIMESTAMP

_OFFSET: Final = re.compile(r"([+-]?)([0-9]+):([+-]?[0-9]+)", re.ASCII)
_DAY: Final = 86_400
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LONGEST: Final = 18

Part = Callable[[Civil, Timestamp], int]


def _offset(zone: str, at: Timestamp) -> int:
    """Seconds east of UTC. Raises Fault for a zone that does not exist."""
    if ":" not in zone:
        return _offset_of_place(_place(zone), at)
    match = _OFFSET.fullmatch(zone)
    if match is None or len(zone) > _LONGEST:
        raise Fault("other", f"{zone!r} is no offset from UTC such as -05:30")
    hours, minutes = int(match[2]), int(match[3])
    return (-hours * 60 - minutes if match[1] == "-" else hours * 60 + minutes) * 60


@functools.lru_cache(maxsize=64)
def _place(name: str) -> datetime.tzinfo:
    if name in ("", "UTC", "Local"):
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise Fault("time_zone", f"unknown time zone {name!r}") from None


def _offset_of_place(place: datetime.tzinfo, at: Timestamp) -> int:
    # datetime has no year 0 and no year 10000, which local time may reach: zones don't change there
    seconds = min(max(at.seconds, MIN_SECONDS + _DAY), MAX_SECONDS - _DAY)
    offset = (_EPOCH + datetime.timedelta(seconds=seconds)).astimezone(place).utcoffset()
    return int(offset.total_seconds()) if offset else 0


def _of_timestamp(name: str, part: Part) -> tuple[Overload, Overload]:
    def in_utc(at: Timestamp) -> int:
        return part(at.civil(0), at)

    def in_zone(at: Timestamp, zone: str) -> int:
        return part(at.civil(_offset(zone, at)), at)

    return (
        Overload(f"timestamp_to_{name}", (TIMESTAMP,), INT, in_utc, member=True),
        Overload(f"timestamp_to_{name}_with_tz", (TIMESTAMP, STRING), INT, in_zone, member=True),
    )


def _of_duration(name: str, unit: int) -> Overload:
    def count(duration: Duration) -> int:
        return int(duration.in_units(unit))  # by way of a double, as Go does: near the next unit it shows

    return Overload(f"duration_to_{name}", (DURATION,), INT, count, member=True)


TIME = Library(
    functions=(
        Function("getFullYear", _of_timestamp("year", lambda civil, _: civil.year)),
        Function("getMonth", _of_timestamp("month", lambda civil, _: civil.month - 1)),
        Function("getDayOfYear", _of_timestamp("day_of_year", lambda civil, _: civil.day_of_year - 1)),
        Function("getDayOfMonth", _of_timestamp("day_of_month", lambda civil, _: civil.day - 1)),
        Function("getDate", _of_timestamp("day_of_month_1_based", lambda civil, _: civil.day)),
        Function("getDayOfWeek", _of_timestamp("day_of_week", lambda civil, _: civil.weekday)),
        Function(
            "getHours",
            (*_of_timestamp("hours", lambda civil, _: civil.hour), _of_duration("hours", 3600 * SECOND)),
        ),
        Function(
            "getMinutes",
            (*_of_timestamp("minutes", lambda civil, _: civil.minute), _of_duration("minutes", 60 * SECOND)),
        ),
        Function(
            "getSeconds",
            (*_of_timestamp("seconds", lambda civil, _: civil.second), _of_duration("seconds", SECOND)),
        ),
        Function(
            "getMilliseconds",
            (
                *_of_timestamp("milliseconds", lambda _, at: at.nanos // 10**6),
                _of_duration("milliseconds", 10**6),
            ),
        ),
    )
)
