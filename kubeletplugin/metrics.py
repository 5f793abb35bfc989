# SPDX-License-Identifier: Apache-2.0
"""The metrics of dra-kubeletplugin.

Metrics that NVIDIA's DRA driver also has use its names, labels and meanings, so that its dashboards work: requests
and their durations count claims that were prepared or unprepared, and failures are counted by kind. The other metrics
are our own.
"""

import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.names import DRIVER_NAME
from dra_driver.process.endpoints import HANGING_CALLS, HANGING_CALLS_TEXT, PREFIX, unexpected_errors

from .claims.boundary import ERROR_TYPES
from .claims.model import Step

PREPARE: Final = "prepare"
UNPREPARE: Final = "unprepare"

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2)

SHARE_LABELS: Final = ("driver", "device", "share_id", "namespace", "claim", "enforced_by")


def error_type(error: Exception) -> str:
    """The label of an error, which tells its cause."""
    return next((label for kind, label in ERROR_TYPES.items() if isinstance(error, kind)), "internal")


class PluginMetrics:
    """The metrics of the plugin on `node`, in `registry`, where features add theirs. Methods may be called from any
    thread.
    """

    def __init__(self, registry: CollectorRegistry, node: str) -> None:
        self.registry = registry
        self._node = node
        counter = partial(Counter, namespace=PREFIX, registry=registry)
        gauge = partial(Gauge, namespace=PREFIX, registry=registry)
        histogram = partial(Histogram, namespace=PREFIX, registry=registry, buckets=_SECONDS)
        operation = ("driver", "operation")
        self._requests = counter("requests", "Claims that were prepared or unprepared.", operation)
        self._durations = histogram(
            "request_duration_seconds",
            "Duration of successful prepares and unprepares of one claim.",
            operation,
        )
        self._inflight = gauge("requests_inflight", "Claims that are being prepared or unprepared now.", operation)
        errors = ("driver", "error_type")
        self._errors = {
            PREPARE: counter("node_prepare_errors", "Prepares of claims that failed.", errors),
            UNPREPARE: counter("node_unprepare_errors", "Unprepares of claims that failed.", errors),
        }
        self._steps = histogram(
            "step_duration_seconds",
            "Duration of each step of a claim's plan.",
            ("driver", "verb", "step"),
        )
        self._claim_events = counter(
            "claim_events",
            "Problems and recoveries of claims that no call of kubelet caused, by reason of the Event.",
            ("driver", "reason"),
        )
        self._api = counter("api_requests", "Requests to the API server, by HTTP status.", ("driver", "method", "code"))
        results = ("driver", "result")
        self._registrations = counter("registrations", "Registrations with kubelet, by result.", results)
        self._registered = gauge("registered", "1 while the plugin is registered with kubelet.", ("driver",))
        self._status_writes = counter("claim_status_writes", "Writes of device statuses to claims, by result.", results)
        self._series: dict[tuple[str, str], tuple[Gauge, Counter, Histogram]] = {}
        self.unexpected_error = unexpected_errors(registry)
        self.begin(DRIVER_NAME)

    def begin(self, driver: str) -> None:
        """Publish the series of a driver, because alerts need series that exist from the start."""
        for name in (PREPARE, UNPREPARE):
            self._series[driver, name] = (
                self._inflight.labels(driver, name),
                self._requests.labels(driver, name),
                self._durations.labels(driver, name),
            )
        self._registered.labels(driver).set(0)

    @contextmanager
    def request(self, operation: str, driver: str = DRIVER_NAME) -> Iterator[None]:
        """Count and time the work for one claim. An exception is counted as a failure by its kind, and raised again."""
        inflight, requests, durations = self._series[driver, operation]
        inflight.inc()
        began = time.perf_counter()
        try:
            yield
        except Exception as error:
            self._errors[operation].labels(driver, error_type(error)).inc()
            raise
        else:
            requests.inc()
            durations.observe(time.perf_counter() - began)
        finally:
            inflight.dec()

    def step(self, verb: str, step: Step, seconds: float, driver: str = DRIVER_NAME) -> None:
        """Record the duration of a step: `do` or `undo`."""
        self._steps.labels(driver, verb, step_label(type(step))).observe(seconds)

    def claim_event(self, reason: str, driver: str = DRIVER_NAME) -> None:
        """Count an event of a claim that no call of kubelet caused: a leftover was removed, a record was damaged."""
        self._claim_events.labels(driver, reason).inc()

    def api_request(self, method: str, code: str) -> None:
        """Count a request to the API server. `code` is the HTTP status, or `unreachable`."""
        self._api.labels(DRIVER_NAME, method, code).inc()

    def registration(self, registered: bool, driver: str = DRIVER_NAME) -> None:
        """Count the result of a registration with kubelet."""
        self._registrations.labels(driver, "success" if registered else "failure").inc()
        self._registered.labels(driver).set(registered)

    def status_write(self, result: str) -> None:
        """Count a write of a claim's device status: `written`, `unchanged`, `failed` or `dropped`."""
        self._status_writes.labels(DRIVER_NAME, result).inc()

    def hanging_calls(self, count: Callable[[], float]) -> None:
        """Publish the number of calls to the driver that have not returned."""
        self.gauge(HANGING_CALLS, HANGING_CALLS_TEXT, count)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge whose value is computed when it is read."""
        Gauge(name, text, ("driver",), namespace=PREFIX, registry=self.registry).labels(DRIVER_NAME).set_function(value)

    def prepared_devices(
        self, types: Callable[[], Iterable[str]], domain_types: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """Publish the number of devices of prepared claims. `types` returns the type of each: `gpu`, `mig`, `vfio` or
        `vgpu`. `domain_types` returns `channel` and `daemon`, of the driver compute-domain.nvidia.com.
        """

        def counts() -> Tally[tuple[str, ...]]:
            found = Tally({"gpu": 0, "mig": 0})
            found.update(types())
            counted: Tally[tuple[str, ...]] = Tally(
                {(self._node, DRIVER_NAME, kind): count for kind, count in found.items()}
            )
            counted.update((self._node, DOMAIN_DRIVER, kind) for kind in domain_types())
            return counted

        labels = ("node", "driver", "device_type")
        self.registry.register(Gauges("prepared_devices", "Devices of prepared claims.", labels, counts))

    def shares(self, prepared: Callable[[], Iterable[Mapping[str, str]]]) -> None:
        """Publish the prepared shares. `prepared` returns the values of SHARE_LABELS for each, and its `limit` in bytes
        (empty if nothing limits its memory).
        """

        def values() -> dict[tuple[str, ...], float]:
            found = list(prepared())
            return {tuple(share[name] for name in SHARE_LABELS): float(share["limit"] or "inf") for share in found}

        text = "Memory limit of each prepared share of a device; +Inf if nothing limits it."
        self.registry.register(Gauges("share_memory_limit_bytes", text, SHARE_LABELS, values))


def step_label(step: type[Step]) -> str:
    """The label of a class of steps, such as `mig_mode` for MigModeStep."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", step.__name__.removesuffix("Step")).lower()


class Gauges(Collector):
    """A gauge whose series are known when it is read. `values` returns them by the values of `labels`."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        values: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._name = name
        self._text = text
        self._labelnames = labels
        self._values = values

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, value in self._values().items():
            family.add_metric(labels, value)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}_{self._name}", self._text, labels=self._labelnames)
