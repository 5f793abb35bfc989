# SPDX-License-Identifier: Apache-2.0
"""Device metadata files: their paths in a container, what is in them, and how they get there."""

import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.resource import AttributeValue, ResourceClaim, Version
from dra_driver.kube.resource.codec import V1, decode_claim
from dra_driver.names import DRIVER_NAME
from kubeletplugin.containers import cdi
from kubeletplugin.containers.cdi import BASE_DEVICE
from kubeletplugin.containers.cdi.spec import validate
from kubeletplugin.containers.metadata import POD_CLAIM_NAME, MetadataFiles, container_path, documents, metadata_names
from tests.support.damage import DAMAGES
from tests.support.plugin import Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

from ..inside import make_by_hand

UID = "9d3c6f2e-46a8-4a63-9fd2-b8c2f1d0a111"
FILE = f"{DRIVER_NAME}-metadata.json"
ATTRIBUTES: Mapping[str, Mapping[str, AttributeValue]] = {
    "gpu-0": {"uuid": "GPU-0", "driverVersion": Version("580.1.2"), "resource.kubernetes.io/numaNode": 1},
    "gpu-1": {"uuid": "GPU-1"},
}


def claim(*requests: str, annotations: Mapping[str, str] | None = None, **result: Any) -> ResourceClaim:
    """A claim with one device for each request, `gpu-0` for the first."""
    results = [
        {"request": request, "driver": DRIVER_NAME, "pool": "node-a", "device": f"gpu-{index}", **result}
        for index, request in enumerate(requests)
    ]
    meta = {"name": "training", "namespace": "team", "uid": UID, "annotations": dict(annotations or {})}
    return decode_claim({"metadata": meta, "spec": {}, "status": {"allocation": {"devices": {"results": results}}}}, V1)


def attributes(device: str) -> Mapping[str, AttributeValue]:
    return ATTRIBUTES.get(device, {})


