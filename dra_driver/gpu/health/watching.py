# SPDX-License-Identifier: Apache-2.0
"""NVML's events of many GPUs in one event set. A GPU that cannot be registered does not affect the others."""

import logging
import queue
from collections.abc import Iterable, Set
from functools import partial

from ..nvml import NO_DRIVER, DeviceHandle, Event, EventSetHandle, EventType, Nvml, NvmlError
from ..session import Session
from ..threads import EVENTS, HungError
from .conditions import DRIVER_GONE, WATCHED

log = logging.getLogger(__name__)


class EventWatch:
    """The events of GPUs during one initialization of NVML. One thread sets the GPUs, and another waits for their
    events.
    """

    def __init__(self, session: Session, generation: int) -> None:
        self.generation = generation
        self.failed = False
        """Whether waiting for events has failed, so that another watch must replace this one."""
        self._session = session
        self._events: EventSetHandle | None = None
        self._registered: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}
        self._uuids: dict[object, str] = {}  # by NVML's identity of the GPU
        self._seen: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()

    def cover(self, uuids: Iterable[str], hung: Iterable[str]) -> Set[str]:
        """Watch exactly these GPUs. Failed GPUs are tried again, and `hung` GPUs are not changed. Returns the
        GPUs whose registration hangs. Raises NvmlError; then call `close`.
        """
        wanted = frozenset(uuids)
        if self._registered - wanted - frozenset(hung):
            self.close()  # NVML cannot take a GPU out of a set
        self._problems = {}
        if self._events is None and wanted:
            try:
                self._events = self._session.ask(EVENTS, self.generation, lambda nvml: nvml.event_set())
            except HungError as error:
                self._problems = dict.fromkeys(wanted, str(error))
                return frozenset()
        asks = {uuid: partial(self._register, uuid) for uuid in wanted - self._registered}
        answers = self._session.gpus(asks, self.generation)
        for uuid, answer in answers.items():
            if isinstance(answer, NvmlError) and answer.code in NO_DRIVER | DRIVER_GONE:
                raise answer
            if isinstance(answer, EventType) and answer & EventType.XID:
                self._registered |= {uuid}
            elif answer is not None:
                self._problems[uuid] = str(answer) if isinstance(answer, NvmlError) else "the GPU reports no XIDs"
        return frozenset(uuid for uuid, answer in answers.items() if isinstance(answer, HungError))

    def problem(self, uuid: str) -> str | None:
        """Why the events of a GPU are not watched, or None."""
        return None if uuid in self._registered else self._problems.get(uuid, "not registered yet")

    @property
    def covers(self) -> bool:
        """Whether any GPU is registered."""
        return bool(self._registered)

    def wait(self, seconds: float) -> list[tuple[str, Event]]:
        """Wait for events, and return them with the UUIDs of their GPUs. Empty if no event came in time. Raises
        NvmlError. An event after a wait was given up is not lost: the next wait returns it.
        """
        events = self._events

        def wait(nvml: Nvml) -> None:
            event = None if events is None else nvml.wait_event(events, int(seconds * 1000))
            if event is None:
                return
            try:
                uuid = self._uuids.get(nvml.identity(event.device)) or nvml.uuid(event.device)
                self._seen.put((uuid, event))
            except NvmlError as error:
                # The GPU is read after each event, which shows that its UUID cannot be read.
                log.warning("an event of type %r is of an unknown GPU: %s", event.type, error)

        self._session.ask(EVENTS, self.generation, wait, idle=seconds)
        return [self._seen.get() for _ in range(self._seen.qsize())]

    def close(self) -> None:
        """Stop watching. Never raises an error and never waits."""
        events, self._events, self._registered = self._events, None, frozenset()

        def free(nvml: Nvml) -> None:
            assert events is not None
            try:
                nvml.free_event_set(events)
            except NvmlError as error:
                log.debug("%s", error)  # the driver is gone, and the set with it

        if events is not None and not self._session.threads.hangs():  # one of them may be registering a GPU in it
            try:
                self._session.begin(EVENTS, self.generation, free)
            except HungError as error:
                log.debug("an event set stays: %s", error)

    def _register(self, uuid: str, nvml: Nvml, gpu: DeviceHandle) -> EventType:
        events = self._events
        assert events is not None
        self._uuids[nvml.identity(gpu)] = uuid
        return nvml.register_events(gpu, WATCHED, events)
