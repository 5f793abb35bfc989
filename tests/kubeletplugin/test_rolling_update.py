# SPDX-License-Identifier: Apache-2.0
"""Two processes on one node, kubelet's restarts, and folders that vanish: what the stand-in kubelet notices of it."""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.kubelet import BackoffRange, ClaimRef, Kubelet, KubeletOptions, Periods
from tests.sandbox.kubelet.memory_cluster import MemoryCluster
from tests.support.plugin import NOTHING, POOL, Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

OLD, NEW = "5e0f7c1e-9a0e-4a63-8a55-0c7b6d8f9e10", "c2b7a9d4-1f36-4e0c-b0d5-6a4e9f1d2c33"
FOUR = ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-2g20gb-14-2", "gpu-4-mig-3g40gb-9-4"]
PERIODS = Periods(
    scan=0.01,
    register_retry=BackoffRange(0.05, 0.1),
    reconnect=BackoffRange(0.05, 0.1),
    health_retry=0.02,
    wipe_delay=3600.0,
)


@contextmanager
def kubelet_of(plugin: Plugin, **options: Any) -> Iterator[Kubelet]:
    """A kubelet that looks where the plugin registers."""
    given = KubeletOptions(POOL, plugin.folder, plugin.cdi, periods=PERIODS)
    with Kubelet(replace(given, **options), MemoryCluster()) as kubelet:
        yield kubelet


@pytest.fixture
def old(kubeconfig: Path) -> Iterator[Plugin]:
    """An instance with a UID, which runs."""
    with plugin_on(kubeconfig, uid=OLD) as plugin:
        yield plugin.start()


@pytest.fixture
def new(old: Plugin) -> Iterator[Plugin]:
    """The instance that is to follow it, not started yet."""
    plugin = old.beside(NEW)
    yield plugin
    plugin.kill()


@pytest.fixture
def kubelet(old: Plugin) -> Iterator[Kubelet]:
    """A kubelet that has registered the old one."""
    with kubelet_of(old) as running:
        running.wait_registered(DRIVER_NAME)
        yield running


def ref(claim: Any) -> ClaimRef:
    return ClaimRef(claim.namespace, claim.name, claim.uid)


def sockets(plugin: Plugin) -> set[str]:
    """All sockets of the node, by name."""
    return {path.name for folder in (plugin.state, plugin.registration.parent) for path in folder.glob("*.sock")}


