# SPDX-License-Identifier: Apache-2.0
"""The plugin as kubelet meets it: a process, its two sockets, and what is on the node after a call."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.names import DRIVER_NAME
from kubeletplugin.containers.cdi import BASE_DEVICE, BASE_KIND, SpecDirectory, claim_device
from kubeletplugin.protocol import dra_v1_pb2
from tests.support.apiserver import CLAIMS
from tests.support.plugin import NOTHING, POOL, Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

FOUR = ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-2g20gb-14-2", "gpu-4-mig-3g40gb-9-4"]
FOUR_MADE = ["4/0:1", "4/1:1", "4/2:2", "4/4:4"]
VERSIONS = ("v1", "v1beta1")


@pytest.fixture(scope="module")
def running(kubeconfig: Path) -> Iterator[Plugin]:
    """One process for all tests here."""
    with plugin_on(kubeconfig) as plugin:
        yield plugin.start()


@pytest.fixture
def plugin(running: Plugin) -> Iterator[Plugin]:
    """The process, with nothing prepared before, and nothing to be left afterwards."""
    assert running.left() == NOTHING
    yield running
    assert running.left() == NOTHING


def some_uid() -> str:
    return str(uuid.uuid4())


def names(answer: Any) -> list[tuple[str, list[str], str]]:
    """(pool, requests, device) of each device of an answer."""
    assert answer.error == ""
    return [(one.pool_name, list(one.request_names), one.device_name) for one in answer.devices]


def test_plugin_registers_with_kubelet(plugin: Plugin) -> None:
    info = plugin.get_info()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER_NAME)
    assert info.endpoint == str(plugin.service)
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


def test_answer_of_kubelet_to_the_registration_is_logged(plugin: Plugin) -> None:
    plugin.notify(True)
    wait_for(lambda: "registered with kubelet" in plugin.log, "the log line")
    plugin.notify(False, "no such version")
    wait_for(lambda: "kubelet refused the registration: no such version" in plugin.log, "the log line")


@pytest.mark.parametrize("version", VERSIONS)
def test_whole_gpu_is_prepared_and_unprepared(plugin: Plugin, client: ApiClient, version: str) -> None:
    claim = stored_claim(client, "gpu-2")
    answer = plugin.prepare(claim, version=version)
    assert list(answer) == [claim.uid]
    assert names(answer[claim.uid]) == [(POOL, ["r0"], "gpu-2")]
    (device,) = answer[claim.uid].devices
    own = claim_device(claim.uid, "gpu-2")
    assert list(device.cdi_device_ids) == [own, BASE_DEVICE]
    assert plugin.spec_devices(claim.uid) == {own: ["/dev/nvidia2"]}
    assert plugin.unprepare(claim, version=version) == {claim.uid: ""}


@pytest.mark.parametrize("version", VERSIONS)
def test_four_slices_of_a_gpu(plugin: Plugin, client: ApiClient, version: str) -> None:
    claim = stored_claim(client, *FOUR)
    answer = plugin.prepare(claim, version=version)[claim.uid]
    assert names(answer) == [(POOL, [f"r{index}"], device) for index, device in enumerate(FOUR)]
    assert plugin.instances() == FOUR_MADE
    found = plugin.spec_devices(claim.uid)
    assert list(found) == [one.cdi_device_ids[0] for one in answer.devices]
    for gpu, *capabilities in found.values():
        assert gpu == "/dev/nvidia4"
        assert [path.startswith("/dev/nvidia-caps/") for path in capabilities] == [True, True]
    assert len({paths[1] for paths in found.values()}) == 4
    plugin.unprepare(claim, version=version)


def test_every_cdi_name_of_an_answer_is_described(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, "gpu-0", FOUR[0])
    answer = plugin.prepare(claim)[claim.uid]
    common = SpecDirectory(plugin.cdi, BASE_KIND).devices()
    described = {f"{BASE_KIND}={name}" for name in common} | set(plugin.spec_devices(claim.uid))
    asked = {name for device in answer.devices for name in device.cdi_device_ids}
    assert asked == described
    plugin.unprepare(claim)


def test_two_pods_with_one_claim_get_the_same(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, *FOUR)
    first = plugin.prepare(claim)
    before = plugin.left(), plugin.spec_devices(claim.uid)
    client.delete(CLAIMS, claim.name, claim.namespace)  # a prepared claim needs no look at it
    assert plugin.prepare(claim) == first
    assert plugin.prepare(claim, version="v1beta1")[claim.uid].devices[0].device_name == FOUR[0]
    assert (plugin.left(), plugin.spec_devices(claim.uid)) == before
    plugin.unprepare(claim)


def test_a_device_is_not_given_to_two_claims(plugin: Plugin, client: ApiClient) -> None:
    first, second = stored_claim(client, "gpu-1"), stored_claim(client, "gpu-1")
    plugin.prepare(first)
    answer = plugin.prepare(second)[second.uid]
    assert f"device gpu-1 is in use by claim default/{first.name} (UID {first.uid})" in answer.error
    plugin.unprepare(first)
    assert names(plugin.prepare(second)[second.uid]) == [(POOL, ["r0"], "gpu-1")]
    plugin.unprepare(first, second)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_claim_of_a_call_has_an_answer_of_its_own(plugin: Plugin, client: ApiClient, version: str) -> None:
    whole, mig = stored_claim(client, "gpu-3"), stored_claim(client, *FOUR)
    renewed = stored_claim(client, "gpu-0")
    bad = {
        "has UID": dra_v1_pb2.Claim(namespace="default", name=renewed.name, uid=some_uid()),
        "is not allocated": stored_claim(client, "gpu-0", allocated=False),
        "there is no device gpu-99 on node node-a": stored_claim(client, "gpu-99"),
        "there is no device gpu-4 on": stored_claim(client, "gpu-4"),  # it is in MIG mode
        "is in pool node-b, which is not on this node": stored_claim(client, "gpu-0", pool="node-b"),
        "there is no ResourceClaim default/gone": dra_v1_pb2.Claim(namespace="default", name="gone", uid=some_uid()),
        "is not the UID of an object": dra_v1_pb2.Claim(namespace="default", name="x", uid="../../etc/passwd"),
    }
    half = stored_claim(client, "gpu-5-mig-1g10gb-19-0", "gpu-99")
    answer = plugin.prepare(whole, *bad.values(), half, mig, version=version)
    assert set(answer) == {one.uid for one in (whole, mig, half, *bad.values())}
    for text, claim in bad.items():
        assert text in answer[claim.uid].error
        assert not answer[claim.uid].devices
    assert "gpu-99" in answer[half.uid].error
    assert [one.device_name for one in answer[mig.uid].devices] == FOUR
    assert [one.device_name for one in answer[whole.uid].devices] == ["gpu-3"]
    assert plugin.left()["records"] == sorted(f"{one.uid}.json" for one in (whole, mig))
    assert plugin.instances() == FOUR_MADE
    errors = plugin.unprepare(whole, *bad.values(), half, mig, version=version)
    assert {uid for uid, error in errors.items() if error} == {"../../etc/passwd"}


def test_unprepare_can_be_repeated_and_knows_every_claim(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, *FOUR)
    plugin.prepare(claim)
    unknown = dra_v1_pb2.Claim(namespace="default", name="never-seen", uid=some_uid())
    for _ in range(2):
        assert plugin.unprepare(claim, unknown) == {claim.uid: "", unknown.uid: ""}
    assert plugin.prepare(claim)[claim.uid].error == ""
    plugin.unprepare(claim)


def test_a_call_without_claims_is_answered(plugin: Plugin) -> None:
    assert (plugin.prepare(), plugin.unprepare()) == ({}, {})


def test_calls_at_the_same_time_do_not_disturb_each_other(plugin: Plugin, client: ApiClient) -> None:
    devices = [f"gpu-{gpu}-mig-1g10gb-19-{start}" for gpu in (6, 7) for start in range(7)]
    claims = [stored_claim(client, device) for device in devices]
    again = claims * 2  # kubelet may call for one claim twice
    answers = [call.result(timeout=60) for call in [plugin.begin("Prepare", claim) for claim in again]]
    for claim, answer in zip(again, answers, strict=True):
        assert answer.claims[claim.uid].error == ""
    assert len(plugin.instances()) == len(devices)
    for call in [plugin.begin("Unprepare", claim) for claim in again]:
        call.result(timeout=60)
