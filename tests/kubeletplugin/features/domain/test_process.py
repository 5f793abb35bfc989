# SPDX-License-Identifier: Apache-2.0
"""Both drivers in one process: registrations, kills, an update, and the commands."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from dra_driver.domains.names import DRIVER
from dra_driver.kube.api import ApiClient
from dra_driver.names import DRIVER_NAME
from kubeletplugin.claims.model import State
from tests.faults.share import points
from tests.support.waiting import wait_for

from .domains import NOTHING, Left, add_channel, add_daemon, add_domain, running_daemon
from .processes import DomainProcess, domain_process

pytestmark = pytest.mark.node


@pytest.fixture
def plugin(kubeconfig: Path) -> Iterator[DomainProcess]:
    with domain_process(kubeconfig) as made:
        yield made


def states(plugin: DomainProcess) -> list[str]:
    return sorted(json.loads(path.read_bytes())["state"] for path in plugin.domains.records.glob("*.json"))


@pytest.mark.parametrize("number", range(4))
def test_killed_anywhere_the_next_process_goes_on(plugin: DomainProcess, admin: ApiClient, number: int) -> None:
    uid = add_domain(admin)
    ref = (add_channel if number % 2 else add_daemon)(admin, uid)
    verb, opposite = ("Prepare", "Unprepare") if number < 2 else ("Unprepare", "Prepare")
    if number % 2:
        other = add_daemon(admin, uid)
        plugin.start()
        plugin.goes_well("Prepare", other)
        plugin.kill()
    base = plugin.parts()
    with running_daemon(plugin.domains.of_domain(uid)):
        for point in points(number, 5):
            plugin.start()
            plugin.goes_well(opposite, ref)
            plugin.trigger.arm(point)
            where = plugin.call_and_die(verb, ref)
            if not where:
                break
            plugin.start()
            found = plugin.parts()
            recorded = f"{ref.uid}.json" in found.records
            assert not [name for name in (*found.records, *found.specs) if name.endswith((".new", ".tmp"))], where
            assert found.domain == (uid if recorded and number % 2 else ""), where
            if not recorded:  # the folder of a daemon that was there before is the test's
                assert found.specs == base.specs, where
            plugin.goes_well(verb, ref)
            plugin.goes_well("Unprepare", ref)
            after = plugin.parts()
            assert Left(after.records, after.specs, base.folders, after.domain) == base, where
            plugin.kill()


def test_killed_while_a_claim_waits_the_node_stays_in_the_domain(plugin: DomainProcess, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel = add_channel(admin, uid)
    plugin.start()
    plugin.begin("Prepare", channel)
    wait_for(lambda: plugin.parts().domain == uid, "the mark")
    plugin.kill()
    plugin.domains.mark.unlink()
    plugin.start()
    assert states(plugin) == [State.PREPARING]
    assert plugin.parts().domain == uid
    daemon = add_daemon(admin, uid)
    plugin.goes_well("Prepare", daemon)  # otherwise the sweep after the start may remove the folder
    with running_daemon(plugin.domains.of_domain(uid)):
        plugin.goes_well("Prepare", channel)
    plugin.goes_well("Unprepare", channel, daemon)
    assert plugin.parts() == NOTHING


def test_plugin_ends_while_a_claim_waits_for_its_daemon(plugin: DomainProcess, admin: ApiClient) -> None:
    channel = add_channel(admin, add_domain(admin))
    plugin.start()
    waiting = plugin.begin("Prepare", channel)
    wait_for(lambda: states(plugin), "the record")
    assert plugin.terminate() == 0
    assert "the plugin ends" in waiting.result(60).claims[channel.uid].error
    assert plugin.log.splitlines()[-1].endswith("stopped")
    assert not plugin.service.exists()
    assert not plugin.registration.exists()


def test_both_drivers_are_registered_and_counted(kubeconfig: Path, admin: ApiClient) -> None:
    with domain_process(kubeconfig, "--http-endpoint=127.0.0.1:0") as plugin:
        plugin.start()
        info = plugin.get_info()
        assert (info.name, info.endpoint) == (DRIVER, str(plugin.service))
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        port = re.search(r"port=([0-9]+)", plugin.log)
        assert port, plugin.log

        def get(path: str) -> str:
            return urllib3.request("GET", f"http://127.0.0.1:{port[1]}{path}", retries=False).data.decode()

        assert "compute-domains" in get("/readyz")
        plugin.notify(True)
        plugin.goes_well("Prepare", add_daemon(admin, add_domain(admin)))
        assert "ok" in get("/healthz")
        for line in (
            f'nvidia_dra_registered{{driver="{DRIVER}"}} 1.0',
            f'nvidia_dra_registered{{driver="{DRIVER_NAME}"}} 0.0',
            f'nvidia_dra_requests_total{{driver="{DRIVER}",operation="prepare"}} 1.0',
            f'nvidia_dra_requests_total{{driver="{DRIVER_NAME}",operation="prepare"}} 0.0',
            f'nvidia_dra_prepared_devices{{device_type="daemon",driver="{DRIVER}",node="node-a"}} 1.0',
        ):
            assert line in get("/metrics")


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_health_stream_stays_open_until_the_plugin_ends(plugin: DomainProcess, version: str) -> None:
    plugin.start()
    stream = plugin.watch_health(version)
    assert list(next(stream).devices) == []
    assert plugin.terminate() == 0
    assert list(stream) == []  # the plugin has ended the stream: there is no error


def test_in_an_update_the_next_instance_continues_with_the_claims(kubeconfig: Path, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel, daemon = add_channel(admin, uid), add_daemon(admin, uid)
    with domain_process(kubeconfig, uid="old") as old:
        old.start()
        old.goes_well("Prepare", daemon)
        waiting = old.begin("Prepare", channel)
        wait_for(lambda: states(old) == [State.PREPARED, State.PREPARING], "the records")
        new = old.beside("new")
        try:
            new.start()
            with running_daemon(old.domains.of_domain(uid)):
                assert waiting.result(60).claims[channel.uid].error == ""
            assert old.terminate() == 0
            new.goes_well("Prepare", channel, daemon)
            new.goes_well("Unprepare", channel, daemon)
            assert new.parts() == NOTHING
        finally:
            new.kill()


def test_the_commands_know_the_claims(plugin: DomainProcess, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel, daemon = add_channel(admin, uid), add_daemon(admin, uid)
    plugin.start()
    plugin.goes_well("Prepare", daemon)
    with running_daemon(plugin.domains.of_domain(uid)):
        plugin.goes_well("Prepare", channel)
    shown = plugin.command("status").stdout
    assert f"ComputeDomain of this node: {uid}" in shown
    for text in (str(channel), str(daemon), "channel-0 (r0)", "daemon-0 (r0)", plugin.service.name):
        assert text in shown
    document = json.loads(plugin.command("status", "--output=json").stdout)["computeDomains"]
    assert document["domain"] == uid
    assert sorted((one["uid"], one["type"], one["domain"]["uid"]) for one in document["claims"]) == sorted(
        [(channel.uid, "channel", uid), (daemon.uid, "daemon", uid)]
    )
    plugin.kill()
    refused = plugin.command("cleanup")
    assert refused.returncode == 1
    assert "2 claims are prepared" in refused.stderr
    done = plugin.command("cleanup", "--force")
    assert done.returncode == 0, done.stderr
    assert f"unprepared claim {channel}" in done.stdout
    assert not plugin.domains.path.exists()
    assert plugin.parts() == NOTHING
