# SPDX-License-Identifier: Apache-2.0
"""NVML's events of many GPUs in one event set: a GPU that cannot be registered does not keep the others from it."""

import logging
from collections.abc import Iterable

from ..nvml import NO_DRIVER, Event, EventSetHandle, EventType, Nvml, NvmlError
from .readings import DRIVER_GONE
from .rules import WATCHED

log = logging.getLogger(__name__)


class EventWatch:
    """The events of GPUs through one gateway. Used by one thread. Methods may raise NvmlError: then `close` it."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._events: EventSetHandle | None = None
        self._registered: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}

    def cover(self, uuids: Iterable[str]) -> None:
        """Watch exactly these GPUs. Those that failed before are tried again."""
        wanted = frozenset(uuids)
        if self._registered - wanted:
            self.close()  # NVML cannot take a GPU out of a set
        if self._events is None and wanted:
            self._events = self._nvml.event_set()
        self._problems = {}
        for uuid in sorted(wanted - self._registered):
            problem = self._register(uuid)
            if problem is None:
                self._registered |= {uuid}
            else:
                self._problems[uuid] = problem

    def problem(self, uuid: str) -> str | None:
        """Why the events of a GPU are not watched, None when they are."""
        return None if uuid in self._registered else self._problems.get(uuid, "not registered yet")

    @property
    def covers(self) -> bool:
        """Whether there is any GPU to wait for."""
        return bool(self._registered)

    def wait(self, seconds: float) -> Event | None:
        """The next event, None when there is none within the time."""
        assert self._events is not None
        return self._nvml.wait_event(self._events, int(seconds * 1000))

    def close(self) -> None:
        """Watch nothing. Never raises."""
        events, self._events, self._registered = self._events, None, frozenset()
        if events is not None:
            try:
                self._nvml.free_event_set(events)
            except NvmlError as error:
                log.debug("%s", error)  # the driver is gone, and the set with it

    def _register(self, uuid: str) -> str | None:
        assert self._events is not None
        try:
            types = self._nvml.register_events(self._nvml.device_by_uuid(uuid), WATCHED, self._events)
        except NvmlError as error:
            if error.code in NO_DRIVER | DRIVER_GONE:
                raise
            return str(error)
        return None if types & EventType.XID else "the GPU reports no XIDs"
