# SPDX-License-Identifier: Apache-2.0
"""Domains of a workload on simulated nodes: with the real controller, plugins and daemons, and a simulated nvidia-imex.

After each test, nothing of its domains may be left: no objects, labels, files or processes (`domains`).
"""

import contextlib
import os
import signal

import pytest

from dra_driver.domains.names import daemon_name, host_name
from dra_driver.domains.objects import COMPUTE_DOMAINS
from dra_driver.kube.kinds import DAEMON_SETS, EVENTS, NODES, PODS, SERVICE_ACCOUNTS
from dra_driver.sandbox.computedomains import CONTROLLER, NAMESPACE, install_account
from dra_driver.sandbox.loop import CLAIMS
from tests.support.domains import CLUSTER_UUID, JSON, Domains, domains_running
from tests.support.hardware import ControlledNode
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
RACK = "COMPUTE_DOMAIN_RACK"


def conditions(status: JSON) -> dict[str, str]:
    return {one["type"]: one["status"] for one in status.get("conditions") or ()}


def major(domains: Domains, number: int) -> int:
    """The major number of the channels of a node."""
    lines = (domains.node(number).hardware.driver_root / "proc/devices").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[0]) for line in lines if line.endswith("nvidia-caps-imex-channels"))


def wait_ready(domains: Domains, uid: str, count: int) -> None:
    def ready() -> bool:
        reports = [row.report for clique in domains.cliques(uid) for row in clique.members]
        return len(reports) == count and all(one.ready and one.domain_state == "UP" for one in reports)

    wait_for(ready, f"{count} daemons that are connected: {domains.cliques(uid)}", 90)


def messages(domains: Domains, pod: str) -> str:
    """The Events of a pod."""
    events = domains.client.list(EVENTS, namespace="default").items
    return "\n".join(str(one["message"]) for one in events if one["involvedObject"]["name"] == pod)


def test_a_domain_of_two_cliques_comes_up_and_goes(domains: Domains) -> None:
    uid = domains.run("one", 1, 2, 3, 4)
    status = domains.wait_status("one", "Ready", 4)
    assert conditions(status) == dict.fromkeys(("TemplateCreated", "DaemonsReady", "DomainUp"), "True")
    cliques = {one["name"]: (one["cliqueID"], one["status"]) for one in status["nodes"]}
    assert cliques == {f"node-{n}": (f"{CLUSTER_UUID}.{(n + 1) // 2}", "Ready") for n in range(1, 5)}
    for clique in domains.cliques(uid):
        assert sorted(row.index for row in clique.members) == [0, 1]
    assert domains.labels() == {f"node-{n}": uid for n in range(1, 5)}
    for number in range(1, 5):
        container = domains.node(number).kubelet.container("default", f"one-{number}", "c")
        assert container is not None
        (device,) = (one for one in container.devices if one.path == CHANNEL)
        assert (device.type, device.major, device.minor, device.file_mode) == ("c", major(domains, number), 0, 0o666)
    domains.wait_running(*domains.start("one", 3, suffix="-b"))  # a second worker on a node
    for name in ("one-3", "one-4"):
        domains.client.delete(PODS, name, "default")
    domains.wait_status("one", "Ready", 3)
    wait_for(lambda: "node-4" not in domains.labels(), "the label to be gone")
    wait_for(lambda: len(domains.daemons(uid)) == 3, "the daemon to be gone")
    assert "one-3-b" in domains.running()
    assert domains.labels() == {f"node-{n}": uid for n in range(1, 4)}


@pytest.mark.skipif(not os.environ.get(RACK), reason=f"{RACK} is not set: 18 nodes need minutes of CPU time")
def test_a_rack_of_18_nodes_comes_up() -> None:
    with domains_running(18, 9) as rack:
        uid = rack.run("rack", *range(1, 19))
        wait_ready(rack, uid, 18)
        assert [sorted(row.index for row in one.members) for one in rack.cliques(uid)] == [[*range(9)]] * 2
        rack.wait_status("rack", "Ready", 18)
        rack.end()


