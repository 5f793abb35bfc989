# SPDX-License-Identifier: Apache-2.0
"""A cluster for tests of ComputeDomains: an API server, nodes with cliques, claims, and what kubelets would do."""

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from controller.cluster.domains.loop import DomainController, DomainMetrics
from controller.cluster.domains.settings import DaemonSettings, DomainSettings, DomainTiming
from controller.cluster.leader import LeaderWork
from dra_driver.domains.names import CLIQUE_ATTRIBUTE, DOMAIN_LABEL, DRIVER, FABRIC_TAINT, clique_name, daemon_name
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, Clique, DaemonReport, decode_clique, encode_report
from dra_driver.domains.template import channel_claim
from dra_driver.kube.api import ApiClient, ApiError, Kind, NotFoundError, StatusError
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.kinds import (
    DAEMON_SETS,
    DEFINITIONS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    templates_of,
)
from dra_driver.kube.resource.codec import V1, encode_claim_spec
from dra_driver.process.endpoints import new_registry
from dra_driver.sandbox.computedomains import custom_kinds
from tests.support import loops
from tests.support.apiserver import CLAIMS, SLICES
from tests.support.waiting import wait_for

JSON = dict[str, Any]
NAMESPACE = "dra"
ACCOUNT = DaemonSettings().service_account
TEMPLATES = templates_of(V1)
SETTINGS = DaemonSettings("example.com/dra:1")
READY = DaemonReport(True, "READY", "UP")


_custom_kinds = functools.cache(custom_kinds)