def objects(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


@pytest.mark.parametrize(
    ("annotations", "folder"),
    [
        ({}, "resourceclaims/training"),
        ({POD_CLAIM_NAME: "gpus"}, "resourceclaimtemplates/gpus"),
        ({POD_CLAIM_NAME: "../../../../etc"}, "resourceclaims/training"),  # whoever makes a claim can write it
        ({POD_CLAIM_NAME: ""}, "resourceclaims/training"),
    ],
)
def test_path_of_the_metadata_in_the_container(annotations: dict[str, str], folder: str) -> None:
    (content,) = documents(claim("gpu", annotations=annotations), attributes).values()
    root = "/var/run/kubernetes.io/dra-device-attributes"
    assert [str(container_path(one, "gpu")) for one in objects(content)] == [f"{root}/{folder}/gpu/{FILE}"] * 2


def test_every_version_says_the_same_the_newest_first() -> None:
    (content,) = documents(claim("gpu"), attributes).values()
    newest, oldest = objects(content)
    assert newest.pop("apiVersion") == "metadata.resource.k8s.io/v1beta1"
    assert oldest.pop("apiVersion") == "metadata.resource.k8s.io/v1alpha1"
    assert newest == oldest
    assert newest == {
        "kind": "DeviceMetadata",
        "metadata": {"name": "training", "namespace": "team", "uid": UID, "generation": 1},
        "requests": [
            {
                "name": "gpu",
                "devices": [
                    {
                        "driver": DRIVER_NAME,
                        "pool": "node-a",
                        "name": "gpu-0",
                        "attributes": {
                            "uuid": {"string": "GPU-0"},
                            "driverVersion": {"version": "580.1.2"},
                            "resource.kubernetes.io/numaNode": {"int": 1},
                        },
                    }
                ],
            }
        ],
    }


def test_a_claim_of_a_template_says_what_the_pod_calls_it() -> None:
    (content,) = documents(claim("gpu", annotations={POD_CLAIM_NAME: "gpus"}), attributes).values()
    assert {one["podClaimName"] for one in objects(content)} == {"gpus"}


def test_each_base_request_has_a_file_that_names_the_chosen_alternative() -> None:
    files = documents(claim("a/large", "b", "a/large"), attributes)
    assert list(files) == ["a", "b"]
    a, b = (objects(content)[0]["requests"] for content in files.values())
    assert [(one["name"], [device["name"] for device in one["devices"]]) for one in a] == [
        ("a/large", ["gpu-0", "gpu-2"])
    ]
    assert [(one["name"], [device["name"] for device in one["devices"]]) for one in b] == [("b", ["gpu-1"])]
    assert "attributes" not in a[0]["devices"][1]  # of a device that is not published any more


@pytest.mark.parametrize("other", [claim("gpu", driver="other.example.com"), claim()])
def test_claims_without_our_devices_have_none(other: ResourceClaim, tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path / "metadata")
    files.write(other, attributes)
    assert (files.claims(), files.requests(UID), files.edits(UID)) == ([], [], {})


def test_a_file_is_mounted_by_a_device_of_the_claims_own_spec(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path)
    files.write(claim("a", "b", annotations={POD_CLAIM_NAME: "gpus"}), attributes)
    assert files.requests(UID) == ["a", "b"]
    spec = cdi.claim_spec(UID, files.edits(UID))
    assert validate(spec) == []
    named = {f"{spec.kind}={device.name}": device for device in spec.devices}
    assert list(named) == [name for names in metadata_names(UID, ["a", "b"]).values() for name in names]
    for device, request in zip(named.values(), ["a", "b"], strict=True):
        (mount,) = device.container_edits.mounts
        assert mount.container_path == (
            f"/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpus/{request}/{FILE}"
        )
        assert set(mount.options) >= {"ro", "bind"}
        host = Path(mount.host_path)
        assert objects(host.read_bytes())[0]["requests"][0]["name"] == request
        assert stat.S_IMODE(host.stat().st_mode) == 0o644


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path)
    files.write(claim("a"), attributes)
    (mount,) = files.edits(UID)["metadata-a"].mounts
    with Path(mount.host_path).open("rb") as mounted:  # a container holds on to the file that it began with
        files.write(claim("a", device="gpu-1"), attributes)
        assert objects(mounted.read())[0]["requests"][0]["devices"][0]["name"] == "gpu-0"
    assert objects(Path(mount.host_path).read_bytes())[0]["requests"][0]["devices"][0]["name"] == "gpu-1"


@pytest.mark.node
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_read_is_removed_and_hides_no_other(short_path: Path, damage: str) -> None:
    files = MetadataFiles(short_path)
    files.write(claim("a", "b"), attributes)
    DAMAGES[damage](short_path / f"{UID}_a.json")
    assert set(files.edits(UID)) == {"metadata-b"}
    assert files.requests(UID) == ["b"]
    files.write(claim("a", "b"), attributes)
    assert set(files.edits(UID)) == {"metadata-a", "metadata-b"}
    assert files.remove(UID)
    assert files.claims() == []


@pytest.mark.node
@pytest.mark.parametrize("damage", DAMAGES)
def test_leftover_of_a_temporary_file_is_no_obstacle(short_path: Path, damage: str) -> None:
    files = MetadataFiles(short_path)
    DAMAGES[damage](short_path / f"{UID}_a.new")
    assert files.claims() == [UID]
    files.write(claim("a"), attributes)
    assert set(files.edits(UID)) == {"metadata-a"}
    assert files.remove(UID)
    assert files.claims() == []


def test_everything_of_a_claim_goes_and_nothing_of_another(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path)
    files.write(claim("a", "b"), attributes)
    (tmp_path / f"{UID}0_a.json").touch()
    assert files.claims() == [UID, f"{UID}0"]
    assert files.remove(UID)
    assert not files.remove(UID)
    assert files.claims() == [f"{UID}0"]


