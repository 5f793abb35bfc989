# SPDX-License-Identifier: Apache-2.0
"""Who is a member, and with which index: the pure part."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.domains.facts import CliqueFacts, DomainState, StoredFacts, clique_facts
from controller.cluster.domains.membership import Membership, membership, slots_of
from controller.cluster.domains.objects import Account, daemon_objects
from controller.cluster.domains.pods import PodFacts, pod_facts
from controller.cluster.domains.settings import DaemonSettings, DomainSettings
from controller.cluster.domains.status import domain_status, encode_status
from controller.cluster.facts import ChannelFacts, ClaimFacts, NodeFacts, claim_facts, only_slice, slice_facts
from dra_driver.config import API_VERSION
from dra_driver.domains.names import DRIVER
from dra_driver.domains.objects import MOST_SLOTS, Clique, ComputeDomain, DaemonReport
from dra_driver.kube.api.client import JSON
from dra_driver.kube.kinds import CERTIFICATES
from dra_driver.kube.resource.codec import V1

UID = "d9f6a1d2-3a80-4a7e-9f2b-0c5d3e6f7a81"
DOMAIN = ComputeDomain("ml", "train", UID, "train-channel")
SLOTS = 6


class Model:
    """A domain to which nodes come and from which they go."""

    def __init__(self, most_nodes: int = SLOTS) -> None:
        self.most_nodes = most_nodes
        self.fabric: dict[str, str] = {}
        self.claimed: set[str] = set()
        self.pods: dict[str, PodFacts] = {}
        self.cliques: tuple[Clique, ...] = ()
        self.labels: set[str] = set()
        self.domain = DOMAIN
        self.number = 0

    def join(self, node: str, clique: str = "c.1") -> None:
        self.fabric.setdefault(node, clique)
        self.claimed.add(node)

    def leave(self, node: str) -> None:
        self.claimed.discard(node)
        self.pods.pop(node, None)

    def state(self) -> DomainState:
        nodes = {one: NodeFacts(one, one, UID if one in self.labels else "") for one in self.fabric}
        fabric = {one: ChannelFacts(one, clique, True) for one, clique in self.fabric.items()}
        claims = tuple(
            ClaimFacts("ml", one, one, ((one, "channel-0"),), channels=((one, UID),)) for one in sorted(self.claimed)
        )
        cliques = tuple(CliqueFacts(StoredFacts(one.name, "dra", one.name, UID), one) for one in self.cliques)
        return DomainState(self.domain, claims, nodes, fabric, tuple(self.pods.values()), cliques)

    def settle(self) -> Membership:
        """Write what the plan says, and let the DaemonSet follow the labels, until nothing changes."""
        while True:
            plan = membership(self.state(), "dra", self.most_nodes)
            labels = (self.labels | set(plan.labelled)) - set(plan.unlabelled)
            pods = {node: self.pods.get(node) or self.pod(node) for node in sorted(labels)}
            if (labels, plan.cliques, pods) == (self.labels, self.cliques, self.pods):
                return plan
            self.labels, self.cliques, self.pods = labels, plan.cliques, pods

    def pod(self, node: str) -> PodFacts:
        self.number += 1
        return PodFacts(f"uid-{self.number}", f"pod-{self.number}", node, UID, f"10.0.0.{self.number}", "2026")

    def indices(self, clique: str = "c.1") -> Mapping[str, int]:
        found = next((one for one in self.cliques if one.clique == clique), None)
        return {} if found is None else {one.node: one.index for one in found.members}


@given(st.lists(st.integers(0, SLOTS - 1), max_size=100))
def test_an_index_is_stable_however_often_nodes_come_and_go(changes: list[int]) -> None:
    model = Model()
    first: dict[str, int] = {}
    for number in changes:
        node = f"node-{number}"
        (model.leave if node in model.claimed else model.join)(node)
        model.settle()
        for one, index in model.indices().items():
            assert first.setdefault(one, index) == index
        assert set(model.indices()) == model.claimed
        assert len(set(model.indices().values())) == len(model.claimed)


@given(st.lists(st.integers(0, 2 * SLOTS), max_size=100))
def test_indices_of_members_never_change_or_meet_with_more_nodes_than_slots(changes: list[int]) -> None:
    model = Model()
    before: Mapping[str, int] = {}
    for number in changes:
        node = f"node-{number}"
        (model.leave if node in model.claimed else model.join)(node)
        plan = model.settle()
        now = model.indices()
        assert all(now.get(one, index) == index for one, index in before.items())
        assert len(set(now.values())) == len(now) == min(len(model.claimed), SLOTS)
        assert all(0 <= index < SLOTS for index in now.values())
        assert set(plan.surplus) == model.claimed - set(now)
        before = now


def test_the_index_of_the_node_that_is_away_for_the_longest_time_is_given_out() -> None:
    model = Model(3)
    for node in "abc":
        model.join(node)
    model.settle()
    for node in "bac":
        model.leave(node)
        model.settle()
    model.join("d")
    model.settle()
    assert model.indices() == {"d": 1}, "that of b"
    for node in "ac":
        model.join(node)
    model.settle()
    assert model.indices() == {"d": 1, "a": 0, "c": 2}


def test_the_number_of_slots_is_fixed_while_there_are_members() -> None:
    model = Model(2)
    model.join("a")
    model.settle()
    model.most_nodes = 5
    model.join("b")
    model.settle()
    assert model.cliques[0].slots == 2
    for node in "ab":
        model.leave(node)
    model.settle()
    model.join("b")
    model.settle()
    assert (model.cliques[0].slots, model.indices()) == (5, {"b": 1})


@pytest.mark.parametrize("damage", ["annotation", "row", "object", "duplicate"])
def test_indices_survive_what_somebody_edits(damage: str) -> None:
    model = Model()
    for node in "cab":
        model.join(node)
        model.settle()
    before = model.indices()
    plan = model.settle()
    status = domain_status(model.state(), plan, None, None)
    model.domain = replace(DOMAIN, status=encode_status(status, 1, {}, "now"))
    (clique,) = model.cliques
    rows = clique.members
    model.cliques = {
        "annotation": (replace(clique, indices={"a": 4}),),
        "row": (replace(clique, members=(replace(rows[0], index=5), *rows[1:])),),
        "object": (),
        "duplicate": (replace(clique, members=(*rows, rows[0])),),
    }[damage]
    model.settle()
    assert model.indices() == before


def test_a_node_that_changes_its_clique_ends_its_daemon_first() -> None:
    model = Model()
    for node in "ab":
        model.join(node)
    model.settle()
    old = model.pods["b"]
    model.fabric["b"] = "c.2"
    plan = membership(model.state(), "dra", SLOTS)
    assert (plan.unlabelled, set(plan.moving)) == (("b",), {"b"})
    model.settle()
    assert (model.indices(), model.indices("c.2")) == ({"a": 0}, {"b": 0})
    assert model.pods["b"] != old


def test_a_node_whose_fabric_is_not_ready_stays_what_it_is() -> None:
    model = Model()
    for node in "ab":
        model.join(node)
    model.settle()
    state = model.state()
    fabric = {**state.fabric, "b": ChannelFacts("b", "", False)}
    del fabric["a"]  # its slice is gone, as while the driver is updated
    plan = membership(replace(state, fabric=fabric), "dra", SLOTS)
    assert (plan.labelled, plan.unlabelled, plan.cliques) == ((), (), model.cliques)
    assert plan.unknown == {"a", "b"}


def test_a_status_has_its_time_only_from_a_change() -> None:
    model = Model()
    model.join("a")
    plan = model.settle()
    early = encode_status(domain_status(model.state(), plan, None, None), 1, {}, "early")
    (clique,) = model.cliques
    model.cliques = (replace(clique, members=(replace(clique.members[0], report=DaemonReport(True)),)),)
    late = encode_status(domain_status(model.state(), model.settle(), None, None), 1, early, "late")
    times = {one["type"]: one["lastTransitionTime"] for one in late["conditions"]}
    assert times == {"TemplateCreated": "early", "DaemonsReady": "late", "DomainUp": "late"}
    assert (early["status"], late["status"]) == ("NotReady", "Ready")


CONFIG = {"apiVersion": API_VERSION, "kind": "ComputeDomainChannelConfig", "domainID": UID}


@pytest.mark.parametrize(
    ("results", "config", "channels"),
    [
        ([("channel", "channel-0")], [(["channel"], DRIVER, CONFIG)], (("node-a", UID),)),
        ([("channel/first", "channel-0-1")], [(["channel"], DRIVER, CONFIG)], (("node-a", UID),)),
        ([("channel", "channel-0")], [([], DRIVER, CONFIG)], (("node-a", UID),)),
        ([("channel", "channel-0")], [(["other"], DRIVER, CONFIG)], (("node-a", ""),)),
        ([("channel", "channel-0")], [([], "gpu.nvidia.com", CONFIG), ([], DRIVER, {"kind": "x"})], (("node-a", ""),)),
        ([("daemon", "daemon-0")], [], ()),
    ],
)
def test_the_domain_of_a_claim_is_in_the_configuration_of_its_request(
    results: list[tuple[str, str]], config: list[tuple[list[str], str, object]], channels: object
) -> None:
    allocation = {
        "devices": {
            "results": [
                {"request": request, "driver": DRIVER, "pool": "node-a", "device": device}
                for request, device in results
            ],
            "config": [
                {"requests": requests, "opaque": {"driver": driver, "parameters": parameters}}
                for requests, driver, parameters in config
            ],
        }
    }
    metadata = {"namespace": "ml", "name": "a", "uid": "u"}
    facts = claim_facts({"metadata": metadata, "status": {"allocation": allocation}}, [DRIVER])
    assert facts is not None
    assert facts.channels == channels


@pytest.mark.parametrize("beta", [False, True])
def test_a_slice_has_the_clique_of_its_node(beta: bool) -> None:
    content = {"attributes": {"gpu.nvidia.com/fabricClique": {"string": "c.1"}}}
    device = {"name": "channel-0", **({"basic": content} if beta else content)}
    value = published([{"name": "daemon-0"}, device])
    assert slice_facts(value).channel == ChannelFacts("a", "c.1", True)
    assert slice_facts(only_slice(value)) == slice_facts(value)


def test_a_slice_without_a_channel_has_no_channel() -> None:
    assert slice_facts(published([{"name": "daemon-0"}])).channel is None


def published(devices: list[JSON]) -> JSON:
    metadata = {"name": "s", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {"nodeName": "a", "devices": devices}}


def test_an_unreadable_clique_keeps_its_readable_rows() -> None:
    row = {"nodeName": "a", "ipAddress": "10.0.0.1", "cliqueID": "c.1", "index": 3}
    metadata = {"name": f"{UID}.c.1", "uid": "u", "annotations": {"resource.nvidia.com/computeDomain.slots": "x"}}
    facts = clique_facts({"metadata": metadata, "daemons": [row]})
    assert facts is not None
    assert (facts.broken, facts.clique.domain_uid, facts.clique.clique) == (True, UID, "c.1")
    assert [one.index for one in facts.clique.members] == [3]
    facts = clique_facts({"metadata": metadata, "daemons": [{**row, "index": "x"}]})
    assert facts is not None
    assert (facts.broken, facts.clique.members) == (True, ())


WAITING = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1"}]}, ("PodUnschedulable", "0/1")),
        ({"containerStatuses": [WAITING]}, ("PodFailed", "CrashLoopBackOff: back-off")),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
            ("ImagePullFailed", "ErrImagePull"),
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, None),
        ({"phase": "Failed", "reason": "Evicted"}, ("PodFailed", "Evicted: no message")),
        ({"phase": "Running", "podIP": "10.0.0.1"}, None),
    ],
)
def test_why_a_pod_does_not_run(status: dict[str, object], trouble: object) -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    value = {"metadata": {"uid": "u", "name": "p"}, "spec": {"affinity": {"nodeAffinity": required}}, "status": status}
    facts = pod_facts(value)
    assert (facts.node, facts.trouble) == ("node-a", trouble)


@pytest.mark.parametrize("number", [0, 7, MOST_SLOTS, 5_000_000, 1 << 62])
def test_the_number_of_slots_that_a_user_asks_for_is_bounded(number: int) -> None:
    model = Model()
    model.domain = replace(DOMAIN, num_nodes=number)
    model.join("a")
    (clique,) = model.settle().cliques
    assert clique.slots == min(max(number, SLOTS), MOST_SLOTS)
    account, settings = Account("daemons", "uid"), DomainSettings("dra", DaemonSettings(issuer=("Issuer", "ca")))
    (certificate,) = (
        one.value
        for one in daemon_objects(model.domain, V1, settings, account, slots_of(model.domain, SLOTS))
        if one.kind == CERTIFICATES
    )
    assert len(certificate["spec"]["dnsNames"]) == clique.slots


@pytest.mark.parametrize("name", ["../x.1", "a/b", "C.1", "c.1 ", "c" * 64, "é.1"])
def test_a_clique_that_is_no_name_does_not_settle(name: str) -> None:
    attributes = {"gpu.nvidia.com/fabricClique": {"string": name}}
    devices = [{"name": "channel-0", "attributes": attributes}]
    assert slice_facts(published(devices)).channel == ChannelFacts("a", name, settled=False)
