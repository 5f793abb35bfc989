# SPDX-License-Identifier: Apache-2.0
"""The chart's RBAC, enforced: the processes need all of it to do their work, and have nothing else."""

import copy
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from dra_driver.gpu.devices import AVAILABLE, UNAVAILABLE
from dra_driver.kube.api import ApiClient, ConflictError
from dra_driver.kube.kinds import EVENTS, LEASES, NODE_FEATURES, NODES
from dra_driver.kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from dra_driver.names import DRIVER_NAME
from kubeletplugin.protocol import dra_v1_pb2
from tests.support.apiserver import CLAIMS, SLICES, serve_node_features
from tests.support.faultyserver import RequestFault
from tests.support.waiting import wait_for

from .domains import DAEMONS, domain_objects
from .rendering import JSON, MINORS, NAMESPACE, NEWEST, find, merged, render
from .rendering import VALUES as RENDERED
from .workloads import NODE, STARTUP_TAINT, Containers, installed, may_mount, render_in, short_folder

VALUES: JSON = {
    "simulatedNode": "h100x8-mixed",
    "resources": {"computeDomains": {"enabled": False}},  # test_computedomain_rights.py is about their rights
    "nodeLabels": "node-feature",
    "policy": {"gpus": [{"bindingConditions": True, "passthrough": True}]},
    "kubeletPlugin": {
        "metrics": {"enabled": False},
        "deviceMetadata": True,
        "startupTaint": STARTUP_TAINT,
        "check": {"enabled": True},
        "containers": {"controller": {"env": [{"name": "POLL_INTERVAL", "value": "1"}]}},
    },
    "controller": {
        "metrics": {"enabled": False},
        "cleanupGracePeriod": "0s",
        "leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "0.2s"},
    },
}
WRONG: JSON = {
    "opaque": {
        "driver": DRIVER_NAME,
        "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfg"},
    }
}
MACHINE = {EXTENDED_CLAIM_ANNOTATION: "true"}
OPENSHIFT = ("security.openshift.io/v1/SecurityContextConstraints",)
SOME_AWAY = "gpus:\n- match: {indexes: [4, 5, 6, 7]}\n  publish: false\n"


@dataclass(frozen=True)
class Right:
    """One verb of one rule of a role."""

    role: str
    rule: int
    verb: str
    resource: str
    namespace: str
    """Empty for a ClusterRole, whose rights are for all namespaces."""

    def __str__(self) -> str:
        return f"{self.role}: {self.verb} {self.resource}"

    def uses(self, account: str) -> RequestFault:
        """Counts the requests of an account that need this right, and lets them pass."""
        return RequestFault(self.verb, self.resource, namespace=self.namespace, user=account)


def rights(objects: list[JSON], component: str) -> Iterator[Right]:
    """All of a component's."""
    for one in objects:
        if one["kind"] in ("Role", "ClusterRole") and component in one["metadata"]["name"]:
            for index, rule in enumerate(one["rules"]):
                for verb in rule["verbs"]:
                    (resource,) = rule["resources"]
                    namespace = one["metadata"].get("namespace", "")
                    yield Right(f"{one['kind']} {one['metadata']['name']}", index, verb, resource, namespace)


def without(objects: list[JSON], right: Right) -> list[JSON]:
    """The rendering, less one right."""
    reduced = copy.deepcopy(objects)
    for one in reduced:
        if f"{one['kind']} {one['metadata']['name']}" == right.role:
            one["rules"][right.rule]["verbs"].remove(right.verb)
            one["rules"] = [rule for rule in one["rules"] if rule["verbs"]]
    return reduced


def rules(objects: list[JSON]) -> set[str]:
    """All rules, each with the component and the kind of role that it is of."""
    return {
        f"{one['metadata']['labels']['app.kubernetes.io/component']} {one['kind']}: {sorted(rule.items())}"
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
        for rule in one["rules"]
    }


PROVEN = rules(render(VALUES, 36))
"""All rules that there are, with VALUES; below, requests are seen to need each of them."""

Step = Callable[[], bool]


