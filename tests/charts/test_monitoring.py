# SPDX-License-Identifier: Apache-2.0
"""Who scrapes the pods: PodMonitors or ServiceMonitors, never both, and what they name is there."""

from collections.abc import Iterator

import pytest

from .custom_kinds import complaints
from .rendering import JSON, VALUES, find, merged, refusal, render

POD_KIND, SERVICE_KIND = (f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "ServiceMonitor"))
SERVICES: JSON = {"serviceMonitor": {"create": "always"}}
WORKLOADS = {"kubeletplugin": "DaemonSet", "controller": "Deployment"}
CONTAINERS = {"kubeletplugin": ["controller", "kubeletplugin"], "controller": ["cluster-controller"]}


def monitors(objects: list[JSON]) -> dict[str, int]:
    """Kind -> how many; Services that nobody asks through are counted, too."""
    kinds = [one["kind"] for one in objects if one["kind"] in ("PodMonitor", "ServiceMonitor", "Service")]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


@pytest.mark.parametrize(
    ("pod", "service", "apis", "expected"),
    [
        (None, None, (), {}),
        (None, None, (POD_KIND, SERVICE_KIND), {"PodMonitor": 2}),
        ("never", "auto", (), {}),
        (None, "auto", (POD_KIND,), {"PodMonitor": 2}),
        (None, "auto", (POD_KIND, SERVICE_KIND), {"Service": 2, "ServiceMonitor": 2}),
        (None, "always", (POD_KIND,), {"Service": 2, "ServiceMonitor": 2}),
        ("always", None, (), {"PodMonitor": 2}),
        ("always", "auto", (POD_KIND,), {"PodMonitor": 2}),
        ("never", None, (POD_KIND, SERVICE_KIND), {}),
    ],
)
def test_the_pods_are_asked_by_one_kind_of_monitor(
    pod: str | None, service: str | None, apis: tuple[str, ...], expected: dict[str, int]
) -> None:
    values = {
        key: {"create": create}
        for key, create in (("podMonitor", pod), ("serviceMonitor", service))
        if create is not None
    }
    assert monitors(render(values, apis=apis)) == expected


def test_two_kinds_at_once_are_refused() -> None:
    values = merged(SERVICES, {"podMonitor": {"create": "always"}})
    assert "Prometheus would ask every pod twice" in refusal(values)


def test_monitors_without_metrics_are_refused() -> None:
    for key in ("podMonitor", "serviceMonitor"):
        assert f"{key}.create=always: no metrics are served" in refusal(
            merged(VALUES["bare"], {key: {"create": "always"}})
        )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"kubeletPlugin": {"metrics": {"enabled": False}}}, ["controller"]),
        ({"controller": {"metrics": {"enabled": False}}}, ["kubeletplugin"]),
        ({"controller": {"enabled": False}}, ["kubeletplugin"]),
        ({"cleanup": {"enabled": True}}, ["controller"]),
    ],
)
@pytest.mark.parametrize("key", ["podMonitor", "serviceMonitor"])
def test_monitors_select_only_pods_that_serve_metrics(key: str, values: JSON, expected: list[str]) -> None:
    objects = render(merged(values, {key: {"create": "always"}}))
    names = [one["metadata"]["name"] for one in objects if one["kind"] in ("PodMonitor", "ServiceMonitor")]
    assert [name.rpartition("-")[2] for name in names] == expected


def scraped(values: JSON) -> Iterator[tuple[str, JSON, list[JSON], JSON]]:
    """(component, its monitor, its endpoints, its workload's pod template)."""
    objects = render(values)
    for component, kind in WORKLOADS.items():
        (monitor,) = (
            one
            for one in objects
            if one["kind"] in ("PodMonitor", "ServiceMonitor") and one["metadata"]["name"].endswith(f"-{component}")
        )
        endpoints = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        yield component, monitor, endpoints, find(objects, kind, f"-{component}")["spec"]["template"]


@pytest.mark.parametrize("name", ["everything", "service-monitors"])
def test_every_container_is_asked_where_it_serves(name: str) -> None:
    for component, _, endpoints, template in scraped(VALUES[name]):
        served = {
            container["ports"][0]["name"]: (container["name"], env["METRICS_PATH"])
            for container in template["spec"]["containers"]
            for env in [{one["name"]: one.get("value") for one in container["env"]}]
        }
        asked = [served[one["port"]] for one in endpoints]
        assert sorted(container for container, _ in asked) == CONTAINERS[component]
        assert [path for _, path in asked] == [one["path"] for one in endpoints]


def test_pod_monitors_select_pods() -> None:
    for _, monitor, _, template in scraped(VALUES["everything"]):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_service_monitors_select_services_that_select_pods() -> None:
    objects = render(merged(VALUES["service-monitors"], {"webhook": {"enabled": True}}))
    services = [one for one in objects if one["kind"] == "Service"]
    for _, monitor, endpoints, template in scraped(VALUES["service-monitors"]):
        chosen = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = (one for one in services if chosen <= one["metadata"]["labels"].items())
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        assert service["spec"]["clusterIP"] == "None"
        targets = {one["name"]: one["targetPort"] for one in service["spec"]["ports"]}
        container_ports = {port["name"] for one in template["spec"]["containers"] for port in one["ports"]}
        assert {targets[one["port"]] for one in endpoints} == container_ports


def test_network_policies_let_prometheus_in() -> None:
    objects = render(VALUES["service-monitors"])
    for component, _, _, template in scraped(VALUES["service-monitors"]):
        policy = find(objects, "NetworkPolicy", f"-{component}")["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        allowed = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        served = {port["containerPort"] for one in template["spec"]["containers"] for port in one["ports"]}
        assert allowed == served


@pytest.mark.parametrize("key", ["podMonitor", "serviceMonitor"])
def test_a_prometheus_finds_them_by_labels_and_may_be_told_how_often(key: str) -> None:
    values = {key: {"create": "always", "labels": {"release": "prometheus"}, "interval": "30s"}}
    for _, monitor, endpoints, _ in scraped(values):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert {one["interval"] for one in endpoints} == {"30s"}
    for _, _, endpoints, _ in scraped({key: {"create": "always"}}):
        assert not any("interval" in one for one in endpoints)


def test_fields_that_the_prometheus_operator_does_not_know_would_be_seen() -> None:
    monitor = find(render(VALUES["service-monitors"]), "ServiceMonitor", "-controller")
    assert complaints(monitor) == []
    (endpoint,) = monitor["spec"]["endpoints"]
    for broken, told in (
        ({"endpoints": [{**endpoint, "ports": "http"}]}, "ServiceMonitor: endpoints[].ports=http"),
        ({"endpoints": [{**endpoint, "interval": "1s1m"}]}, "ServiceMonitor: endpoints[].interval=1s1m"),
        ({"endpoints": [{**endpoint, "path": ""}]}, "ServiceMonitor: endpoints[].path="),
        ({"podMetricsEndpoints": [endpoint]}, "ServiceMonitor: no endpoints"),
    ):
        spec = {"selector": monitor["spec"]["selector"], **broken}
        assert told in complaints({**monitor, "spec": spec})
