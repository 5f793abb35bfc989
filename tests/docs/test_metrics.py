# SPDX-License-Identifier: Apache-2.0
"""docs/reference/metrics.md: running processes have the metrics of their table and no other, where the page says."""

import re
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.kube.kinds import NODES
from dra_driver.process.endpoints import PREFIX
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.charts.rendering import CHART
from tests.support.apiserver import connect
from tests.support.preloaded import start
from tests.support.waiting import wait_for

from .commands import ROOT
from .metrics import (
    additional_texts,
    of_cluster_controller,
    of_compute_domains,
    of_controller,
    of_imex_daemon,
    of_kubeletplugin,
)
from .running import environment

PAGE, MONITORING = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("reference/metrics", "how-to/monitoring")
)
NODE = "node-a"
PROCESSES = {
    "kubeletplugin.main": of_kubeletplugin,
    "controller.main": of_controller,
    "controller.cluster.main": of_cluster_controller,
}
DOMAINS = {"COMPUTE_DOMAINS": "true", "IMEX_MODE": "hostManaged"}


def names_of(table: Callable[[], Iterator[Sequence[str]]]) -> set[str]:
    """The metrics of a table."""
    return {row[0].strip("`") for row in list(table())[1:]}


DOCUMENTED = {module: names_of(table) for module, table in PROCESSES.items()}
EVERY = set().union(*DOCUMENTED.values(), names_of(of_compute_domains), names_of(of_imex_daemon))


@pytest.fixture(scope="module")
def settings() -> Iterator[Mapping[str, str]]:
    """The environment of any process of a node with simulated GPUs. (Paths of sockets have to be short.)"""
    with tempfile.TemporaryDirectory(prefix="dra-") as name, ApiServer(ApiServerOptions()) as server:
        folder = Path(name)
        kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        with connect(kubeconfig) as admin:
            admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        yield environment(kubeconfig) | {
            "CDI_ROOT": str(folder / "cdi"),
            "HTTP_ENDPOINT": "127.0.0.1:0",
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(folder / "plugins"),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(folder / "registry"),
            "NAMESPACE": "default",
            "NODE_NAME": NODE,
            "POD_NAME": "pod",
            "SIMULATED_NODE": "a30x4",
            "SIMULATED_ROOT": str(folder / "gpus"),
        }


@pytest.mark.parametrize("module", PROCESSES)
def test_a_process_has_the_metrics_of_its_table(module: str, settings: Mapping[str, str], tmp_path: Path) -> None:
    names = served(module, settings, tmp_path / "log")
    assert {name for name in names if name.startswith(PREFIX)} == DOCUMENTED[module]
    assert any(name.startswith("process_") for name in names)


def test_with_compute_domains_the_cluster_controller_has_more_metrics(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    module = "controller.cluster.main"
    names = served(module, {**settings, **DOMAINS}, tmp_path / "log")
    wanted = DOCUMENTED[module] | names_of(of_compute_domains)
    assert {name for name in names if name.startswith(PREFIX)} == wanted


def served(module: str, settings: Mapping[str, str], log: Path) -> set[str]:
    """The names of the metrics that a process serves."""
    with (
        log.open("wb") as stderr,
        start([sys.executable, "-m", module], env=settings, stderr=stderr) as process,
    ):
        try:
            wait_for(lambda: "serving /metrics" in log.read_text() or process.poll() is not None, "its metrics")
            port = re.search(r"serving /metrics.* port=(\d+)", log.read_text())
            assert port, log.read_text()
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=30) as answer:
                text = answer.read().decode()
        finally:
            process.kill()
    families = text_string_to_metric_families(text)
    return {one.name + ("_total" if one.type == "counter" else "") for one in families}


def test_additional_texts_belong_to_metrics() -> None:
    assert {f"{PREFIX}_{name}" for name in additional_texts()} <= EVERY


def test_alerts_are_about_metrics() -> None:
    assert set(re.findall(rf"{PREFIX}_\w+", PAGE + MONITORING)) == EVERY


def test_the_ports_are_the_charts() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    of_plugin, of_cluster = values["kubeletPlugin"]["metrics"], values["controller"]["metrics"]
    table = re.findall(r"^\| `(dra-[\w-]+)` \|.*\| (\d+), `([\w-]+)` \| `(.+)` \|$", PAGE, re.MULTILINE)
    assert [(name, f":{port}", path) for name, port, _, path in table] == [
        ("dra-kubeletplugin", of_plugin["gpuHttpEndpoint"], of_plugin["metricsPath"]),
        ("dra-controller", of_plugin["controllerHttpEndpoint"], of_plugin["metricsPath"]),
        ("dra-cluster-controller", of_cluster["httpEndpoint"], of_cluster["metricsPath"]),
    ]
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").glob("*.yaml"))
    assert all(f"{{name: {port}, containerPort: " in templates for _, _, port, _ in table)