class Work:
    """What a workload does, step by step. Each step waits until it is done, or was refused for want of a right."""

    def __init__(self, containers: Containers) -> None:
        self.containers = containers
        self.admin: ApiClient = containers.admin

    @property
    def refused(self) -> bool:
        """Whether a process was told that it may not do something."""
        return " cannot " in self.containers.log and "API group" in self.containers.log

    def steps(self) -> dict[str, Step]:
        """Each begins something, if need be, and says whether it is done."""
        raise NotImplementedError

    def first_broken(self, *, leave_out: Collection[str] = ()) -> str | None:
        """The first step that was refused; None when everything was done."""
        for name, step in self.steps().items():
            if name in leave_out:
                continue
            try:
                wait_for(functools.partial(self._done_or_refused, step), name, 60)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.containers.log}") from None
            if self.refused:
                return name
        return None

    def _done_or_refused(self, step: Step) -> bool:
        return step() or self.refused

    def events(self, claim: str) -> list[JSON]:
        """Those about a claim."""
        return [one for one in self.admin.list(EVENTS).items if one["involvedObject"]["name"] == claim]

    def allocated(self, name: str, device: str, node: str, **config: Any) -> JSON:
        """A claim that has a device."""
        return self.allocate(self.claim(name, **config), device, node)

    def claim(self, name: str, annotations: Mapping[str, str] | None = None, **config: Any) -> JSON:
        """A claim for a device."""
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
        value = {
            "apiVersion": CLAIMS.api_version,
            "kind": "ResourceClaim",
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": {"devices": {"requests": requests, **config}},
        }
        return self.admin.create(CLAIMS, value, "default")

    def allocate(self, claim: JSON, device: str, node: str, **result: Any) -> JSON:
        """Give a claim a device, with more in the result than which it is."""
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        result = {"request": "gpu", "driver": DRIVER_NAME, "pool": node, "device": device, **result}
        devices = {"results": [result], "config": allocated_config(claim)}
        allocation = {"devices": devices, "nodeSelector": {"nodeSelectorTerms": terms}}
        return self.admin.update(CLAIMS, {**claim, "status": {"allocation": allocation}}, subresource="status")


def allocated_config(claim: JSON) -> list[JSON]:
    """As the scheduler copies it."""
    return [{"source": "FromClaim", **one} for one in claim["spec"]["devices"].get("config") or []]


