# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/install.md from beginning to end: install, run pods, upgrade while they run, uninstall; nothing is left.

What it says of a cleanup that comes too early is tried, too. Helm's own engine puts the chart on an API server that
enforces RBAC. The containers run as processes, with the commands, environments and accounts that the API server then
has for them, beside a kubelet and a scheduler.
"""

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.simulated import SimulatedNode, load_description
from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.kinds import CONFIG_MAPS, DAEMON_SETS, DEFINITIONS, DEPLOYMENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.apiserver import ApiServerOptions
from dra_driver.sandbox.claimcontroller import ClaimController
from dra_driver.sandbox.kubelet import Kubelet, KubeletOptions, KubernetesCluster, Periods
from dra_driver.sandbox.loop import CLAIMS, SLICES, TEMPLATES, ControlLoop
from dra_driver.sandbox.scheduler import Scheduler
from tests.charts.rendering import CHART, NAMESPACE, merged
from tests.charts.workloads import NODE, Containers, short_folder
from tests.support.apiserver import connect
from tests.support.faultyserver import FaultyServer
from tests.support.waiting import wait_for

from .commands import ROOT

JSON = dict[str, Any]

RELEASE = "dra-driver-gpu"
DOMAIN_KINDS = (COMPUTE_DOMAINS, CLIQUES)
RUN = {
    "ConfigMap": CONFIG_MAPS,
    "DaemonSet": DAEMON_SETS,
    "Deployment": DEPLOYMENTS,
    "ServiceAccount": SERVICE_ACCOUNTS,
}
"""What is needed of an installation to run its containers."""
EXAMPLES = {"mig-slices": ("mig-slices",), "whole-gpu": ("whole-gpu-0", "whole-gpu-1")}
"""Example -> its pods."""
CLEANUP = {"cleanup": {"enabled": True}}
QUICK = Periods(pod_resync=2.0, unprepare_retry=2.0, claim_reconcile=2.0, wipe_delay=2.0)


def objects_of(example: str) -> Iterator[tuple[Kind, JSON]]:
    """The templates and pods of an example."""
    for value in yaml.safe_load_all((ROOT / f"examples/{example}.yaml").read_text(encoding="utf-8")):
        yield {"ResourceClaimTemplate": TEMPLATES, "Pod": PODS}[value["kind"]], value


class Cluster:
    """An API server, and a node with a kubelet; Helm, and the containers of what it installed."""

    def __init__(self, server: FaultyServer, admin: ApiClient, folder: Path, kubelet: Kubelet) -> None:
        self.server = server
        self.admin = admin
        self.folder = folder
        self.kubelet = kubelet
        self.helm = helm_python.Config(kubeconfig_path=folder / "admin", namespace=NAMESPACE)
        self.values: JSON = {
            "simulatedNode": "h100x8-mixed",
            "kubeletPlugin": {
                "kubeletRegistrarDirectoryPath": str(kubelet.options.registration_dir),
                "kubeletPluginsDirectoryPath": str(kubelet.options.plugins_dir),
                "cdiRoot": str(folder / "cdi"),
                "metrics": {"enabled": False},
            },
            "controller": {"metrics": {"enabled": False}},
        }

    def objects(self) -> set[str]:
        """`collection key` of everything that the API server holds, except Events, which go by themselves, and the
        Leases of nodes, which are kubelet's.
        """
        return self.server.call(
            lambda cluster: {
                f"{name} {key}"
                for name in cluster.store.names()
                for key in cluster.store.collection(name).records
                if not name.startswith("events") and not key.startswith("kube-node-lease/")
            }
        )

    def containers(self) -> Containers:
        """Those of what is installed now; none runs yet."""
        objects = [
            {**one, "kind": name}
            for name, kind in RUN.items()
            for one in self.admin.list(kind, namespace=NAMESPACE).items
        ]
        accounts = {}
        for one in objects:
            if one["kind"] == "ServiceAccount":
                name = one["metadata"]["name"]
                token = self.server.add_service_account(NAMESPACE, name, node=NODE)
                accounts[name] = self.server.write_kubeconfig(self.folder / f"kubeconfig-{name}", token=token)
        return Containers(objects, self.admin, self.server.faults, accounts, self.folder)

    def on_node(self) -> list[str]:
        """What the driver has on the node: sockets, records, marks and CDI specs; the hardware aside."""
        places = (self.kubelet.options.registration_dir, self.kubelet.options.plugins_dir, self.folder / "cdi")
        hardware = self.kubelet.options.plugins_dir / DRIVER_NAME / "simulated"
        files = (path for place in places for path in place.rglob("*"))
        return sorted(str(path) for path in files if path != hardware.parent and not path.is_relative_to(hardware))

    def mig_devices(self) -> set[str]:
        """UUIDs of the MIG devices that the hardware holds."""
        node = SimulatedNode(self.kubelet.options.plugins_dir / DRIVER_NAME / "simulated")
        nvml = node.nvml()
        nvml.initialize()
        gpus = read_inventory(nvml, node.driver_root / "sys").gpus
        return {one.uuid for gpu in gpus for one in gpu.mig_instances}

    def apply(self, example: str) -> None:
        """Create the objects of an example in namespace default."""
        for kind, value in objects_of(example):
            self.admin.create(kind, value, "default")

    def phases(self) -> dict[str, str]:
        """Those of the examples' pods, by name."""
        pods = self.admin.list(PODS, namespace="default").items
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods}

    def start(self, stack: contextlib.ExitStack) -> Containers:
        """The containers of what is installed now, which run until `stack` is left."""
        containers = self.containers()
        stack.callback(containers.kill)
        containers.start("Deployment", "cluster-controller")
        for name in ("controller", "kubeletplugin"):
            containers.start("DaemonSet", name)
        self.kubelet.wait_registered(DRIVER_NAME)
        wait_for(lambda: self.admin.list(SLICES).items, "slices")
        return containers

    def clean_up(self, stack: contextlib.ExitStack) -> tuple[int, str]:
        """(exit status, log) of the container that cleans the node up."""
        containers = self.containers()
        stack.callback(containers.kill)
        return containers.start("DaemonSet", "cleanup").wait(60), containers.log

    def delete(self, example: str) -> None:
        """Delete the objects of an example."""
        for kind, value in objects_of(example):
            self.admin.delete(kind, value["metadata"]["name"], "default")

    def wait_cleared(self) -> None:
        """Wait until pods and claims are gone."""
        self.kubelet.wait(lambda: not self.admin.list(PODS).items and not self.admin.list(CLAIMS).items, what="an end")


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """One in which nothing is installed."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        server = stack.enter_context(FaultyServer(ApiServerOptions(rbac=True)))
        admin = stack.enter_context(connect(server.write_kubeconfig(folder / "admin")))
        admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        (folder / "cdi").mkdir()
        # Without the right to make device nodes, the simulated ones are plain files.
        probe = SimulatedNode.create(folder / "probe", load_description("l40sx4"), NODE).driver_root
        real = stat.S_ISCHR((probe / "dev/nvidiactl").stat().st_mode)
        options = KubeletOptions(
            NODE,
            folder / "kubelet",
            folder / "cdi",
            periods=QUICK,
            plain_files=not real,
        )
        kubelet = stack.enter_context(Kubelet(options, KubernetesCluster(admin, node_name=NODE)))
        kubelet.wait_ready()
        loop = ControlLoop(admin, [ClaimController(admin), Scheduler(admin)])
        loop.start()
        stack.callback(loop.stop)
        made = Cluster(server, admin, folder, kubelet)
        stack.enter_context(made.helm)
        yield made


def test_an_installation_that_has_run_pods_leaves_nothing() -> None:
    with cluster() as one, contextlib.ExitStack() as stack:
        before = one.objects()
        one.helm.install(str(CHART), RELEASE, one.values, namespace=NAMESPACE)
        first = one.start(stack)
        for example, pods in EXAMPLES.items():
            one.apply(example)
            for pod in pods:
                one.kubelet.wait_pod_running("default", pod)
        used = one.mig_devices()
        assert len(used) == 4

        # The cleanup comes too early: pods run. Those that end meanwhile wait until it is switched off.
        one.helm.upgrade(str(CHART), RELEASE, merged(one.values, CLEANUP))
        first.terminate()
        one.kubelet.wait_deregistered(DRIVER_NAME)
        status, log = one.clean_up(stack)
        assert status == 1
        assert "3 claims are prepared: default/" in log
        one.delete("whole-gpu")
        one.kubelet.wait_event("FailedUnprepareDynamicResources")
        refusals = one.kubelet.journal.entries("FailedUnprepareDynamicResources")
        assert {entry.message for entry in refusals} == {
            f"unprepare dynamic resources: DRA driver {DRIVER_NAME} is not registered"
        }
        assert one.phases().keys() == {"mig-slices", "whole-gpu-0", "whole-gpu-1"}

        one.helm.upgrade(str(CHART), RELEASE, merged(one.values, {"logVerbosity": 4}))
        second = one.start(stack)
        one.kubelet.wait(lambda: one.phases() == {"mig-slices": "Running"}, what="the other pods to be gone")
        assert one.mig_devices() == used

        one.delete("mig-slices")
        one.wait_cleared()
        assert one.mig_devices() == set()
        one.helm.upgrade(str(CHART), RELEASE, merged(one.values, CLEANUP))
        second.terminate()
        status, log = one.clean_up(stack)
        assert status == 0, log
        one.helm.uninstall(RELEASE)

        assert one.on_node() == []
        one.kubelet.wait(lambda: not one.admin.list(SLICES).items, what="the slices to be gone")
        # Helm keeps the definitions, and so all ComputeDomains.
        kept = {f"{DEFINITIONS.plural}.apiextensions.k8s.io {kind.plural}.resource.nvidia.com" for kind in DOMAIN_KINDS}
        assert one.objects() - before == kept
        for kind in DOMAIN_KINDS:
            one.admin.delete(DEFINITIONS, f"{kind.plural}.resource.nvidia.com")
        one.admin.delete(NAMESPACES, NAMESPACE)
        one.kubelet.wait(lambda: one.objects() <= before, what="the namespace to be gone with what was in it")
