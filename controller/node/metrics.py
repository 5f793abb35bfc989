# SPDX-License-Identifier: Apache-2.0
"""The metrics of dra-controller."""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from dra_driver.kube.api.features import GATES
from dra_driver.names import DRIVER_NAME
from dra_driver.process.endpoints import HANGING_CALLS, HANGING_CALLS_TEXT, PREFIX, unexpected_errors

from .publisher import PublishReport


class PublisherMetrics:
    """The metrics of one process, which publishes the devices of these DRA `drivers`. `observe` is called with every
    Report. `hanging` returns the number of calls to the NVIDIA driver that have not returned.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        node_name: str,
        hanging: Callable[[], float],
        drivers: Sequence[str],
    ) -> None:
        self._node = node_name
        self._shown: dict[tuple[Gauge, str], set[str]] = defaultdict(set)  # the values of the last label
        labels = ("node", "driver")

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
        gauge(HANGING_CALLS, HANGING_CALLS_TEXT, labels).labels(node_name, DRIVER_NAME).set_function(hanging)
        self._writes = counter("slice_writes", "ResourceSlices created, updated and deleted.", labels)
        self._errors = counter("publish_errors", "Attempts to publish that failed.", labels)
        self.unexpected = unexpected_errors(registry)
        """Counts unexpected errors that were contained."""
        for driver in drivers:
            self._writes.labels(node_name, driver)
            self._errors.labels(node_name, driver)

    def observe(self, report: PublishReport, driver: str) -> None:
        """Update the metrics of one DRA driver."""
        writes, errors = (counter.labels(self._node, driver) for counter in (self._writes, self._errors))
        if report.error is not None:
            errors.inc()
            return
        writes.inc(report.writes - report.failures)
        errors.inc(report.failures)
        devices = [device for gpu in report.gpus for device in gpu.devices]
        self._set(driver, self._devices, Tally(str(device.attributes.get("type", "unknown")) for device in devices))
        keys = Tally(key for device in devices for key in {taint.key for taint in device.taints})
        self._set(driver, self._tainted, keys)
        self._set(driver, self._left_out, Tally(str(left_out.reason) for left_out in report.left_out))
        self._set(driver, self._unpublished, Tally(str(problem.why) for problem in report.unpublished.values()))
        self._set(driver, self._dropped, Tally({gate: int(gate in report.missing_gates) for gate in GATES.values()}))

    def _set(self, driver: str, gauge: Gauge, values: "Tally[str]") -> None:
        shown = self._shown[gauge, driver]
        for label in shown - values.keys():
            gauge.remove(self._node, driver, label)
        self._shown[gauge, driver] = set(values)
        for label, value in values.items():
            gauge.labels(self._node, driver, label).set(value)