class Cluster:
    """The cluster, and the part of Kubernetes and of the nodes that `step` plays."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client
        self.report: Callable[[str], DaemonReport] = lambda _: READY
        self.trouble: dict[str, JSON] = {}  # the status of pods that do not start, by node
        self._numbers = itertools.count(1)

    def install(self) -> "Cluster":
        for value in _custom_kinds():
            self.client.create(DEFINITIONS, value)
        for name in (NAMESPACE, "ml", "other"):
            self.client.create(NAMESPACES, _object("v1", "Namespace", name))
        self.client.create(SERVICE_ACCOUNTS, _object("v1", "ServiceAccount", ACCOUNT), NAMESPACE)
        return self

    # What users and nodes make

    def domain(self, name: str = "train", *, template: str = "", nodes: int = 0, namespace: str = "ml") -> str:
        """The UID of a new ComputeDomain."""
        spec = {"numNodes": nodes, "channel": {"resourceClaimTemplate": {"name": template or f"{name}-channel"}}}
        value = _object(COMPUTE_DOMAINS.api_version, "ComputeDomain", name, spec=spec)
        return str(self.client.create(COMPUTE_DOMAINS, value, namespace)["metadata"]["uid"])

    def node(self, name: str, clique: str = "") -> str:
        """A node that publishes a channel."""
        self.client.create(NODES, _object("v1", "Node", name))
        value = _object(V1.api_version, "ResourceSlice", f"{name}-slice")
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        value["spec"] = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": _devices(clique)}
        self.client.create(SLICES, value)
        return name

    def move(self, node: str, clique: str, *, settled: bool = True) -> None:
        """Change the clique of a node."""
        value = self.client.get(SLICES, f"{node}-slice")
        value["spec"]["devices"] = _devices(clique)
        if not settled:
            taint = {"key": FABRIC_TAINT, "value": "in-progress", "effect": "NoSchedule"}
            value["spec"]["devices"][0]["taints"] = [taint]
        self.client.update(SLICES, value)

    def claim(self, uid: str, node: str, namespace: str = "ml") -> JSON:
        """A claim to which the scheduler has allocated the channel of a node."""
        spec = encode_claim_spec(channel_claim(uid, all_channels=False), V1)
        value = _object(V1.api_version, "ResourceClaim", f"claim-{next(self._numbers)}", spec=spec)
        made = self.client.create(CLAIMS, value, namespace)
        result = {"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}
        config = [{"source": "FromClaim", **one} for one in spec["devices"]["config"]]
        made["status"] = {"allocation": {"devices": {"results": [result], "config": config}}}
        return self.client.update(CLAIMS, made, subresource="status")

    def release(self, claim: JSON) -> None:
        self.client.delete(CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])

    # What Kubernetes and the daemons do

    def step(self) -> None:
        """Make and remove the pods of DaemonSets, and let daemons report."""
        sets = {one["metadata"]["labels"][DOMAIN_LABEL]: one for one in self.client.list(DAEMON_SETS).items}
        nodes = {one["metadata"]["name"]: one for one in self.client.list(NODES).items}
        labels = {name: (one["metadata"].get("labels") or {}).get(DOMAIN_LABEL) for name, one in nodes.items()}
        there = set()
        for pod in self.pods():
            node, uid = pod["spec"]["nodeName"], pod["metadata"]["labels"][DOMAIN_LABEL]
            if labels.get(node) != uid or uid not in sets:
                self.client.delete(PODS, pod["metadata"]["name"], NAMESPACE)
            else:
                there.add(node)
        for node, label in labels.items():
            if label in sets and node not in there:
                self.pod(label or "", node)
        for clique in self.cliques().values():
            self.let_report(clique)

    def pod(self, uid: str, node: str) -> JSON:
        """A pod of the domain's DaemonSet that runs on a node."""
        number = next(self._numbers)
        value = _object("v1", "Pod", f"{daemon_name(uid)}-{number}")
        value["metadata"]["labels"] = {DOMAIN_LABEL: uid}
        containers = [{"name": "c", "image": "a"}]
        value["spec"] = {"nodeName": node, "containers": containers, "terminationGracePeriodSeconds": 0}
        self.client.create(PODS, value, NAMESPACE)
        running = {"phase": "Running", "podIP": f"10.0.{number // 250}.{number % 250}"}
        status = self.trouble.get(node, running)
        return self.client.patch(
            PODS, value["metadata"]["name"], {"status": status}, namespace=NAMESPACE, subresource="status"
        )

    def let_report(self, clique: Clique) -> None:
        for position, row in enumerate(clique.members):
            report = self.report(row.node)
            if row.report != report:
                path = f"/daemons/{position}"
                changes = [{"op": "test", "path": f"{path}/nodeName", "value": row.node}]
                fields = encode_report(report).items()
                changes += [{"op": "add", "path": f"{path}/{key}", "value": value} for key, value in fields]
                with suppress(StatusError):  # the row has moved meanwhile
                    self.client.json_patch(CLIQUES, clique.name, changes, namespace=NAMESPACE)

    # What there is

    def pods(self) -> list[JSON]:
        return self.client.list(PODS, namespace=NAMESPACE).items

    def cliques(self) -> dict[str, Clique]:
        found = [decode_clique(one) for one in self.client.list(CLIQUES, namespace=NAMESPACE).items]
        return {one.name: one for one in found}

    def rows(self, uid: str, clique: str) -> dict[str, int]:
        """The index of each member of a clique."""
        found = self.cliques().get(clique_name(uid, clique))
        return {} if found is None else {one.node: one.index for one in found.members}

    def labels(self) -> dict[str, str]:
        """The domain in the label of each node that has one."""
        found = {one["metadata"]["name"]: one["metadata"].get("labels") or {} for one in self.client.list(NODES).items}
        return {name: labels[DOMAIN_LABEL] for name, labels in found.items() if labels.get(DOMAIN_LABEL)}

    def status(self, name: str = "train", namespace: str = "ml") -> JSON:
        found: JSON = self.client.get(COMPUTE_DOMAINS, name, namespace).get("status") or {}
        return found

    def condition(self, kind: str, name: str = "train") -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        for one in self.status(name).get("conditions") or []:
            if one["type"] == kind:
                return one["status"], one["reason"], one["message"]
        return "", "", ""

    def get(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> JSON | None:
        try:
            return self.client.get(kind, name, namespace)
        except NotFoundError:
            return None

    def events(self, reason: str) -> list[JSON]:
        return [one for one in self.client.list(EVENTS).items if one["reason"] == reason]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Play the cluster until the condition is true."""

        def check() -> object:
            with suppress(ApiError):
                self.step()
            return condition()

        wait_for(check, what)

    def until_ready(self, name: str = "train") -> None:
        self.until(lambda: self.status(name).get("status") == "Ready", f"domain {name} to be ready")


class Work:
    """A controller at work, and what it counts."""

    def __init__(self, client: ApiClient, settings: DaemonSettings) -> None:
        self.registry = new_registry()
        self.recorder = EventRecorder(client, "tests")
        timing = DomainTiming(settle=0.01, status=0.05, first_retry=0.02, longest_retry=0.2)
        self.unexpected: list[str] = []
        self.controller = DomainController(
            client,
            DomainSettings(NAMESPACE, settings, timing),
            self.recorder,
            DomainMetrics(self.registry),
            self.unexpected.append,
        )
        self.leader = LeaderWork(client, [self.controller], domains=True, first_retry=0.02)

    @property
    def problem(self) -> str | None:
        return self.leader.problem or self.controller.problem

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"nvidia_dra_{name}", labels) or 0.0

    @property
    def writes(self) -> float:
        """All writes."""
        name = "nvidia_dra_compute_domain_writes"
        samples = [sample for one in self.registry.collect() for sample in one.samples]
        return sum(one.value for one in samples if one.name == f"{name}_total")


@contextmanager
def at_work(client: ApiClient, settings: DaemonSettings = SETTINGS) -> Iterator[Work]:
    work = Work(client, settings)
    try:
        with loops.at_work(work.leader.run, work.recorder):
            yield work
    finally:
        assert work.unexpected == []


def _object(api_version: str, kind: str, name: str, **fields: Any) -> JSON:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **fields}


def _devices(clique: str) -> list[JSON]:
    attributes: JSON = {"type": {"string": "channel"}, "id": {"int": 0}}
    if clique:
        attributes[CLIQUE_ATTRIBUTE] = {"string": clique}
    daemon = {"type": {"string": "daemon"}, "id": {"int": 0}}
    return [{"name": "channel-0", "attributes": attributes}, {"name": "daemon-0", "attributes": daemon}]
