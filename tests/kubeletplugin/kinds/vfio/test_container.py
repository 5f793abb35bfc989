# SPDX-License-Identifier: Apache-2.0
"""What KubeVirt's launcher finds in a real container: podman resolves the CDI devices that kubelet is told.

The device nodes of the simulated node are replaced by real ones, with the numbers of /dev/null.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config import API_VERSION
from dra_driver.gpu.devices.attributes import vfio_attributes
from dra_driver.gpu.pci import read_pci_gpus
from dra_driver.kube.resource import AttributeValue, ResourceClaim
from dra_driver.kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from dra_driver.kube.resource.codec import V1, decode_claim
from kubeletplugin.claims.metadata import ClaimMetadata
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.claims.specs import ClaimSpecs, cdi_names
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.containers.metadata import POD_CLAIM_NAME, MetadataFiles, metadata_names
from kubeletplugin.node.node import Node
from tests.kubeletplugin.containers.cdi.test_runtime import run
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.kernel import Kernel
from tests.support.kubevirt import ROOT, device_of, plugin_devices

from .conftest import HARDWARE

pytestmark = pytest.mark.node

UID = "9d3c6f2e-46a8-4a63-9fd2-b8c2f1d0a111"
REF = ClaimRef("team", "vm-gpu", UID)
NUMBERS = os.makedev(1, 3)
LOOK = f"""
stat --format 'node %n %F %Hr:%Lr' /dev/iommu /dev/vfio/* /dev/vfio/devices/* 2>/dev/null
ls -d /dev/nvidia* 2>/dev/null | sed 's/^/driver /'
printenv | sed 's/^/env /'
find /{ROOT} -type f -exec sh -c 'echo "file $1 $(cat $1 | tail -1)"' sh {{}} ';' 2>/dev/null
"""


@pytest.fixture(autouse=True)
def _podman_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0 or not (shutil.which("podman") and shutil.which("unshare")):
        pytest.skip("needs root, podman and unshare")
    probe = run(tmp_path_factory.mktemp("empty"), [], "true")
    if probe.returncode != 0:
        pytest.skip(f"podman cannot run a container on this machine: {probe.stderr.strip()}")


class Launcher:
    """A container of a claim, as its processes see it."""

    def __init__(self, plugin: Plugin, requests: Sequence[str]) -> None:
        plan = plugin.record(REF).plan
        names = [name for one in plan.devices for name in cdi_names(UID, one)]
        names += [name for found in metadata_names(UID, dict.fromkeys(requests)).values() for name in found]
        done = run(plugin.cdi, names, LOOK)
        assert done.returncode in (0, 1), done.stderr
        lines = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
        self.nodes = {text.split()[0]: text.split()[-1] for kind, text in lines if kind == "node" and "special" in text}
        self.driver = [text for kind, text in lines if kind == "driver"]
        self.environment = dict(text.split("=", 1) for kind, text in lines if kind == "env" and "=" in text)
        self.files = {path: text for kind, text in lines if kind == "file" for path, _, text in [text.partition(" ")]}

    def root(self, folder: Path) -> Path:
        """Its metadata files, below a folder."""
        for path, text in self.files.items():
            file = folder / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return folder


@pytest.fixture
def plugin(tmp_path: Path, kernel: Kernel, api: ApiServer) -> Iterator[Plugin]:
    """A plugin that writes metadata files."""
    (kernel.dev / "vfio/vfio").touch()
    (kernel.dev / "vfio/devices").mkdir()

    def attributes(device: str) -> dict[str, AttributeValue]:
        found = {f"gpu-vfio-{one.position}": one for one in read_pci_gpus(kernel.driver_root / "sys")}
        return vfio_attributes(found[device], None, iommufd=True, numa_lists=False)

    class WithMetadata(ClaimSpecs):
        def __init__(self, node: Node, common: CommonSpec) -> None:
            files = MetadataFiles(node.folders.metadata)
            super().__init__(node, common, ClaimMetadata(files, attributes, api.fetch, enabled=True))

    plugin = Plugin(tmp_path, api, hardware=HARDWARE, specs=WithMetadata)
    yield plugin
    plugin.stop()


def prepared(
    kernel: Kernel, plugin: Plugin, requests: Sequence[str], annotations: dict[str, str], **iommu: object
) -> Launcher:
    """A container with the GPUs 0, 1 ... for these requests."""
    plugin.api.claims[UID] = claim(requests, annotations, iommu)
    for index in range(len(requests)):  # cdevs that the kernel will make
        (kernel.dev / f"vfio/devices/vfio{2 * index}").touch()
        (kernel.dev / f"vfio/devices/vfio{2 * index + 1}").touch()
    plugin.engine.prepare(REF)
    for file in (*kernel.dev.glob("vfio/*"), *kernel.dev.glob("vfio/devices/*"), kernel.dev / "iommu"):
        if not file.is_dir():
            file.unlink()
            os.mknod(file, stat.S_IFCHR | 0o600, NUMBERS)
    (spec,) = (one for one in plugin.cdi.iterdir() if UID in one.name)
    text = spec.read_text()
    spec.write_text(re.sub(r'"path": ?"(/dev/[^"]*)"', rf'"path":"\1","hostPath":"{kernel.driver_root}\1"', text))
    return Launcher(plugin, requests)


def claim(requests: Sequence[str], annotations: dict[str, str], iommu: dict[str, object]) -> ResourceClaim:
    """A claim of a machine."""
    results = [
        {"request": request, "driver": "gpu.nvidia.com", "pool": "node-a", "device": f"gpu-vfio-{index}"}
        for index, request in enumerate(requests)
    ]
    parameters: dict[str, Any] = {"apiVersion": API_VERSION, "kind": "VfioDeviceConfig", "iommu": iommu}
    config = [{"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    wanted = [{"name": name, "exactly": {"deviceClassName": "vfio.gpu.nvidia.com"}} for name in dict.fromkeys(requests)]
    value = {
        "metadata": {"name": REF.name, "namespace": REF.namespace, "uid": UID, "annotations": annotations},
        "spec": {"devices": {"requests": wanted}},
        "status": {"allocation": {"devices": {"results": results, "config": config if iommu else []}}},
    }
    return decode_claim(value, V1)


def test_a_launcher_with_claims_finds_its_gpus(kernel: Kernel, plugin: Plugin, tmp_path: Path) -> None:
    settings: dict[str, object] = {"backendPolicy": "LegacyOnly", "enableAPIDevice": True}
    launcher = prepared(kernel, plugin, ["first", "second"], {POD_CLAIM_NAME: "gpus"}, **settings)
    groups = [f"/dev/vfio/{kernel.group(address)}" for address in kernel.gpus[:2]]
    assert launcher.nodes == dict.fromkeys([*groups, "/dev/vfio/vfio"], "1:3")
    assert (launcher.driver, launcher.environment["NVIDIA_VISIBLE_DEVICES"]) == ([], "void")
    root = launcher.root(tmp_path / "container")
    assert [device_of(root, one, pod_claim="gpus") for one in ("first", "second")] == [
        ("pci", address) for address in kernel.gpus[:2]
    ]


def test_a_launcher_without_claims_finds_its_gpus_in_the_variable_of_the_resource(
    kernel: Kernel, plugin: Plugin
) -> None:
    requests = ["container-0-request-0"] * 2
    launcher = prepared(kernel, plugin, requests, {EXTENDED_CLAIM_ANNOTATION: "true"})
    groups = {f"/dev/vfio/{kernel.group(address)}" for address in kernel.gpus[:2]}
    cdevs = {one for one in launcher.nodes if one.startswith("/dev/vfio/devices/")}
    assert launcher.nodes.keys() - cdevs == {*groups, "/dev/vfio/vfio", "/dev/iommu"}
    assert len(cdevs) == 3, "two GPUs, and the audio function of one"
    resource = "deviceclass.resource.kubernetes.io/vfio.gpu.nvidia.com"
    assert plugin_devices(launcher.environment, resource, resource) == kernel.gpus[:2]
