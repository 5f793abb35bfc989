# SPDX-License-Identifier: Apache-2.0
"""A broken-in node attacks objects of others, with the tokens of the driver's pod, of an IMEX daemon and of kubelet.

Each attack is a loop of requests. The embedded API server does not enforce policies: so cel-python evaluates the
policies on each request. With KUBEBUILDER_ASSETS, a real API server gets the same requests, with such tokens.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import pytest
import urllib3

from controller.cluster.facts import slice_facts
from controller.node.labels import NODE_NAME_LABEL
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.domains.objects import CLIQUES, LONGEST, decode_clique
from dra_driver.kube.api import ApiClient, Kind, NotFoundError, RequestOptions, load_credentials
from dra_driver.kube.kinds import NODE_FEATURES, NODES
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.apiserver.users import NODE_NAME
from tests.charts.domains import DAEMON, DAEMONS, ONE, REAL, ROW, TWO, clique
from tests.charts.policies import ACCOUNT, KINDS, delete, denied, installed, policy, verdict
from tests.charts.rendering import JSON, NAMESPACE, merged, render
from tests.support.apiserver import CLAIMS, SLICES, api_server, connect, serve_node_features
from tests.support.waiting import wait_for

TAINT = "gpu.nvidia.com/starting"
POD_NAME = "authentication.kubernetes.io/pod-name"
DRIVER = "release-dra-driver-gpu-kubeletplugin"
ROUNDS = 3
"""How often each request of an attack is sent, with other names and values."""


@functools.cache
def rendered() -> list[JSON]:
    """The objects with all policies about nodes and ComputeDomains."""
    return render(
        {
            "kubeletPlugin": {"startupTaint": TAINT},
            "nodeLabels": "node-feature",
            "resources": {"computeDomains": {"imex": {"tls": {"issuerName": "ca"}}}},
        }
    )


@dataclass(frozen=True)
class Request:
    """A request: a creation of `value`, an update of `old` to `value`, or a deletion of `old`."""

    value: JSON | None
    old: JSON | None = None

    @property
    def operation(self) -> str:
        """The name of the operation for a policy."""
        return "CREATE" if self.old is None else "DELETE" if self.value is None else "UPDATE"


@dataclass(frozen=True)
class Attack:
    """The requests of a round, about one kind of object, and the policy that has to refuse them. `patches` if the user
    may not replace objects of this kind, but patch them.
    """

    user: str
    policy: str
    kind: Kind
    requests: Callable[[int], list[Request]]
    namespace: str = ""
    subresource: str = ""
    patches: bool = False


def slice_of(node: str, name: str = "", pool: str = "", driver: str = DRIVER_NAME, **metadata: Any) -> JSON:
    """A slice as the driver of a node publishes it."""
    return {
        "apiVersion": SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"00000-{driver}-{node}", **metadata},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


def with_spec(value: JSON, **spec: Any) -> JSON:
    """The object with other fields of its spec."""
    return merged(value, {"spec": spec})


def with_metadata(value: JSON, **metadata: Any) -> JSON:
    """The object with other metadata."""
    return merged(value, {"metadata": metadata})


OWN, FOREIGN = slice_of("a"), slice_of("b")


def slices_of_others(number: int) -> list[Request]:
    """Publish for others, take their names, and change or delete their slices."""
    other = slice_of("a", name=f"{number:05}-own-a")
    return [
        Request(slice_of(f"b-{number}")),
        Request(slice_of("b", name=f"{number:05}-{DRIVER_NAME}-a")),
        Request(slice_of("a", name=f"{number:05}-{DRIVER_NAME}-b")),
        Request(slice_of("a", name=f"{number:05}-{DRIVER_NAME}-b-{DRIVER_NAME}-a")),
        Request(slice_of("a", pool=f"b-{number}")),
        Request(slice_of("a", driver=f"other-{number}.example.com")),
        Request(slice_of("b", driver=DOMAIN_DRIVER)),
        Request({**other, "spec": {**{key: other["spec"][key] for key in ("driver", "pool")}, "allNodes": True}}),
        Request(with_spec(FOREIGN, devices=[]), FOREIGN),
        Request(with_spec(FOREIGN, devices=[{"name": f"gpu-{number}"}]), FOREIGN),
        Request(with_metadata(FOREIGN, labels={"a": str(number)}), FOREIGN),
        Request(with_spec(FOREIGN, nodeName="a"), FOREIGN),
        Request(with_spec(OWN, nodeName="b"), OWN),
        Request(None, FOREIGN),
    ]


def owner(kind: str, name: str, **more: Any) -> JSON:
    """A reference to an owner."""
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": "1", **more}


def held_slices(number: int) -> list[Request]:
    """Slices that nobody can delete, or that hold up the deletion of others."""
    owners = (
        owner("Namespace", f"team-{number}"),
        owner("Node", "b"),
        owner("Node", f"a-{number}"),
        owner("Node", "a", blockOwnerDeletion=True),
        owner("Pod", "a"),
    )
    metadata: list[JSON] = [{"finalizers": [f"a.b/{number}"]}, {"finalizers": ["foregroundDeletion"]}]
    metadata += [{"ownerReferences": [reference]} for reference in owners]
    metadata += [{"ownerReferences": [owner("Node", "a"), owners[number % len(owners)]]}]
    name = f"{number:05}-held-{DRIVER_NAME}-a"
    return [
        *(Request(with_metadata(OWN, **fields), OWN) for fields in metadata),
        *(Request(slice_of("a", name=name, **fields)) for fields in metadata),
    ]


def device(pool: str, **fields: Any) -> JSON:
    """The status of a device of a claim."""
    return {"driver": DRIVER_NAME, "pool": pool, "device": "gpu-0", **fields}


CLAIM: JSON = {
    "apiVersion": CLAIMS.api_version,
    "kind": "ResourceClaim",
    "metadata": {"name": "claim", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    "status": {
        "allocation": {"devices": {"results": [{"request": "gpu", **device("a")}]}},
        "reservedFor": [{"resource": "pods", "name": "pod", "uid": "1"}],
        "devices": [device("a")],
    },
}


def claims_of_others(number: int) -> list[Request]:
    """Release and take devices, and report about devices of other nodes and drivers."""
    status = CLAIM["status"]
    other = {"devices": {"results": [{"request": "gpu", **device("b")}]}}
    changed: list[JSON] = [
        {**status, "reservedFor": []},
        {**status, "allocation": other},
        {**status, "devices": [device("a"), device("b", data={"number": number})]},
        {**status, "devices": [device("a"), {**device("a"), "driver": f"other-{number}.example.com"}]},
        {key: status[key] for key in ("reservedFor", "devices")},
    ]
    return [Request({**CLAIM, "status": one}, CLAIM) for one in changed]


def metadata_of_claims(number: int) -> list[Request]:
    """Hold up claims, and change what others read in their metadata."""
    fields: list[JSON] = [
        {"labels": {"a": str(number)}},
        {"annotations": {"a": str(number)}},
        {"finalizers": [f"a.b/{number}"]},
        {"ownerReferences": [owner("Pod", f"pod-{number}")]},
    ]
    return [Request(with_metadata(CLAIM, **one), CLAIM) for one in fields]


def taints(*keys: str) -> list[JSON]:
    """Taints of a node with these keys."""
    return [{"key": key, "effect": "NoSchedule"} for key in keys]


def node(name: str, *keys: str, **metadata: Any) -> JSON:
    """A node with taints."""
    spec = {"taints": taints(*keys)} if keys else {}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}, "spec": spec}


NODE_A, NODE_B = (node(name, TAINT, "other") for name in "ab")


def nodes(number: int) -> list[Request]:
    """Remove taints of others, make the own node special, and change other nodes."""
    return [
        Request(with_spec(NODE_B, taints=taints("other")), NODE_B),
        Request(with_spec(NODE_A, taints=taints(TAINT)), NODE_A),
        Request(with_spec(NODE_A, taints=[]), NODE_A),
        Request(with_spec(NODE_A, taints=taints(TAINT, "other", f"more-{number}")), NODE_A),
        Request(with_spec(NODE_A, unschedulable=True), NODE_A),
        Request(with_spec(NODE_A, providerID=f"x://{number}"), NODE_A),
        *(
            Request(with_metadata(with_spec(NODE_A, taints=taints("other")), **fields), NODE_A)
            for fields in (
                {"labels": {"node-role.kubernetes.io/control-plane": str(number)}},
                {"annotations": {"a": str(number)}},
                {"finalizers": [f"a.b/{number}"]},
            )
        ),
    ]


def feature(name: str, target: str, label: str, **metadata: Any) -> JSON:
    """A request for a label of the node `target`."""
    return {
        "apiVersion": NODE_FEATURES.api_version,
        "kind": "NodeFeature",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {NODE_NAME_LABEL: target}, **metadata},
        "spec": {"labels": {label: "1"}},
    }


def features(number: int) -> list[Request]:
    """Request labels of other nodes, and labels of other owners."""
    mine, good = "nvidia.com-a", f"nvidia.com/gpu-{number}"
    return [
        Request(feature("nvidia.com-b", "b", good)),
        Request(feature(mine, "b", good)),
        Request(feature(f"other-{number}", "a", good)),
        Request(feature(mine, "a", f"node-role.kubernetes.io/x{number}")),
        Request(feature(mine, "a", f"nvidia.com.example/x{number}")),
        Request(feature(mine, "a", good, finalizers=[f"a.b/{number}"])),
    ]


ROWS = [{**ROW, "nodeName": name, "index": index} for index, name in enumerate("ab")]
MEMBERS = clique(*ROWS)
ELSEWHERE = clique(*ROWS, uid=TWO)


def row(position: int, **fields: Any) -> JSON:
    """The members with other fields in one row."""
    return {**MEMBERS, "daemons": [{**one, **fields} if at == position else one for at, one in enumerate(ROWS)]}


def rows(number: int) -> list[Request]:
    """Change what other daemons report, who is a member, and where members are."""
    changed = [
        row(1, message=str(number)),
        row(1, status="NotReady"),
        row(1, nodeName="a"),
        row(0, index=2 + number),
        row(0, ipAddress=f"10.6.6.{number}"),
        row(0, cliqueID=f"c.{number}"),
        row(0, nodeName=f"c-{number}"),
        {**MEMBERS, "daemons": ROWS[:1]},
        {**MEMBERS, "daemons": ROWS[1:]},
        {**MEMBERS, "daemons": ROWS[::-1]},
        {**MEMBERS, "daemons": [*ROWS, {**ROW, "nodeName": f"c-{number}", "index": 2}]},
        with_metadata(MEMBERS, labels={DOMAIN_LABEL: TWO}),
        with_metadata(MEMBERS, finalizers=[f"a.b/{number}"]),
        with_metadata(MEMBERS, annotations={"a": str(number)}),
    ]
    reported = {**ELSEWHERE, "daemons": [{**ROWS[0], "message": str(number)}, ROWS[1]]}
    return [*(Request(one, MEMBERS) for one in changed), Request(reported, ELSEWHERE), Request(None, MEMBERS)]


def labelled(name: str, domain: str = "") -> JSON:
    """A node that belongs to a domain."""
    return node(name, **({"labels": {DOMAIN_LABEL: domain}} if domain else {}))


MEMBER, OTHER = labelled("a", ONE), labelled("b")


def domain_labels(number: int) -> list[Request]:
    """Put the own node into a domain, or take it out of one."""
    other = f"{TWO[:-2]}{10 + number}"
    return [
        Request(labelled("a", other), MEMBER),
        Request(with_metadata(MEMBER, labels={DOMAIN_LABEL: ""}), MEMBER),
        Request({**MEMBER, "metadata": {"name": "a"}}, MEMBER),
        Request(labelled(f"new-{number}", other)),
    ]


ATTACKS: Mapping[str, Attack] = {
    "slices of others": Attack("driver", "resourceslices", SLICES, slices_of_others),
    "slices that cannot be deleted": Attack("driver", "resourceslices", SLICES, held_slices),
    "status of claims": Attack("driver", "resourceclaims", CLAIMS, claims_of_others, "default", "status"),
    "metadata of claims": Attack("driver", "resourceclaims", CLAIMS, metadata_of_claims, "default", "status"),
    "nodes": Attack("driver", "nodes", NODES, nodes, patches=True),
    "node features": Attack("driver", "nodefeatures", NODE_FEATURES, features, NAMESPACE),
    "rows of others": Attack("daemon", "cliques", CLIQUES, rows, NAMESPACE, patches=True),
    "the label of a domain": Attack("kubelet", "kubelets", NODES, domain_labels),
}
USERS: Mapping[str, JSON] = {
    "driver": {"username": f"{ACCOUNT}{DRIVER}", "extra": {NODE_NAME: ["a"]}},
    "daemon": {"username": f"{ACCOUNT}{DAEMONS}", "extra": {NODE_NAME: ["a"], POD_NAME: [DAEMON]}},
    "kubelet": {"username": "system:node:a", "groups": ["system:nodes", "system:authenticated"]},
}


@pytest.mark.parametrize("what", ATTACKS)
def test_policies_refuse_each_request_of_an_attack(what: str) -> None:
    attack = ATTACKS[what]
    spec, user = policy(rendered(), attack.policy), USERS[attack.user]
    for number in range(ROUNDS):
        for request in attack.requests(number):
            found = verdict(spec, request.operation, request.value, request.old, user, attack.namespace)
            assert found is not None, request


def test_field_managers_do_not_fill_an_object() -> None:
    spec, user = policy(rendered(), "cliques"), USERS["daemon"]
    for number in range(21, 81, 5):
        managers = [{"manager": str(one), "operation": "Apply"} for one in range(number)]
        value = with_metadata(row(0, message=str(number)), managedFields=managers)
        assert "entries of managedFields" in str(verdict(spec, "UPDATE", value, MEMBERS, user))


HOSTS = (
    "10.0.0.1\n10.6.6.6 victim",
    "::1%eth0\n10.6.6.6 victim",
    "fe80::1%a b",
    "10.0.0.1 victim",
    "victim",
    "10.0.0.1#",
    "\0",
    "1" * 5000,
    "10.0.0.٣",
)


def test_no_address_of_a_row_is_more_than_an_address() -> None:
    for number in range(50):
        for text in HOSTS:
            one = {**ROW, "ipAddress": f"{text}{number}" if number else text}
            (member,) = decode_clique({"metadata": {"name": f"{ONE}.c.1"}, "daemons": [one]}).members
            assert member.address == ""


CLIQUE_NAMES = ("../x.", "a/b", "C.", "c.1 ", "c" * 64, "é.", "c.1\n", "", "%2e%2e.", "c..")


def test_no_published_clique_becomes_the_name_of_another_object() -> None:
    for number in range(50):
        for text in CLIQUE_NAMES:
            attributes = {"gpu.nvidia.com/fabricClique": {"string": f"{text}{number or ''}/"}}
            devices = [{"name": "channel-0", "attributes": attributes}]
            value = {
                "metadata": {"name": "s", "uid": "u", "resourceVersion": "7"},
                "spec": {"nodeName": "a", "devices": devices},
            }
            found = slice_facts(value).channel
            assert found is None or not found.settled


# Against a real API server


class Impersonating:
    """Requests of another user, which the administrator of a real API server sends for it."""

    def __init__(self, kubeconfig: Path, user: str, group: str) -> None:
        credentials = load_credentials(str(kubeconfig))
        self.server, self.identity = credentials.server, user
        acting = {"Impersonate-User": user, "Impersonate-Group": group}
        self._headers = {"Authorization": f"Bearer {credentials.token()}", **acting}
        self._pool = urllib3.PoolManager(cert_reqs="CERT_NONE")

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> urllib3.BaseHTTPResponse:
        """Send one request."""
        form = options.get("content_type")
        headers = {**self._headers, **({"Content-Type": form} if form else {})}
        url, body = f"{self.server}{path}", options.get("body")
        return self._pool.request(method, url, body=body, headers=headers, retries=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ApiClient]]:
    """A real API server with the chart's policies: clients of the users, and `admin`."""
    folder = tmp_path_factory.mktemp("node")
    pods = {"driver": ("a", DRIVER), DAEMON: ("a", DAEMONS), "of-b": ("b", DRIVER)}
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    with api_server(folder, rbac=True) as kubeconfig, connect(kubeconfig) as admin:
        serve_node_features(admin)
        with installed(admin, kubeconfig, folder, rendered(), pods) as clients:
            for kind in (CLIQUES, NODE_FEATURES):
                wait_for(lambda kind=kind: not denied(lambda: admin.list(kind)), "a kind")  # type: ignore[misc]
            binding = {
                "apiVersion": KINDS["ClusterRoleBinding"].api_version,
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "kubelets"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
            }
            admin.create(KINDS["ClusterRoleBinding"], binding)
            kubelet = ApiClient(Impersonating(kubeconfig, "system:node:a", "system:nodes"))
            yield {"admin": admin, "driver": clients["driver"], "daemon": clients[DAEMON], "kubelet": kubelet}