class NodeWork(Work):
    """The DaemonSet's pod: both containers on one node."""

    def __init__(self, containers: Containers) -> None:
        super().__init__(containers)
        serve_node_features(self.admin)
        for name in ("registry", "plugins", "cdi"):
            (containers.folder / name).mkdir()
        for name in ("controller", "kubeletplugin"):
            containers.start("DaemonSet", name)
        self._edited = False
        self._claims: dict[str, JSON] = {}

    def steps(self) -> dict[str, Step]:
        return {
            "publishes": self.publishes,
            "removes the start-up taint": self.removes_the_startup_taint,
            "labels the node": self.labels_the_node,
            "makes a deleted slice anew": self.makes_a_deleted_slice_anew,
            "undoes an edit": self.undoes_an_edit,
            "lets a pod be bound": self.lets_a_pod_be_bound,
            "withdraws slices": self.withdraws_slices,
            "prepares a claim": self.prepares_a_claim,
            "writes the status": self.writes_the_status,
            "reads the class of a machine": self.reads_the_class_of_a_machine,
            "tells of a mistake": self.tells_of_a_mistake,
            "counts repeated mistakes": self.counts_repeated_mistakes,
        }

    def _slices(self) -> dict[str, JSON]:
        return {one["metadata"]["name"]: one for one in self.admin.list(SLICES).items}

    def publishes(self) -> bool:
        found = self._slices()
        self._published = found
        return bool(found) and len(found) == next(iter(found.values()))["spec"]["pool"]["resourceSliceCount"]

    def removes_the_startup_taint(self) -> bool:
        return not self.admin.get(NODES, NODE).get("spec", {}).get("taints")

    def labels_the_node(self) -> bool:
        return bool(self.admin.list(NODE_FEATURES).items)

    def makes_a_deleted_slice_anew(self) -> bool:
        name = min(self._published)
        if self._slices().get(name, {}) == self._published[name]:
            self.admin.delete(SLICES, name)
        now = self._slices()
        return name in now and now[name]["metadata"]["uid"] != self._published[name]["metadata"]["uid"]

    def undoes_an_edit(self) -> bool:
        one = self._slices()[max(self._published)]
        if not self._edited:
            del one["spec"]["devices"][0]
            try:
                self.admin.update(SLICES, one)
            except ConflictError:
                return False
            self._edited = True
            return False
        return bool(one["spec"]["devices"] == self._published[max(self._published)]["spec"]["devices"])

    def lets_a_pod_be_bound(self) -> bool:
        name = "waits"
        if name not in self._claims:
            waits = {"bindingConditions": [AVAILABLE], "bindingFailureConditions": [UNAVAILABLE]}
            self._claims[name] = self.allocate(self.claim(name), "gpu-2", NODE, **waits)
        return bool(self.admin.get(CLAIMS, name, "default")["status"].get("devices"))

    def withdraws_slices(self) -> bool:
        if self.containers.policy.read_text(encoding="utf-8") != SOME_AWAY:
            self.containers.policy.write_text(SOME_AWAY, encoding="utf-8")
        return 0 < len(self._slices()) < len(self._published)

    def prepares_a_claim(self) -> bool:
        return not self._prepare("good", "gpu-0").error

    def reads_the_class_of_a_machine(self) -> bool:
        """The configuration is refused afterwards, because this node cannot give its GPUs to virtual machines."""
        return "GpuConfg" in self._prepare("machine", "gpu-vfio-3", annotations=MACHINE, config=[WRONG]).error

    def writes_the_status(self) -> bool:
        devices = self.admin.get(CLAIMS, "good", "default")["status"].get("devices") or [{}]
        return [one["status"] for one in devices[0].get("conditions", ())] == ["True"]

    def tells_of_a_mistake(self) -> bool:
        if "wrong" not in self._claims:
            assert self._prepare("wrong", "gpu-1", config=[WRONG]).error
        return bool(self.events("wrong"))

    def counts_repeated_mistakes(self) -> bool:
        self._prepare("wrong", "gpu-1", config=[WRONG])
        self.containers.terminate()  # what waits to be written is written then
        return bool(self.events("wrong")[0]["count"] > 1)

    def _prepare(self, name: str, device: str, **config: Any) -> Any:
        """What the plugin answers kubelet."""
        if name not in self._claims:
            self._claims[name] = self.allocated(name, device, NODE, **config)
        uid = self._claims[name]["metadata"]["uid"]
        request = dra_v1_pb2.NodePrepareResourcesRequest(
            claims=[dra_v1_pb2.Claim(namespace="default", name=name, uid=uid)]
        )
        folder = self.containers.folder / "plugins" / DRIVER_NAME
        (socket,) = wait_for(lambda: list(folder.glob("dra*.sock")), "the plugin's socket")
        with grpc.insecure_channel(f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            method = channel.unary_unary(
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
                request_serializer=lambda one: one.SerializeToString(),
                response_deserializer=dra_v1_pb2.NodePrepareResourcesResponse.FromString,
            )
            return method(request, timeout=30, wait_for_ready=True).claims[uid]


class ClusterWork(Work):
    """The Deployment's pod."""

    def __init__(self, containers: Containers) -> None:
        super().__init__(containers)
        (lease,) = (one for one in render(VALUES, 36) if one["kind"] == "Lease")
        self.admin.create(LEASES, lease, NAMESPACE)
        containers.start("Deployment", "cluster-controller")
        self._claims: dict[str, JSON] = {}

    def steps(self) -> dict[str, Step]:
        return {
            "is elected": self.is_elected,
            "stays elected": self.stays_elected,
            "removes a slice without a node": self.removes_a_slice_without_a_node,
            "tells of a claim without a node": self.tells_of_a_claim_without_a_node,
            "tells of another": self.tells_of_another,
            "counts what happens again": self.counts_what_happens_again,
        }

    def _lease(self) -> JSON:
        (lease,) = self.admin.list(LEASES, namespace=NAMESPACE).items
        return lease.get("spec") or {}

    def is_elected(self) -> bool:
        self._first = self._lease()
        return bool(self._first.get("holderIdentity"))

    def stays_elected(self) -> bool:
        return bool(self._lease()["renewTime"] > self._first["renewTime"])

    def removes_a_slice_without_a_node(self) -> bool:
        if "slice" not in self._claims:
            value = {
                "apiVersion": SLICES.api_version,
                "kind": "ResourceSlice",
                "metadata": {"name": "left"},
                "spec": {
                    "driver": DRIVER_NAME,
                    "nodeName": "gone",
                    "pool": {"name": "gone", "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "gpu-0"}],
                },
            }
            self._claims["slice"] = self.admin.create(SLICES, value)
        return not self.admin.list(SLICES).items

    def tells_of_a_claim_without_a_node(self) -> bool:
        return self._told("one")

    def tells_of_another(self) -> bool:
        if "two" not in self._claims:
            one = self.admin.get(CLAIMS, "one", "default")
            self.admin.update(CLAIMS, {**one, "status": {}}, subresource="status")
        return self._told("two")

    def counts_what_happens_again(self) -> bool:
        if "three" not in self._claims:
            self.allocate(self.admin.get(CLAIMS, "one", "default"), "gpu-0", "gone")
        if not self._told("three"):
            return False
        self.containers.terminate()
        return bool(self.events("one")[0]["count"] > 1)

    def _told(self, name: str) -> bool:
        if name not in self._claims:
            self._claims[name] = self.allocated(name, "gpu-0", "gone")
        return bool(self.events(name))


COMPONENTS: dict[str, type[Work]] = {"kubeletplugin": NodeWork, "-controller": ClusterWork}
DRIVER_STATUS = "associated-node:update resourceclaims/driver"
"""The only right that no request has as its verb: the API server asks for it when a claim's status is updated."""
LACKING = (
    *(("kubeletplugin", right) for right in (DRIVER_STATUS, "delete resourceslices", "patch nodes", "get roles")),
    ("-controller", "watch nodes"),
    ("-controller", "update leases"),
)
"""Rights whose lack ends work of each kind: lists with watches, single writes, and work that is done once."""


UNASKED: JSON = {"policy": {"gpus": []}}


@pytest.mark.parametrize(
    ("component", "values", "undone"),
    [
        ("kubeletplugin", {}, ()),
        ("-controller", {}, ()),
        ("kubeletplugin", UNASKED, ("lets a pod be bound", "reads the class of a machine")),
        (
            "kubeletplugin",
            {**UNASKED, "kubeletPlugin": {"claimStatus": False, "startupTaint": ""}},
            (
                "lets a pod be bound",
                "reads the class of a machine",
                "writes the status",
                "removes the start-up taint",
            ),
        ),
        ("-controller", {"controller": {"leaderElection": {"enabled": False}}}, ("is elected", "stays elected")),
    ],
)
def test_the_rights_are_enough_and_each_of_them_is_used(component: str, values: JSON, undone: tuple[str, ...]) -> None:
    """Those that come with the values: what is not done needs none."""
    with short_folder() as folder:
        objects = render_in(folder, merged(VALUES, values), 36)
        assert (rules(objects) < PROVEN) == bool(undone)
        (account,) = (
            one["metadata"]["name"]
            for one in objects
            if one["kind"] == "ServiceAccount" and one["metadata"]["name"].endswith(component)
        )
        with installed(objects, folder) as containers:
            uses = {
                str(right): containers.faults.add(right.uses(f"system:serviceaccount:{NAMESPACE}:{account}"))
                for right in sorted(rights(objects, component), key=lambda right: not right.namespace)
                if not str(right).endswith(DRIVER_STATUS)
            }
            work = COMPONENTS[component](containers)
            broken = work.first_broken(leave_out=undone)
            assert broken is None, containers.log
            assert [right for right, counted in uses.items() if not counted.hits] == []


@pytest.mark.parametrize(("component", "name"), LACKING)
def test_process_that_lacks_a_right_names_it_and_does_not_do_the_work(component: str, name: str) -> None:
    with short_folder() as folder:
        objects = render_in(folder, VALUES, 36)
        (right,) = (right for right in rights(objects, component) if str(right).endswith(f": {name}"))
        with installed(without(objects, right), folder) as containers:
            work = COMPONENTS[component](containers)
            assert work.first_broken() is not None
            assert re.search(rf'cannot {right.verb} resource \\?"{right.resource}\\?"', containers.log), containers.log


@pytest.mark.parametrize(
    ("force", "mounted", "code", "left"),
    [(False, False, 1, True), (True, False, 0, False), (True, True, 0, False)],
    ids=["in-use", "forced", "forced-in-a-pod"],
)
def test_the_last_step_before_an_uninstall_leaves_nothing_on_the_node(
    force: bool, mounted: bool, code: int, left: bool
) -> None:
    """Unless a pod may still use what is there, and nobody said to take it away."""
    if mounted and not may_mount():
        pytest.skip("this process may not mount")
    with short_folder() as folder:
        with installed(render_in(folder, VALUES, 36), folder) as containers:
            work = NodeWork(containers)
            wait_for(lambda: work.publishes() and work.prepares_a_claim(), "a claim that is prepared", 60)
            containers.terminate()
            cleanup = {"cleanup": {"enabled": True, "force": force}}
            containers.upgrade(render_in(folder, merged(VALUES, cleanup), 36))
            assert containers.start("DaemonSet", "cleanup", mounted=mounted).wait(60) == code, containers.log
        files = [path for name in ("registry", "plugins", "cdi") for path in (folder / name).rglob("*")]
        assert bool(files) == left, files


@pytest.mark.parametrize(
    ("name", "minor"), [*((name, NEWEST) for name in RENDERED), *(("everything", minor) for minor in MINORS[:-1])]
)
def test_no_values_give_more_rights_than_are_proven_to_be_needed(name: str, minor: int) -> None:
    """Those for ComputeDomains are asked for one by one in test_computedomain_rights.py, and those of people who run
    dra-dryrun in tests/dryrun/test_rights.py.
    """
    found = rules(render(RENDERED[name], minor))
    assert found <= PROVEN | rules(domain_objects()) | rules(render({"dryRun": {"clusterRole": True}}))
    assert found


def test_every_account_with_rights_is_one_whose_rights_are_proven() -> None:
    for name in RENDERED:
        objects = render(RENDERED[name], apis=OPENSHIFT)
        roles = {one["metadata"]["name"] for one in objects if one["kind"] in ("Role", "ClusterRole")}
        roles = {name for name in roles if "-dry-run" not in name}  # an administrator binds it to people
        bindings = [one for one in objects if one["kind"] in ("RoleBinding", "ClusterRoleBinding")]
        assert {one["roleRef"]["name"] for one in bindings} == {*roles, "system:openshift:scc:privileged"}
        subjects = {subject["name"].rpartition("-")[2] for one in bindings for subject in one["subjects"]}
        assert subjects <= {"kubeletplugin", "controller", DAEMONS.rpartition("-")[2]}


def test_the_check_of_a_node_finds_the_rights_to_be_there_and_what_is_missing() -> None:
    with short_folder() as folder:
        objects = render_in(folder, VALUES, 36)
        for name in ("registry", "plugins", "cdi"):
            (folder / name).mkdir()
        lacking = without(objects, next(right for right in rights(objects, "kubeletplugin") if right.verb == "delete"))
        for rendering, line in (
            (objects, r"^PASS +permissions: "),
            (lacking, r"^FAIL +permissions: .*\bdelete resourceslices$"),
        ):
            with installed(rendering, folder) as containers:
                containers.start("DaemonSet", "check").wait(60)
                assert re.search(line, containers.log, re.MULTILINE), containers.log


def test_pods_can_wait_for_the_plugin_also_where_it_writes_no_status() -> None:
    assert rules(render(merged(VALUES, {"kubeletPlugin": {"claimStatus": False}}), 36)) == PROVEN


@pytest.mark.parametrize(
    ("gpus", "sees"),
    [([], False), ([{"bindingConditions": False}], False), ([{}, {"bindingConditions": True}], True)],
)
def test_claims_are_listed_only_where_the_policy_wants_pods_to_wait(gpus: list[JSON], sees: bool) -> None:
    found = rights(render({"policy": {"gpus": gpus}}), "kubeletplugin")
    assert {one.verb for one in found if one.resource == "resourceclaims"} == {
        "get",
        *(("list", "watch") if sees else ()),
    }


def test_no_rule_says_everything() -> None:
    for one in render(VALUES):
        for rule in one.get("rules", ()) if one["kind"] in ("Role", "ClusterRole") else ():
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            assert not {"deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_roles_do_not_include_secrets_or_pods() -> None:
    resources = {
        resource
        for one in render(VALUES)
        if one["kind"] in ("Role", "ClusterRole")
        for rule in one["rules"]
        for resource in rule["resources"]
    }
    assert not {one.partition("/")[0] for one in resources} & {"secrets", "pods", "configmaps", "serviceaccounts"}


def test_the_webhook_has_no_rights() -> None:
    objects = render({"webhook": {"enabled": True}})
    account = find(objects, "ServiceAccount", "webhook")["metadata"]["name"]
    bound = [subject["name"] for one in objects if "subjects" in one for subject in one["subjects"]]
    assert bound
    assert account not in bound