@pytest.fixture(scope="module")
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    """A process that writes such files."""
    with plugin_on(kubeconfig, "--device-metadata") as one:
        yield one.start()


class TestPlugin:
    """The files of a plugin that is told to write them."""

    def files(self, plugin: Plugin) -> list[Path]:
        return [path for path in (plugin.state / "metadata").rglob("*") if path.is_file()]

    @pytest.mark.node
    def test_a_container_is_given_a_file_for_each_request(self, plugin: Plugin, client: ApiClient) -> None:
        prepared = stored_claim(client, "gpu-0", "gpu-4-mig-1g10gb-19-0")
        answer = plugin.prepare(prepared)[prepared.uid]
        assert answer.error == ""
        described = plugin.spec_devices(prepared.uid)
        for device in answer.devices:
            (request,) = device.request_names
            assert device.cdi_device_ids[-1] == metadata_names(prepared.uid, [request])[request][0]
            assert set(device.cdi_device_ids) - {BASE_DEVICE} <= set(described)
        spec = json.loads(cdi.SpecDirectory(plugin.cdi, cdi.CLAIM_KIND).file(prepared.uid).read_bytes())
        mounts = [one for device in spec["devices"] for one in device["containerEdits"].get("mounts", ())]
        mounts = [one for one in mounts if "dra-device-attributes" in one["containerPath"]]
        contents = [objects(Path(one["hostPath"]).read_bytes())[0] for one in mounts]
        found = [one["requests"][0]["devices"][0] for one in contents]
        assert [one["name"] for one in found] == ["gpu-0", "gpu-4-mig-1g10gb-19-0"]
        assert found[0]["attributes"]["type"] == {"string": "gpu"}
        assert found[1]["attributes"]["uuid"]["string"].startswith("MIG-")
        assert found[1]["attributes"]["profile"] == {"string": "1g.10gb"}
        assert plugin.prepare(prepared)[prepared.uid] == answer
        plugin.unprepare(prepared)
        assert self.files(plugin) == []

    @pytest.mark.node
    def test_files_outlive_the_process_and_go_with_the_claim(self, plugin: Plugin, client: ApiClient) -> None:
        prepared = stored_claim(client, "gpu-1")
        answers, files = plugin.prepare(prepared), self.files(plugin)
        assert files
        plugin.kill()
        plugin.start()
        assert plugin.prepare(prepared) == answers
        assert self.files(plugin) == files
        plugin.unprepare(prepared)
        assert self.files(plugin) == []

    @pytest.mark.node
    def test_files_of_a_claim_without_a_record_are_removed(self, plugin: Plugin) -> None:
        stray = plugin.state / "metadata" / "0c7c1f0e_gpu.json"
        stray.parent.mkdir(exist_ok=True)  # it is made for the first claim
        stray.write_text("{}")
        plugin.kill()
        plugin.start()
        wait_for(lambda: not stray.exists(), "the files to go")


@pytest.mark.node
def test_an_instance_that_was_made_by_hand_a_moment_ago_is_described_in_full(
    kubeconfig: Path, client: ApiClient, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpus: [{mig: static}]", encoding="utf-8")
    with plugin_on(kubeconfig, "--device-metadata", f"--policy-file={policy}") as plugin:
        plugin.start()
        made = make_by_hand(plugin.node.nvml(), plugin.hardware.sys_root, "gpu-5-mig-3g40gb-9-4")
        prepared = stored_claim(client, "gpu-5-mig-3g40gb-9-4")
        assert plugin.prepare(prepared)[prepared.uid].error == ""
        (file,) = (path for path in (plugin.state / "metadata").rglob("*") if path.is_file())
        (device,) = objects(file.read_bytes())[0]["requests"][0]["devices"]
        assert device["attributes"]["uuid"] == {"string": made}
        assert device["attributes"]["profile"] == {"string": "3g.40gb"}
