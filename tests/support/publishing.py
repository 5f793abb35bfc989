# SPDX-License-Identifier: Apache-2.0
"""A publisher at work in a thread."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from controller.node.publisher import DriverOnNode, NodeDevices, Publisher, PublisherTiming, PublishReport
from controller.node.startup_taint import StartupTaint
from dra_driver.kube.api import ApiClient
from dra_driver.names import DRIVER_NAME
from dra_driver.process.containment import Count

QUICK = PublisherTiming(settle=0.01, resync=0.05, first_retry=0.05, longest_retry=0.2, longest_slice_retry=0.2)


@contextlib.contextmanager
def publishing(
    client: ApiClient,
    node: str,
    devices: NodeDevices,
    observe: Callable[[PublishReport], None] = lambda _report: None,
    wanted: Callable[[], frozenset[str]] = frozenset,
    *,
    timing: PublisherTiming = QUICK,
    unexpected: Count = lambda _work: None,
    startup_taint: str = "",
    driver: str = DRIVER_NAME,
) -> Iterator[Publisher]:
    """A publisher at work."""
    source = DriverOnNode(node, devices, driver, wanted)
    taint = StartupTaint(client, node, startup_taint) if startup_taint else None
    publisher = Publisher(client, source, timing, observe, unexpected, taint)
    thread = threading.Thread(target=publisher.run)
    thread.start()
    try:
        yield publisher
    finally:
        publisher.stop()
        thread.join(60)
        assert not thread.is_alive(), "the publisher does not stop"