class TestUpdate:
    """One instance follows the other."""

    def test_no_call_fails_and_what_the_old_one_prepared_the_new_one_unprepares(
        self, kubelet: Kubelet, old: Plugin, new: Plugin, client: ApiClient
    ) -> None:
        lasting = [stored_claim(client, "gpu-0"), stored_claim(client, *FOUR)]
        kubelet.prepare(DRIVER_NAME, map(ref, lasting))
        before = old.left()
        errors: list[str] = []
        rounds, over = [0], threading.Event()

        def call_on() -> None:
            """Prepare and unprepare without a pause."""
            claims = [stored_claim(client, "gpu-1"), stored_claim(client, "gpu-5-mig-1g10gb-19-0")]
            while not over.is_set():
                for call in (kubelet.prepare, kubelet.unprepare):
                    errors.extend(one.error for one in call(DRIVER_NAME, map(ref, claims)).values() if one.error)
                rounds[0] += 1

        def go_on() -> None:
            done = rounds[0]
            wait_for(lambda: rounds[0] >= done + 3, "more calls")

        with ThreadPoolExecutor() as pool:
            calls = pool.submit(call_on)
            try:
                go_on()
                new.start()
                kubelet.wait_registered(DRIVER_NAME, instances=2)
                go_on()
                assert old.terminate() == 0
                kubelet.wait_registered(DRIVER_NAME, instances=1)
                go_on()
            finally:
                over.set()
            calls.result(timeout=60)
        assert errors == []
        assert [one.endpoint for one in kubelet.plugins(DRIVER_NAME)] == [str(new.service)]
        assert new.left() == before
        assert not kubelet.pending_wipes()
        assert [one.error for one in kubelet.unprepare(DRIVER_NAME, map(ref, lasting)).values()] == ["", ""]
        assert new.left() == NOTHING

    def test_each_removes_its_own_sockets_and_no_others(self, old: Plugin, new: Plugin) -> None:
        new.start()
        both = {path.name for one in (old, new) for path in (one.registration, one.service)}
        assert sockets(old) == both
        old.terminate()
        assert sockets(new) == {new.registration.name, new.service.name}
        assert new.get_info().endpoint == str(new.service)

    def test_old_process_answers_running_calls(self, old: Plugin, new: Plugin, client: ApiClient) -> None:
        claim = stored_claim(client, *FOUR)
        old.node.inject(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", seconds=0.3, times=1))
        running = old.begin("Prepare", claim)
        old.wait_held()
        new.start("started")
        assert old.terminate() == 0
        assert running.result(timeout=60).claims[claim.uid].error == ""
        wait_for(lambda: "GPUs are ready" in new.log, "the new one to be ready")
        assert new.prepare(claim)[claim.uid].error == ""
        assert new.unprepare(claim) == {claim.uid: ""}
        assert new.left() == NOTHING

    def test_sockets_of_a_killed_one_are_swept_by_the_next(self, kubelet: Kubelet, old: Plugin, new: Plugin) -> None:
        old.kill()
        assert len(sockets(old)) == 2
        new.start()
        assert sockets(new) == {new.registration.name, new.service.name}
        endpoints = [str(new.service)]  # kubelet may know the old one for a moment
        wait_for(lambda: [one.endpoint for one in kubelet.plugins(DRIVER_NAME)] == endpoints, "the new one alone")

    def test_plugins_with_and_without_a_uid_run_side_by_side(self, kubeconfig: Path, client: ApiClient) -> None:
        with plugin_on(kubeconfig) as single:
            instance = single.start().beside(NEW)
            try:
                instance.start()
                for one in (single, instance):
                    claim = stored_claim(client, "gpu-0")
                    assert one.prepare(claim)[claim.uid].error == ""
                    assert one.unprepare(claim) == {claim.uid: ""}
            finally:
                instance.kill()

    def test_a_device_that_one_prepared_the_other_does_not_give_away(
        self, old: Plugin, new: Plugin, client: ApiClient
    ) -> None:
        first, second = stored_claim(client, "gpu-0"), stored_claim(client, "gpu-0")
        new.start()
        assert old.prepare(first)[first.uid].error == ""
        assert "device gpu-0 is in use by" in new.prepare(second)[second.uid].error
        assert new.unprepare(first) == {first.uid: ""}
        assert old.prepare(second)[second.uid].error == ""


class TestRegistration:
    """kubelet comes, goes, and is told anew."""

    def test_a_kubelet_that_restarts_finds_the_plugin_again(self, old: Plugin, client: ApiClient) -> None:
        for _ in range(2):
            with kubelet_of(old) as kubelet:
                kubelet.wait_registered(DRIVER_NAME)
                claim = stored_claim(client, "gpu-0")
                assert kubelet.prepare(DRIVER_NAME, [ref(claim)])[claim.uid].error == ""
                assert kubelet.unprepare(DRIVER_NAME, [ref(claim)])[claim.uid].error == ""
        wait_for(lambda: old.log.count("registered with kubelet") == 2, "kubelet's answers in the log")

    def test_the_socket_comes_back_when_kubelets_folder_is_made_anew(
        self, kubelet: Kubelet, old: Plugin, client: ApiClient
    ) -> None:
        shutil.rmtree(old.registration.parent)
        kubelet.wait_deregistered(DRIVER_NAME)
        old.registration.parent.mkdir()
        kubelet.wait_registered(DRIVER_NAME)
        claim = stored_claim(client, "gpu-0")
        assert kubelet.prepare(DRIVER_NAME, [ref(claim)])[claim.uid].error == ""
        kubelet.unprepare(DRIVER_NAME, [ref(claim)])

    def test_a_service_socket_that_was_removed_comes_back_and_the_call_that_runs_is_answered(
        self, kubelet: Kubelet, old: Plugin, client: ApiClient
    ) -> None:
        claim, other = stored_claim(client, *FOUR), stored_claim(client, "gpu-0")
        old.node.inject(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", seconds=2.0, times=1))
        with ThreadPoolExecutor() as pool:
            running = pool.submit(kubelet.prepare, DRIVER_NAME, [ref(claim)])
            old.wait_held()
            old.service.unlink()
            wait_for(old.service.exists, "the socket")
            assert old.prepare(other)[other.uid].error == ""
            assert running.result(timeout=60)[claim.uid].error == ""
        kubelet.wait_registered(DRIVER_NAME)
        answers = kubelet.unprepare(DRIVER_NAME, [ref(claim), ref(other)])
        assert [one.error for one in answers.values()] == ["", ""]

    @pytest.mark.parametrize("services", [("v1beta1.DRAPlugin",), ("v1.DRAPlugin", "v1beta1.DRAPlugin")])
    def test_older_kubelets_are_served(self, old: Plugin, client: ApiClient, services: tuple[str, ...]) -> None:
        with kubelet_of(old, services=services) as kubelet:
            kubelet.wait_registered(DRIVER_NAME)
            assert [one.service for one in kubelet.plugins(DRIVER_NAME)] == [services[0]]
            claim = stored_claim(client, "gpu-0")
            assert kubelet.prepare(DRIVER_NAME, [ref(claim)])[claim.uid].error == ""
            kubelet.unprepare(DRIVER_NAME, [ref(claim)])

    def test_a_kubelet_that_refuses_is_heard(self, old: Plugin) -> None:
        with kubelet_of(old, services=("v2.DRAPlugin",)):
            wait_for(lambda: "kubelet refused the registration: " in old.log, "the log line")
        assert "are supported by the kubelet" in old.log