def stored(admin: ApiClient, attack: Attack, value: JSON) -> JSON:
    """The object in the API server, which is made like `value` if it does not exist."""
    name = value["metadata"]["name"]
    try:
        return admin.get(attack.kind, name, attack.namespace)
    except NotFoundError:
        made = admin.create(attack.kind, {key: one for key, one in value.items() if key != "status"}, attack.namespace)
    if status := value.get("status"):
        made = admin.update(attack.kind, {**made, "status": status}, subresource="status")
    return made


def facts(value: JSON) -> JSON:
    """The object without what the server counts."""
    metadata = {k: v for k, v in value["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    return {**value, "metadata": metadata}


@REAL
@pytest.mark.parametrize("what", ATTACKS)
def test_a_real_api_server_refuses_each_request_of_an_attack(what: str, world: dict[str, ApiClient]) -> None:
    attack, admin = ATTACKS[what], world["admin"]
    user = world[attack.user]

    def send(request: Request) -> str:
        if request.old is None:
            assert request.value is not None
            value = request.value
            refusal = denied(lambda: user.create(attack.kind, value, attack.namespace))
            if not refusal:
                delete(admin, attack.kind, value["metadata"]["name"], attack.namespace)
            return refusal
        before = stored(admin, attack, request.old)
        name = before["metadata"]["name"]
        if request.value is None:
            return denied(lambda: user.delete(attack.kind, name, attack.namespace))
        changed = {**before, **{key: request.value[key] for key in request.value if key not in ("metadata", "kind")}}
        changed["metadata"] = {**before["metadata"], **request.value["metadata"]}
        if "labels" in request.old["metadata"] and "labels" not in request.value["metadata"]:
            changed["metadata"].pop("labels")
        if attack.patches:
            refusal = denied(lambda: user.patch(attack.kind, name, changed, namespace=attack.namespace))
        else:
            refusal = denied(lambda: user.update(attack.kind, changed, subresource=attack.subresource))
        return refusal or str(facts(admin.get(attack.kind, name, attack.namespace)) == facts(before) or "")

    first = attack.requests(0)[0]
    if first.old is not None:
        stored(admin, attack, first.old)
    policies = "ValidatingAdmissionPolicy" if attack.kind != CLAIMS else ""  # Kubernetes 1.36 has rules of its own
    wait_for(lambda: (found := send(first)) and policies in found, "the policy to be in force")
    for request in attack.requests(0):
        if request.old is not None:
            with suppress(NotFoundError):
                admin.delete(attack.kind, request.old["metadata"]["name"], attack.namespace)
    for number in range(ROUNDS):
        for request in attack.requests(number):
            assert send(request), json.dumps(request.value)[:600]


@REAL
def test_a_real_api_server_bounds_the_texts_of_a_row(world: dict[str, ApiClient]) -> None:
    attack = ATTACKS["rows of others"]
    stored(world["admin"], attack, MEMBERS)
    name = MEMBERS["metadata"]["name"]
    for number in range(10):
        for field, limit in (("state", "state"), ("domainState", "domain_state"), ("message", "message")):
            text = "x" * (LONGEST[limit] + 1 + 10_000 * number)
            operation = {"op": "replace", "path": f"/daemons/0/{field}", "value": text}
            refusal = denied(
                lambda one=operation: world["daemon"].json_patch(CLIQUES, name, [one], namespace=NAMESPACE)  # type: ignore[misc]
            )
            assert "Too long" in refusal