def test_a_domain_of_three_nodes_outlives_pods_daemons_and_a_node_and_its_pods_outlive_it(domains: Domains) -> None:
    """The node that was lost returns with its index. A second domain waits for another node all the time, and gets it
    when the pods of the first are gone. Its daemons get addresses that those of the first had.
    """
    first = domains.run("one", 1, 2, 3)
    wait_ready(domains, first, 3)
    before = dict(domains.indices(first))
    second = domains.create("two")
    domains.start("two", 1, 4)
    domains.wait_running("two-4")
    wait_for(lambda: messages(domains, "two-1"), "the reason why the second domain's worker waits")
    assert domains.labels()["node-1"] == first

    domains.force_delete(domains.client.get(PODS, "one-2", "default"))
    domains.wait_running(*domains.start("one", 2))
    assert domains.indices(first) == before
    deleted, *others = domains.daemons(first)
    domains.force_delete(deleted)
    numbers = [int(one["spec"]["nodeName"].removeprefix("node-")) for one in others]
    killed = [pid for number in numbers for pid in domains.processes_of(number)]
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: killed and not set(killed) & set(domains.processes()), "the daemons to end")
    wait_for(lambda: len(domains.daemons(first)) == 3, "a new daemon")
    wait_ready(domains, first, 3)
    assert domains.indices(first) == before
    assert domains.running() == {"one-1", "one-2", "one-3", "two-4"}

    domains.lose(2)
    domains.wait_status("one", "NotReady", 3)
    for pod in (*domains.daemons(first), domains.client.get(PODS, "one-2", "default")):
        if pod["spec"]["nodeName"] == "node-2":
            domains.force_delete(pod)
    wait_for(lambda: set(domains.indices(first)) == {"node-1", "node-3"}, "the lost node to leave the domain")
    wait_ready(domains, first, 2)
    assert domains.running() == {"one-1", "one-3", "two-4"}
    domains.restore(2)
    wait_for(lambda: first not in domains.folders_of(2), "the node that returned to forget the domain")
    domains.wait_running(*domains.start("one", 2))
    wait_ready(domains, first, 3)
    assert domains.indices(first) == before

    addresses = {pod["status"]["podIP"] for pod in domains.daemons(first)}
    domains.client.delete(COMPUTE_DOMAINS, "one", "default")  # under running pods
    wait_for(lambda: not domains.daemons(first), "the daemons to end")
    assert domains.running() == {"one-1", "one-2", "one-3", "two-4"}
    assert domains.mark(1) == first
    for name in ("one-1", "one-2", "one-3"):
        domains.client.delete(PODS, name, "default")
    domains.wait_running("two-1", *domains.start("two", 2))
    wait_ready(domains, second, 3)
    assert domains.mark(1) == second
    assert domains.mark(3) == ""
    assert {pod["status"]["podIP"] for pod in domains.daemons(second)} & addresses
    assert host_name(first, 0) != host_name(second, 0)


def test_a_claim_that_waits_survives_a_plugin_that_is_killed(domains: Domains) -> None:
    node = domains.node(1)
    imex = ControlledNode(node.hardware.root).imex
    imex.stay("WAITING_FOR_RECOVERY")
    try:
        uid = domains.create("one")
        domains.start("one", 1)
        wait_for(lambda: domains.daemons(uid), "the daemon")
        wait_for(lambda: any(one.name == uid for one in domains.folders()), "the plugin to prepare")
        node.kill("kubeletplugin")
        node.start_plugin()
        node.wait_registered()
        assert domains.running() == set()
        wait_for(lambda: _reported(domains, uid, "WAITING_FOR_RECOVERY"), "the state to be reported")
    finally:
        imex.mend()
    domains.wait_running("one-1")


def _reported(domains: Domains, uid: str, text: str) -> bool:
    return any(text in row.report.state for clique in domains.cliques(uid) for row in clique.members)


def test_an_uninstall_strands_nothing(domains: Domains) -> None:
    """Of two domains, one is deleted before the account of the daemons, and one after it."""
    before, after = domains.run("before", 1), domains.run("after", 2, 3)
    domains.sandbox.cluster.terminate(CONTROLLER)
    try:
        domains.client.delete(COMPUTE_DOMAINS, "before", "default")
        domains.client.delete(SERVICE_ACCOUNTS, "compute-domain-daemon-service-account", NAMESPACE)
        for uid in (before, after):
            wait_for(lambda uid=uid: not domains.daemons(uid), "the daemons to go with the account")  # type: ignore[misc]
            wait_for(lambda uid=uid: not domains.cliques(uid), "the cliques to go with the account")  # type: ignore[misc]
        made = {one["metadata"]["name"] for one in domains.client.list(DAEMON_SETS).items}
        assert not made & {daemon_name(before), daemon_name(after)}
        for pod in domains.running():
            domains.client.delete(PODS, pod, "default")
        domains.client.delete(COMPUTE_DOMAINS, "after", "default")
        wait_for(lambda: not domains.client.list(COMPUTE_DOMAINS).items, "the domains to go")
        wait_for(lambda: not domains.client.list(CLAIMS).items, "the claims to go")
    finally:
        install_account(domains.client)
        domains.sandbox.cluster.start_controller()  # which also removes the labels of nodes
    assert domains.client.list(NODES).items
