# SPDX-License-Identifier: Apache-2.0
"""Which device KubeVirt finds in our metadata files and variables, by its own rules (`tests.support.kubevirt`)."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.devices.attributes import vfio_attributes
from dra_driver.gpu.inventory import PciGpu
from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.kube.kinds import classes_of
from dra_driver.kube.resource import AttributeValue, ResourceClaim
from dra_driver.kube.resource.codec import V1, decode_claim
from dra_driver.names import DRIVER_NAME
from kubeletplugin.containers.metadata import POD_CLAIM_NAME, MetadataFiles
from kubeletplugin.kinds.vfio.kubevirt import ClassReader, container_of, resource_variables, variable
from tests.support.kubevirt import ROOT, NoDeviceError, device_of, plugin_devices

UID = "9d3c6f2e-46a8-4a63-9fd2-b8c2f1d0a111"
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0")
GPUS = tuple(
    PciGpu(position, address, 0x2330, "GH100 [H100 SXM5 80GB]", "vfio-pci", 16 + position, 1 << 37, None, None)
    for position, address in enumerate(ADDRESSES)
)
ATTRIBUTES: Mapping[str, Mapping[str, AttributeValue]] = {
    **{f"gpu-vfio-{one.position}": vfio_attributes(one, None, iommufd=True, numa_lists=False) for one in GPUS},
    "vgpu-0": {"mdevUUID": "b0e0d5b2-0000", "resource.kubernetes.io/pciBusID": ADDRESSES[0]},
}
CLASSES = classes_of(V1)
NAMED = "resource.kubernetes.io/extended-resource-claim"


def claim(*requests: tuple[str, str], annotations: Mapping[str, str] | None = None, **spec: Any) -> ResourceClaim:
    """A claim that was given a device for each request."""
    results = [
        {"request": request, "driver": DRIVER_NAME, "pool": "node-a", "device": device} for request, device in requests
    ]
    meta = {"name": "vm-gpu", "namespace": "team", "uid": UID, "annotations": dict(annotations or {})}
    return decode_claim(
        {"metadata": meta, "spec": spec, "status": {"allocation": {"devices": {"results": results}}}}, V1
    )


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """The root of a launcher's container."""
    return tmp_path / "container"


def mount(container: Path, folder: Path, given: ResourceClaim) -> None:
    """Put the files of a claim where their mounts are."""
    files = MetadataFiles(folder)
    files.write(given, lambda device: ATTRIBUTES.get(device, {}))
    for edits in files.edits(given.metadata.uid).values():
        for one in edits.mounts:
            target = container / one.container_path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(one.host_path, target)


def test_a_gpu_of_a_claim_is_found_by_its_address(container: Path, tmp_path: Path) -> None:
    mount(container, tmp_path / "files", claim(("gpu", "gpu-vfio-0"), ("second", "gpu-vfio-1")))
    assert device_of(container, "gpu", claim="vm-gpu") == ("pci", ADDRESSES[0])
    assert device_of(container, "second", claim="vm-gpu") == ("pci", ADDRESSES[1])


def test_a_claim_from_a_template_is_found_by_the_machines_name_for_it(container: Path, tmp_path: Path) -> None:
    mount(container, tmp_path / "files", claim(("gpu", "gpu-vfio-1"), annotations={POD_CLAIM_NAME: "gpu-claim"}))
    assert device_of(container, "gpu", pod_claim="gpu-claim") == ("pci", ADDRESSES[1])
    with pytest.raises(NoDeviceError, match="0 files"):
        device_of(container, "gpu", claim="vm-gpu")


def test_a_mediated_device_is_found_by_its_uuid(container: Path, tmp_path: Path) -> None:
    mount(container, tmp_path / "files", claim(("gpu", "vgpu-0")))
    assert device_of(container, "gpu", claim="vm-gpu") == ("mdev", "b0e0d5b2-0000")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((("gpu", "gpu-vfio-0"), ("gpu", "gpu-vfio-1")), "not one device"),
        ((("gpu/large", "gpu-vfio-0"),), "not one device"),
        ((("gpu", "unknown"),), "no mdevUUID and no pciBusID"),
        ((("other", "gpu-vfio-0"),), "0 files"),
    ],
)
def test_kubevirt_finds_one_device_of_one_exact_request(
    container: Path, tmp_path: Path, given: Iterable[tuple[str, str]], problem: str
) -> None:
    """What docs/how-to/virtual-machines.md says of claims for KubeVirt: no count above 1, and no prioritized list."""
    mount(container, tmp_path / "files", claim(*given))
    with pytest.raises(NoDeviceError, match=problem):
        device_of(container, "gpu", claim="vm-gpu")


