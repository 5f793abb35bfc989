# SPDX-License-Identifier: Apache-2.0
"""The metrics of each process as rows of docs/reference/metrics.md, from the collectors that the process registers."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from controller.cluster.caretaker import Metrics
from controller.cluster.domains.loop import DomainMetrics
from controller.cluster.leftovers import REASONS
from controller.node.metrics import PublisherMetrics
from controller.node.writer import Why
from dra_driver.domains.daemon.supervisor import DaemonMetrics
from dra_driver.gpu.devices.forms import Reason
from dra_driver.gpu.policy import Enforcement
from dra_driver.process.endpoints import PREFIX, unexpected_errors
from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.drivers import domain_driver, gpu_driver
from kubeletplugin.features.mps.metrics import MPS_STATES, publish_daemons, restart_counter
from kubeletplugin.metrics import PREPARE, UNPREPARE, PluginMetrics, error_type, step_label

from .commands import ROOT
from .events import event_reasons


def _values(label: str, values: Iterable[str]) -> str:
    return f"`{label}`: {', '.join(values)}"


_OPERATIONS = _values("operation", (PREPARE, UNPREPARE))
_ERROR_TYPES = _values("error_type", sorted({"internal", *(error_type(one.__new__(one)) for one in EXPECTED_ERRORS)}))

_STEPS = [step_label(step) for driver in (gpu_driver(), domain_driver()) for step in driver.steps if not step.SPEC_ONLY]


@cache
def additional_texts() -> Mapping[str, str]:
    """What to say beside the code's own text, by the metric's name without the prefix."""
    return {
        "api_requests_total": "`code` is `unreachable` if there was no answer",
        "claim_events_total": _values("reason", sorted(event_reasons("kubeletplugin") - {"PrepareFailed"}))
        + "; their meaning: [Events](../how-to/troubleshooting/events.md)",
        "claim_status_writes_total": _values("result", ("written", "unchanged", "failed", "dropped")),
        "left_out_devices": _values("reason", sorted(Reason)),
        "leftover_slices_removed_total": _values("reason", REASONS),
        "missing_feature_gates": "What is published without it: [Kubernetes versions](devices.md#kubernetes-versions)",
        "mps_daemon_start_time_seconds": "`devices`: names of devices, such as `gpu-0,gpu-1`",
        "mps_daemons": f"{_values('state', MPS_STATES)}",
        "node_prepare_errors_total": _ERROR_TYPES,
        "node_unprepare_errors_total": _ERROR_TYPES,
        "registrations_total": _values("result", ("success", "failure")),
        "request_duration_seconds": _OPERATIONS,
        "requests_inflight": _OPERATIONS,
        "requests_total": f"Without failures. {_OPERATIONS}",
        "share_memory_limit_bytes": f"{_values('enforced_by', sorted({*Enforcement} - {Enforcement.AUTO}))}",
        "step_duration_seconds": f"{_values('verb', ('do', 'undo'))}; {_values('step', _STEPS)}",
        "unexpected_errors_total": "Each one is a defect of the driver; the log has its traceback",
        "unpublished_slices": _values("reason", sorted(Why)),
        "tainted_devices": "Keys: [taints](health.md)",
    }


class _Collected(CollectorRegistry):
    """A registry that keeps what is registered, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self.collectors.append(collector)


def of_kubeletplugin() -> Iterator[Sequence[str]]:
    """The table of dra-kubeletplugin."""
    registry = _Collected()
    metrics = PluginMetrics(registry, "")
    restart_counter(metrics)
    metrics.prepared_devices(tuple)
    publish_daemons(metrics, tuple)
    metrics.shares(tuple)
    metrics.hanging_calls(float)
    for name, text in _gauges(ROOT / "kubeletplugin/serve.py"):
        metrics.gauge(name, text, float)
    yield from _rows(registry)


def of_controller() -> Iterator[Sequence[str]]:
    """The table of dra-controller."""
    registry = _Collected()
    PublisherMetrics(registry, "", float, ())
    yield from _rows(registry)


def of_cluster_controller() -> Iterator[Sequence[str]]:
    """The table of dra-cluster-controller."""
    registry = _Collected()
    Metrics(registry)
    yield from _rows(registry)


def of_compute_domains() -> Iterator[Sequence[str]]:
    """The table of dra-cluster-controller with ComputeDomains, without the metrics that it always has."""
    registry = _Collected()
    DomainMetrics(registry)
    unexpected_errors(registry)
    yield from _rows(registry)


def of_imex_daemon() -> Iterator[Sequence[str]]:
    """The table of dra-imex-daemon."""
    registry = _Collected()
    DaemonMetrics(registry)
    unexpected_errors(registry)
    yield from _rows(registry)


def alerts() -> Iterator[Sequence[str]]:
    """The table of the chart's alerts."""
    yield "alert", "expression", "for", "severity", "meaning"
    for one in yaml.safe_load((ROOT / "charts/dra-driver-gpu/files/alerts.yaml").read_text(encoding="utf-8")):
        notes = one["annotations"]
        meaning = f"{notes['description']} [What to do](../{notes['runbook_url']})"
        yield f"`{one['alert']}`", f"`{one['expr']}`", one.get("for", ""), one["labels"]["severity"], meaning


def _rows(registry: _Collected) -> Iterator[Sequence[str]]:
    """Name, type, labels, meaning."""
    yield "metric", "type", "labels", "meaning"
    for collector in registry.collectors:
        (family,) = collector.collect()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        more = additional_texts().get(name.removeprefix(f"{PREFIX}_"), "")
        yield f"`{name}`", family.type, ", ".join(_labels(collector, family)), f"{family.documentation} {more}".strip()


def _labels(collector: Collector, family: Metric) -> Sequence[str]:
    """Those of the library's own collectors are known before there is a series, if only to them."""
    known: Sequence[str] | None = getattr(collector, "_labelnames", None)
    return known if known is not None else list(family.samples[0].labels)


def _gauges(path: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of the gauges that a file adds to the plugin's."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="gauge"),
                args=[ast.Constant(value=str(name)), ast.Constant(value=str(text)), _],
            ):
                yield name, text
