# SPDX-License-Identifier: Apache-2.0
"""The metrics of dra-controller."""

from collections import Counter as Tally
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from dra_driver import DRIVER_NAME
from dra_driver.endpoints import HANGING_CALLS, HANGING_CALLS_TEXT, PREFIX, unexpected_errors
from dra_driver.kubeapi.features import GATES

from .publisher import Report


class PublisherMetrics:
    """The metrics of one process. `observe` is called with every Report. `hanging` returns the number of calls to the
    driver that have not returned.
    """

    def __init__(self, registry: CollectorRegistry, node_name: str, hanging: Callable[[], float]) -> None:
        self._own = {"node": node_name, "driver": DRIVER_NAME}
        labels = tuple(self._own)

        gauge = partial(Gauge, namespace=PREFIX, registry=registry)
        counter = partial(Counter, namespace=PREFIX, registry=registry)
        self._devices = gauge("published_devices", "Devices in the node's ResourceSlices.", (*labels, "device_type"))
        self._tainted = gauge("tainted_devices", "Published devices with this taint.", (*labels, "key"))
        self._left_out = gauge(
            "left_out_devices", "Devices that the node has and that are not published.", (*labels, "reason")
        )
        self._unpublished = gauge(
            "unpublished_slices",
            "ResourceSlices that the API server does not store as the controller sent them.",
            (*labels, "reason"),
        )
        self._dropped = gauge(
            "missing_feature_gates", "1 if the API server drops the fields of this feature gate.", (*labels, "gate")
        )
        gauge(HANGING_CALLS, HANGING_CALLS_TEXT, labels).labels(**self._own).set_function(hanging)
        self._writes = counter("slice_writes", "ResourceSlices created, updated and deleted.", labels)
        self._errors = counter("publish_errors", "Attempts to publish that failed.", labels)
        self.unexpected = unexpected_errors(registry)
        """Counts unexpected errors that were contained."""
        self._writes.labels(**self._own)
        self._errors.labels(**self._own)

    def observe(self, report: Report) -> None:
        """Update the metrics."""
        if report.error is not None:
            self._errors.labels(**self._own).inc()
            return
        self._writes.labels(**self._own).inc(report.writes - report.failures)
        self._errors.labels(**self._own).inc(report.failures)
        devices = [device for gpu in report.gpus for device in gpu.devices]
        self._set(self._devices, Tally(str(device.attributes.get("type", "unknown")) for device in devices))
        self._set(self._tainted, Tally(key for device in devices for key in {taint.key for taint in device.taints}))
        self._set(self._left_out, Tally(str(one.reason) for one in report.left_out))
        self._set(self._unpublished, Tally(str(one.why) for one in report.unpublished.values()))
        self._set(self._dropped, Tally({gate: int(gate in report.missing_gates) for gate in GATES.values()}))

    def _set(self, gauge: Gauge, values: "Tally[str]") -> None:
        gauge.clear()
        for label, value in values.items():
            gauge.labels(*self._own.values(), label).set(value)
