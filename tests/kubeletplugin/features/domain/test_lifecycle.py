# SPDX-License-Identifier: Apache-2.0
"""Claims for channels and daemons from kubelet's call to the CDI spec, and what is left of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.domains.objects import COMPUTE_DOMAINS, DaemonReport
from dra_driver.gpu.imex import read_channels, read_management
from dra_driver.gpu.nvml import FabricState, Return
from dra_driver.kube.api import ApiClient
from kubeletplugin.claims.engine import ClaimTimes
from kubeletplugin.claims.model import ClaimRef, State
from kubeletplugin.containers.cdi import BASE_DEVICE, DOMAIN_CLAIM_KIND
from tests.support.apiserver import CLAIMS
from tests.support.waiting import wait_for

from .domains import (
    CLUSTER,
    NAMESPACE,
    NOTHING,
    WORKLOADS,
    add_channel,
    add_claim,
    add_daemon,
    add_domain,
    config,
    install_imex,
    running_daemon,
    spec_of,
)
from .inside import SOON, DomainPlugin, domain_plugin

pytestmark = pytest.mark.node


@pytest.fixture
def plugin(short_path: Path, kubeconfig: Path) -> Iterator[DomainPlugin]:
    with domain_plugin(short_path, kubeconfig) as made:
        yield made


@pytest.fixture
def impatient(short_path: Path, kubeconfig: Path) -> Iterator[DomainPlugin]:
    """A plugin whose claims do not wait long."""
    with domain_plugin(short_path, kubeconfig, times=SOON) as made:
        yield made


def gone(admin: ApiClient, *refs: ClaimRef) -> None:
    for ref in refs:
        admin.delete(CLAIMS, ref.name, ref.namespace)


def test_a_channel_waits_for_the_daemon_and_both_leave_nothing(plugin: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel, daemon = add_channel(admin, uid), add_daemon(admin, uid)
    waiting = plugin.begin("Prepare", channel)
    plugin.waits(channel)
    wait_for(lambda: plugin.left().domain == uid, "the mark")
    (device,) = plugin.prepare(daemon).devices
    assert (device.device_name, list(device.request_names), device.pool_name) == ("daemon-0", ["r0"], "node-a")
    assert list(device.cdi_device_ids) == [f"{DOMAIN_CLAIM_KIND}={daemon.uid}-daemon-0", BASE_DEVICE]
    folder = plugin.folder.of_domain(uid)
    assert folder.is_dir()
    assert not waiting.done()
    with running_daemon(folder, DaemonReport(message="waits for peers")) as report:
        assert not waiting.done()
        report.write(DaemonReport(True, "READY", "UP"))
        answer = waiting.result(60).claims[channel.uid]
    assert answer.error == ""
    assert [list(one.cdi_device_ids) for one in answer.devices] == [[f"{DOMAIN_CLAIM_KIND}={channel.uid}-channel-0"]]
    assert plugin.prepare(channel) == answer  # from the record, although the daemon is gone
    plugin.unprepared(daemon)
    assert plugin.left().folders == ()
    assert plugin.left().domain == uid
    plugin.unprepared(channel, channel)
    assert plugin.left() == NOTHING


def test_containers_get_nodes_with_numbers(plugin: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel, everything, daemon = (
        add_channel(admin, uid),
        add_channel(admin, uid, allocationMode="All"),
        add_daemon(admin, uid),
    )
    plugin.prepared(daemon)
    with running_daemon(plugin.folder.of_domain(uid)):
        plugin.prepared(channel, everything)
    proc = plugin.node.driver_root / "proc"
    channels, management = read_channels(proc), read_management(proc)
    assert channels is not None
    assert management is not None
    numbers = {"type": "c", "major": channels.major, "fileMode": 0o666, "permissions": "rw"}
    first = {"path": "/dev/nvidia-caps-imex-channels/channel0", **numbers}
    assert spec_of(plugin.cdi, channel) == {"channel-0": {"deviceNodes": [first]}}
    nodes = spec_of(plugin.cdi, everything)["channel-0"]["deviceNodes"]
    assert len(nodes) == channels.count
    assert nodes[0] == first
    assert nodes[-1] == {"path": f"/dev/nvidia-caps-imex-channels/channel{channels.count - 1}", **numbers} | {
        "minor": channels.count - 1
    }
    edits = spec_of(plugin.cdi, daemon)["daemon-0"]
    name = next(one["metadata"]["name"] for one in admin.list(COMPUTE_DOMAINS).items if one["metadata"]["uid"] == uid)
    assert edits["env"] == [
        f"CLIQUE_ID={CLUSTER}.1",
        f"COMPUTE_DOMAIN_UUID={uid}",
        f"COMPUTE_DOMAIN_NAME={name}",
        "COMPUTE_DOMAIN_NAMESPACE=default",
    ]
    ((host, container),) = [(one["hostPath"], one["containerPath"]) for one in edits["mounts"]]
    assert (host, container) == (str(plugin.folder.of_domain(uid)), "/imexd")
    assert [one["path"] for one in edits["deviceNodes"]] == [
        f"/dev/nvidia-caps/nvidia-cap{management.minor}",
        *(f"/dev/nvidia{index}" for index in range(4)),
    ]
    assert (edits["deviceNodes"][0]["major"], edits["deviceNodes"][0]["minor"]) == (management.major, management.minor)


def test_several_pods_of_a_domain_have_the_channel_and_another_domain_waits_for_the_last(
    impatient: DomainPlugin, admin: ApiClient
) -> None:
    first, second = add_domain(admin), add_domain(admin)
    pods = [add_channel(admin, first) for _ in range(3)]
    other = add_channel(admin, second)
    with running_daemon(impatient.folder.of_domain(first)):
        impatient.prepared(*pods)
    for pod in pods:
        error = impatient.prepare(other).error
        assert error.startswith("the node is in ComputeDomain default/domain-")
        assert f", because of {WORKLOADS}/claim-" in error
        assert impatient.record(other) is None
        impatient.unprepared(pod)
    with running_daemon(impatient.folder.of_domain(second)):
        impatient.prepared(other)
        assert impatient.left().domain == second
        impatient.unprepared(other)
    assert impatient.left() == NOTHING


def test_at_the_end_of_its_time_a_channel_is_answered_with_the_reason(
    impatient: DomainPlugin, admin: ApiClient
) -> None:
    uid = add_domain(admin)
    channel = add_channel(admin, uid)
    error = impatient.prepare(channel).error
    assert f"does not run yet: look at the pods computedomain-daemon-{uid}-* in namespace {NAMESPACE}" in error
    record = impatient.record(channel)
    assert record is not None
    assert record.state is State.PREPARING
    assert impatient.left().domain == uid  # the node stays in the domain until kubelet calls again
    for report, reason in (
        (DaemonReport(state="WAITING_FOR_PEERS"), "is not ready: its state is WAITING_FOR_PEERS"),
        (DaemonReport(message="port 50000 is in use"), "is not ready: port 50000 is in use"),
    ):
        with running_daemon(impatient.folder.of_domain(uid), report):
            assert reason in impatient.prepare(channel).error
    impatient.unprepared(channel)
    assert impatient.left() == NOTHING


def test_an_unprepare_ends_a_waiting_prepare_of_any_process(
    plugin: DomainPlugin, admin: ApiClient, short_path: Path, kubeconfig: Path
) -> None:
    uid = add_domain(admin)
    with domain_plugin(short_path, kubeconfig, name="dra-2.sock") as successor:
        for other in (plugin, successor):
            channel = add_channel(admin, uid)
            waiting = plugin.begin("Prepare", channel)
            plugin.waits(channel)
            other.unprepared(channel)
            assert "unprepared" in waiting.result(60).claims[channel.uid].error
            assert plugin.left() == NOTHING


def test_the_end_of_the_process_ends_the_waiting(plugin: DomainPlugin, admin: ApiClient) -> None:
    channel = add_channel(admin, add_domain(admin))
    waiting = plugin.begin("Prepare", channel)
    plugin.waits(channel)
    plugin.claims.end()
    assert "the plugin ends" in waiting.result(60).claims[channel.uid].error
    assert plugin.record(channel) is not None


def test_call_ends_after_the_caller_is_gone(plugin: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel = add_channel(admin, uid)
    waiting = plugin.begin("Prepare", channel)
    plugin.waits(channel)
    waiting.cancel()
    assert plugin.service.drain(60)
    record = plugin.record(channel)
    assert record is not None
    assert record.state is State.PREPARING
    with running_daemon(plugin.folder.of_domain(uid)):
        plugin.prepared(channel)


def test_many_waiting_claims_do_not_hold_up_their_daemon(short_path: Path, kubeconfig: Path, admin: ApiClient) -> None:
    """They look at the interval of a real plugin: with a shorter one, so many claims need a whole processor."""
    uid = add_domain(admin)
    daemon = add_daemon(admin, uid)
    channels = [add_channel(admin, uid) for _ in range(44)]
    with domain_plugin(short_path, kubeconfig, times=ClaimTimes(wait=60.0)) as plugin:
        calls = {one.uid: plugin.begin("Prepare", one) for one in channels[:36]}
        together = plugin.begin("Prepare", *channels[36:])  # as kubelet does for a pod with several claims
        plugin.waits(*channels)
        plugin.prepared(daemon)
        assert not together.done()
        with running_daemon(plugin.folder.of_domain(uid)):
            each = {key: call.result(60).claims[key] for key, call in calls.items()}
            answers = {**together.result(60).claims, **each}
        assert {answers[one.uid].error for one in channels} == {""}
        plugin.unprepared(daemon, *channels)
        assert plugin.left() == NOTHING


def test_the_domain_must_be_in_the_claims_namespace(impatient: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin, "kube-public")
    error = impatient.prepare(add_channel(admin, uid)).error
    assert error.startswith(f"there is no ComputeDomain with UID {uid} in namespace default: ")
    assert impatient.left() == NOTHING


def test_a_claim_whose_domain_was_deleted_leaves_the_node(impatient: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel = add_channel(admin, uid)
    assert "does not run yet" in impatient.prepare(channel).error
    (name,) = [one["metadata"]["name"] for one in admin.list(COMPUTE_DOMAINS).items if one["metadata"]["uid"] == uid]
    admin.delete(COMPUTE_DOMAINS, name, "default")
    assert "there is no ComputeDomain" in impatient.prepare(channel).error
    assert impatient.left() == NOTHING


def test_claims_that_a_finalizer_keeps_leave_the_node_after_their_domain(
    plugin: DomainPlugin, admin: ApiClient
) -> None:
    """A claim keeps `delete-protection` until its pod has ended, and the pod ends only when the claim is unprepared."""
    uid = add_domain(admin)
    channel, daemon = add_channel(admin, uid), add_daemon(admin, uid)
    plugin.prepared(daemon)
    with running_daemon(plugin.folder.of_domain(uid)):
        plugin.prepared(channel)
    kept = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    for claim in (channel, daemon):
        admin.patch(CLAIMS, claim.name, kept, namespace=claim.namespace)
        admin.delete(CLAIMS, claim.name, claim.namespace)
        assert admin.get(CLAIMS, claim.name, claim.namespace)["metadata"]["deletionTimestamp"]
    (name,) = [one["metadata"]["name"] for one in admin.list(COMPUTE_DOMAINS).items if one["metadata"]["uid"] == uid]
    admin.delete(COMPUTE_DOMAINS, name, "default")
    plugin.unprepared(channel, daemon)
    assert plugin.left() == NOTHING


def test_an_unknown_field_of_a_configuration_is_named(impatient: DomainPlugin, admin: ApiClient) -> None:
    channel = add_channel(admin, add_domain(admin), channelCount=4)
    assert "parameters.channelCount: " in impatient.prepare(channel).error
    assert impatient.left() == NOTHING


def test_only_the_drivers_own_claims_get_a_daemon(impatient: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    error = impatient.prepare(add_daemon(admin, uid, "default")).error
    assert f"only claims in the namespace of the driver ({NAMESPACE}) can have a daemon" in error
    daemon = add_daemon(admin, uid)
    impatient.prepared(daemon)
    assert (
        "the node still has the daemon of ComputeDomain default/domain-"
        in impatient.prepare(add_daemon(admin, add_domain(admin))).error
    )
    impatient.unprepared(daemon)
    assert (
        "there is no ComputeDomain with UID 7d0e in the cluster" in impatient.prepare(add_daemon(admin, "7d0e")).error
    )
    (impatient.node.driver_root / "usr/bin/nvidia-imex-ctl").unlink()
    assert "nvidia-imex-ctl is not below" in impatient.prepare(daemon).error
    impatient.unprepared(daemon)
    assert impatient.left() == NOTHING


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        (FabricState.IN_PROGRESS, None, "not yet in the NVLink fabric: GPU 2"),
        (FabricState.COMPLETED, Return.UNKNOWN, "GPUs could not join the NVLink fabric (GPU 2: status 999)"),
    ],
)
def test_a_fabric_that_is_not_ready_is_a_reason(
    impatient: DomainPlugin, admin: ApiClient, state: FabricState, status: Return | None, reason: str
) -> None:
    channel = add_channel(admin, add_domain(admin))
    impatient.node.set_fabric(2, state, status=status)
    impatient.place.gpus().refresh()
    assert reason in impatient.prepare(channel).error
    impatient.node.set_fabric(2)
    assert "does not run yet" in impatient.prepare(channel).error  # the GPUs are read again


@pytest.mark.parametrize("devices", [["channel-0"], ["channel-0", "channel-0-1"]])
def test_outside_of_a_fabric_a_channel_is_nothing(
    short_path: Path, kubeconfig: Path, admin: ApiClient, devices: list[str]
) -> None:
    with domain_plugin(short_path, kubeconfig, hardware="a30x4") as plugin:
        claims = [add_claim(admin, [config(add_domain(admin))], devices) for _ in range(2)]
        for claim in claims:  # of two domains
            answer = plugin.prepare(claim)
            assert answer.error == ""
            assert [(one.device_name, list(one.cdi_device_ids)) for one in answer.devices] == [
                (one, []) for one in devices
            ]
        assert plugin.left().domain == ""
        assert plugin.left().specs == ()
        plugin.unprepared(*claims)
        assert plugin.left() == NOTHING


def test_without_channels_or_a_driver_the_reason_is_told(short_path: Path, kubeconfig: Path, admin: ApiClient) -> None:
    channel = add_channel(admin, add_domain(admin))
    with domain_plugin(short_path, kubeconfig, driver=False) as plugin:
        assert "the NVIDIA driver is not ready" in plugin.prepare(channel).error
        plugin.unprepared(channel)
        (plugin.node.driver_root / "proc/driver/nvidia/params").write_text("ImexChannelCount: 0\n")
        plugin.start_access()
        assert "has no IMEX channels" in plugin.prepare(channel).error
        assert plugin.left() == NOTHING


@pytest.mark.parametrize(
    ("control", "error"),
    [
        ('echo "$@" > "$0.called"; echo READY', ""),
        ("echo NOT_READY", "the IMEX daemon of the node is not ready: nvidia-imex-ctl ended with code 0: NOT_READY"),
        ("echo READY; exit 1", "ended with code 1"),
        ("echo no socket >&2; exit 255", "ended with code 255: no socket"),
    ],
)
def test_a_daemon_of_the_node_is_asked(
    short_path: Path, kubeconfig: Path, admin: ApiClient, control: str, error: str
) -> None:
    with domain_plugin(short_path, kubeconfig, host_managed=True) as plugin:
        install_imex(plugin.node, control)
        first, second = add_channel(admin, add_domain(admin)), add_channel(admin, add_domain(admin))
        for claim in (first, second):  # of two domains, which share the channel
            answer = plugin.prepare(claim)
            assert error in answer.error
            assert bool(answer.error) == bool(error)
        if not error:
            assert (plugin.node.driver_root / "usr/bin/nvidia-imex-ctl.called").read_text() == "-q --u=/ctl.sock\n"
            assert len(spec_of(plugin.cdi, second)["channel-0"]["deviceNodes"]) == 1
        assert plugin.left().domain == ""
        assert "no claim gets another one" in plugin.prepare(add_daemon(admin, add_domain(admin))).error
        everything = add_channel(admin, add_domain(admin), allocationMode="All")
        assert "allocationMode All is not available" in plugin.prepare(everything).error
        plugin.unprepared(first, second)
        assert plugin.left() == NOTHING


def test_claims_of_another_boot_are_gone(short_path: Path, kubeconfig: Path, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel, daemon = add_channel(admin, uid), add_daemon(admin, uid)
    with domain_plugin(short_path, kubeconfig) as plugin:
        plugin.prepared(daemon)
        with running_daemon(plugin.folder.of_domain(uid)):
            plugin.prepared(channel)
        before = plugin.left()
    with domain_plugin(short_path, kubeconfig) as plugin:
        assert plugin.left() == before
        plugin.prepared(channel, daemon)
    with domain_plugin(short_path, kubeconfig, boot_id="boot-2") as plugin:
        assert plugin.left() == NOTHING


def test_missing_specs_are_written_again(plugin: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel, daemon = add_channel(admin, uid), add_daemon(admin, uid)
    plugin.prepared(daemon)
    with running_daemon(plugin.folder.of_domain(uid)):
        plugin.prepared(channel)
    before = plugin.left()
    for remedy in (plugin.attend, lambda: plugin.prepared(channel, daemon)):
        for path in plugin.cdi.glob("*compute-domain*"):
            path.unlink()
        remedy()
        assert plugin.left() == before


def test_missing_specs_are_written_again_without_a_call(short_path: Path, kubeconfig: Path, admin: ApiClient) -> None:
    daemon = add_daemon(admin, add_domain(admin))
    with domain_plugin(short_path, kubeconfig, times=ClaimTimes(sweep=0.2)) as plugin:
        plugin.prepared(daemon)
        before = plugin.left()
        for path in plugin.cdi.glob("*compute-domain*"):
            path.unlink()
        wait_for(lambda: plugin.left() == before, "the spec")


def test_claims_that_no_longer_exist_are_swept(impatient: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    stale, living = add_channel(admin, uid), add_channel(admin, uid)
    assert "does not run yet" in impatient.prepare(stale).error
    with running_daemon(impatient.folder.of_domain(uid)):
        impatient.prepared(living)
    stray = impatient.cdi / next(iter(impatient.left().specs)).replace(living.uid, "0c7c1f0e")
    stray.write_text("{}")
    impatient.attend()
    assert not stray.exists()
    assert len(impatient.left().records) == 2  # an unfinished claim that exists is left alone
    gone(admin, stale)
    impatient.attend()
    assert impatient.left().records == (f"{living.uid}.json",)
    gone(admin, living)
    impatient.attend()
    assert impatient.left() == NOTHING
    assert impatient.events == [(stale.uid, "LeftoverRemoved"), (living.uid, "LeftoverRemoved")]


def test_a_claim_that_is_gone_is_not_swept_at_once(short_path: Path, kubeconfig: Path, admin: ApiClient) -> None:
    with domain_plugin(short_path, kubeconfig, times=ClaimTimes(wait=0.1, look=0.02)) as plugin:
        channel = add_channel(admin, add_domain(admin))
        assert plugin.prepare(channel).error
        gone(admin, channel)
        plugin.attend()
        assert plugin.record(channel) is not None


def test_a_damaged_record_is_set_aside_and_made_anew(plugin: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel = add_channel(admin, uid)
    with running_daemon(plugin.folder.of_domain(uid)):
        plugin.prepared(channel)
    path = plugin.records.path(channel.uid)
    path.write_bytes(path.read_bytes()[:200])
    plugin.attend()
    record = plugin.record(channel)
    assert record is not None
    assert record.state is State.PREPARED
    assert plugin.left().domain == uid
    assert plugin.events == [(channel.uid, "RecordDamaged"), (channel.uid, "RecordRebuilt")]
    path.write_bytes(b"{")
    plugin.unprepared(channel)
    assert plugin.left() == NOTHING


def test_a_record_of_a_newer_version_is_left_alone(impatient: DomainPlugin, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel, daemon = add_channel(admin, uid), add_daemon(admin, uid)
    impatient.prepared(daemon)
    path = impatient.records.path(daemon.uid)
    newer = path.read_bytes().replace(b'"version": 7', b'"version": 8')
    path.write_bytes(newer)
    for verb in ("Prepare", "Unprepare"):
        answer = impatient.begin(verb, daemon).result(60).claims[daemon.uid]
        assert "was written by a newer version of this plugin" in answer.error
    assert "does not run yet" in impatient.prepare(channel).error
    impatient.unprepared(channel)
    impatient.attend()
    assert path.read_bytes() == newer
    assert impatient.left().folders == (uid,)