def test_a_file_of_another_driver_for_the_same_request_hides_ours(container: Path, tmp_path: Path) -> None:
    mount(container, tmp_path / "files", claim(("gpu", "gpu-vfio-0")))
    (container / ROOT / "resourceclaims/vm-gpu/gpu/nic.example.com-metadata.json").write_text("{}")
    with pytest.raises(NoDeviceError, match="2 files"):
        device_of(container, "gpu", claim="vm-gpu")


# Extended resources


def extended(*requests: tuple[str, str], annotation: str = "true") -> ResourceClaim:
    """The scheduler's claim for a pod: (request, class) of each resource of each container."""
    wanted = [{"name": name, "exactly": {"deviceClassName": one}} for name, one in requests]
    return claim(annotations={NAMED: annotation} if annotation else {}, devices={"requests": wanted})


def resource_of(name: str) -> str:
    """The resource that a class of this cluster names."""
    return {"vfio.gpu.nvidia.com": "nvidia.com/GH100_H100_SXM5_80GB"}.get(name, "")


OWN = "PCI_RESOURCE_NVIDIA_COM_GH100_H100_SXM5_80GB"
IMPLICIT = "PCI_RESOURCE_DEVICECLASS_RESOURCE_KUBERNETES_IO_VFIO_GPU_NVIDIA_COM"


def test_a_claim_for_extended_resources_has_the_variables_of_both_names_of_its_class() -> None:
    found = resource_variables(extended(("container-0-request-0", "vfio.gpu.nvidia.com")), resource_of)
    assert found == {"container-0-request-0": (OWN, IMPLICIT)}


def test_a_class_without_a_resource_of_its_own_has_the_implicit_one() -> None:
    found = resource_variables(extended(("container-0-request-0", "other")), resource_of)
    assert found == {"container-0-request-0": ("PCI_RESOURCE_DEVICECLASS_RESOURCE_KUBERNETES_IO_OTHER",)}


@pytest.mark.parametrize("annotation", ["", "false"])
def test_other_claims_have_no_variables_and_their_classes_are_not_read(annotation: str) -> None:
    def refuse(name: str) -> str:
        raise AssertionError(name)

    assert resource_variables(extended(("gpu", "vfio.gpu.nvidia.com"), annotation=annotation), refuse) == {}


def test_each_class_is_read_once() -> None:
    read: list[str] = []
    requests = [(f"container-{index}-request-0", "vfio.gpu.nvidia.com") for index in range(3)]

    def resource(name: str) -> str:
        read.append(name)
        return ""

    assert len(resource_variables(extended(*requests), resource)) == 3
    assert read == ["vfio.gpu.nvidia.com"]


@pytest.mark.node
def test_the_resource_of_a_class_is_read_from_the_api_server(kubeconfig: Path, client: ApiClient) -> None:
    for name, spec in (("named", {"extendedResourceName": "nvidia.com/GH100"}), ("nameless", {})):
        value = {"apiVersion": V1.api_version, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
        client.create(CLASSES, value)
    reader = ClassReader(Connection(load_credentials(str(kubeconfig)), "test"))
    assert [reader(name) for name in ("named", "nameless", "gone")] == ["nvidia.com/GH100", "", ""]


def test_requests_of_one_container_belong_together() -> None:
    assert container_of("container-12-request-0") == container_of("container-12-request-3") == "container-12"
    assert container_of("container-1-request-0") != container_of("container-12-request-0")
    assert container_of("gpu") == "gpu"


def test_kubevirt_finds_each_gpu_of_a_resource_once() -> None:
    names = ["nvidia.com/GH100_H100_SXM5_80GB"] * 2
    environment = {variable(names[0]): ",".join(ADDRESSES)}
    assert plugin_devices(environment, *names) == list(ADDRESSES)
    with pytest.raises(NoDeviceError, match="no more addresses"):
        plugin_devices(environment, *names, names[0])
