# SPDX-License-Identifier: Apache-2.0
"""What the driver's processes may do for ComputeDomains: rights verb by verb, and policies.

An API server is asked for the rights. With KUBEBUILDER_ASSETS, it is a real one, which also enforces the policies.
Without it, cel-python evaluates them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from dra_driver.domains.names import DAEMON_CLASS, DOMAIN_LABEL
from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, LONGEST, MOST_SLOTS
from dra_driver.domains.template import daemon_claim
from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.kinds import ACCESS_REVIEWS, NODES, claims_of, templates_of
from dra_driver.kube.resource.codec import V1, encode_claim_spec
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.apiserver.users import NODE_NAME
from tests.support.waiting import wait_for

from .domains import DAEMON, DAEMONS, FOREIGN, ONE, REAL, ROW, TWO, clique, domain_objects, domains
from .policies import ACCOUNT, delete, denied, policy, verdict
from .rendering import JSON, NAMESPACE, find, merged, render

# Rights

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "associated-node:update")
READ = "get list watch"
OURS, CLAIMS = "resource.nvidia.com", "resource.k8s.io"
NAMESPACED = (
    *((OURS, name) for name in ("computedomains", "computedomains/status", "computedomaincliques")),
    *((CLAIMS, name) for name in ("resourceclaims", "resourceclaims/status", "resourceclaims/driver")),
    (CLAIMS, "resourceclaimtemplates"),
    *(("", name) for name in ("pods", "pods/exec", "secrets", "configmaps", "services", "events")),
    *(("", name) for name in ("serviceaccounts", "serviceaccounts/token")),
    *(("apps", name) for name in ("daemonsets", "deployments")),
    ("networking.k8s.io", "networkpolicies"),
    ("cert-manager.io", "certificates"),
    ("coordination.k8s.io", "leases"),
    ("rbac.authorization.k8s.io", "roles"),
)
CLUSTER = (
    *(("", name) for name in ("nodes", "nodes/status", "namespaces")),
    *((CLAIMS, name) for name in ("resourceslices", "deviceclasses")),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
)
OWN, EVERYWHERE = (NAMESPACE,), (NAMESPACE, "default", "")
MAY: Mapping[str, Mapping[tuple[tuple[str, ...], str], str]] = {
    DAEMON: {(OWN, "computedomaincliques"): "list watch patch"},
    "driver": {
        (EVERYWHERE, "computedomains"): "list",
        (EVERYWHERE, "resourceclaims"): "get",
        (EVERYWHERE, "resourceclaims/status"): "update",
        (EVERYWHERE, "events"): "create patch",
        (("",), "nodes"): "get",
        (("",), "resourceslices"): "list watch create update delete",
    },
    "controller": {
        (EVERYWHERE, "computedomains"): "list watch patch",
        (EVERYWHERE, "computedomains/status"): "patch",
        (EVERYWHERE, "resourceclaimtemplates"): f"{READ} create patch delete",
        (EVERYWHERE, "resourceclaims"): "list watch",
        (EVERYWHERE, "events"): "create patch",
        (("",), "nodes"): f"{READ} patch",
        (("",), "resourceslices"): f"{READ} delete",
        (OWN, "daemonsets"): f"{READ} create patch delete",
        (OWN, "pods"): "list watch",
        (OWN, "computedomaincliques"): f"{READ} create update delete",
        (OWN, "networkpolicies"): f"{READ} create patch delete",
        (OWN, "certificates"): f"{READ} create patch delete",
    },
}
"""Who -> namespaces and resource -> verbs. Nobody may do anything else, but for what `NAMED` has."""
NAMED = (
    ("controller", OWN, "serviceaccounts", DAEMONS, "get"),
    ("controller", OWN, "leases", "release-dra-driver-gpu-controller", "get update"),
    ("driver", EVERYWHERE, "resourceclaims/driver", DRIVER_NAME, "associated-node:update"),
    ("driver", EVERYWHERE, "resourceclaims/driver", DOMAIN_DRIVER, "associated-node:update"),
)


def may(client: ApiClient, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
    """What the API server says that a client may do."""
    base, _, sub = resource.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": base,
        "subresource": sub,
        "namespace": namespace,
        "name": name,
    }
    review = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return bool(client.create(ACCESS_REVIEWS, review)["status"]["allowed"])


@pytest.mark.parametrize("who", MAY)
def test_rights_of_each_account_are_exactly_those_listed(who: str, cluster: dict[str, ApiClient]) -> None:
    asked = [(*one, place) for one in NAMESPACED for place in (*OWN, "default", "")] + [(*one, "") for one in CLUSTER]
    expected = {
        (resource, place, verb)
        for (places, resource), verbs in MAY[who].items()
        for place in places
        for verb in verbs.split()
    }

    found = set[tuple[str, str, str]]()

    def are_known() -> bool:
        found.clear()
        found.update(
            (resource, place, verb)
            for group, resource, place in asked
            for verb in VERBS
            if may(cluster[who], verb, group, resource, place)
        )
        return found >= expected

    wait_for(are_known, "the rights")  # a real API server needs a moment to know new roles
    assert found == expected


def test_some_objects_are_named(cluster: dict[str, ApiClient]) -> None:
    groups = {resource: group for group, resource in NAMESPACED}
    for who in MAY:
        for owner, places, resource, name, verbs in NAMED:
            for place in (NAMESPACE, "default"):
                found = [verb for verb in VERBS if may(cluster[who], verb, groups[resource], resource, place, name)]
                assert found == (verbs.split() if who == owner and place in places else [])


def test_without_daemons_the_controller_has_no_rights_for_them() -> None:
    objects = render(domains(imex={"mode": "hostManaged"}))
    roles = [one for one in objects if one["kind"] in ("Role", "ClusterRole")]
    resources = {(one["kind"], name) for one in roles for rule in one["rules"] for name in rule["resources"]}
    assert {name for kind, name in resources if kind == "Role"} == {"leases"}
    (controller,) = (one for one in roles if one["kind"] == "ClusterRole" and "-controller" in one["metadata"]["name"])
    (nodes,) = (rule["verbs"] for rule in controller["rules"] if rule["resources"] == ["nodes"])
    assert nodes == READ.split()


# Policies

ROWS = [{**ROW, "nodeName": node, "index": index} for index, node in enumerate("ab")]
OLD = clique(*ROWS)
KNOWN: JSON = {NODE_NAME: ["a"], "authentication.kubernetes.io/pod-name": [DAEMON]}


def changed(row: int, **fields: Any) -> JSON:
    """The clique with other fields in a row."""
    return clique(*({**one, **fields} if index == row else one for index, one in enumerate(ROWS)))


def node(labels: JSON | None = None, spec: JSON | None = None, **metadata: Any) -> JSON:
    labelled = {"labels": labels} if labels else {}
    return {"metadata": {"name": "a", **labelled, **metadata}, "spec": spec or {"podCIDR": "10.0.0.0/24"}}


OWN_DOMAIN = "an IMEX daemon may change the members of its own ComputeDomain only"
OWN_ROW = "the IMEX daemon on node a may change the row of that node only"
OWN_STATE = "an IMEX daemon may change status, state, domainState and message of a row only"
MANAGERS = "an IMEX daemon may write to an object with at most 20 entries of managedFields"
ONLY_CONTROLLER = "only the cluster controller may change the label resource.nvidia.com/computeDomain of a Node"
ONLY_DRIVER = (
    "only the driver claims devices of DeviceClass compute-domain-daemon.nvidia.com: create a ComputeDomain, and claim"
    " channels with the ResourceClaimTemplate that it names"
)
NO_OTHERS = "an IMEX daemon may neither create nor delete a ComputeDomainClique"
UNKNOWN = "the token of the driver's service account does not say on which node its pod is"
REPORTS: Mapping[str, tuple[JSON, str | None]] = {
    "nothing": (OLD, None),
    "state": (changed(0, status="NotReady", state="INITIALIZING", domainState="DOWN", message="why"), None),
    "node of another": (changed(1, message="why"), OWN_ROW),
    "both": (clique(*({**one, "state": ""} for one in ROWS)), OWN_ROW),
    "row of another away": (clique(ROWS[0]), OWN_ROW),
    "another row": (clique(*ROWS, {**ROW, "nodeName": "c", "index": 2}), OWN_ROW),
    "taken over": (changed(1, nodeName="a"), OWN_ROW),
    "order": (clique(*reversed(ROWS)), OWN_STATE),
    "own row away": (clique(ROWS[1]), OWN_STATE),
    "index": (changed(0, index=2), OWN_STATE),
    "address": (changed(0, ipAddress="10.0.0.1"), OWN_STATE),
    "clique": (changed(0, cliqueID="x"), OWN_STATE),
    "labels": (merged(OLD, {"metadata": {"labels": {DOMAIN_LABEL: TWO}}}), OWN_STATE),
    "annotations": (merged(OLD, {"metadata": {"annotations": {"a": "b"}}}), OWN_STATE),
    "finalizers": (merged(OLD, {"metadata": {"finalizers": ["a.b/c"]}}), OWN_STATE),
    "owners": (
        merged(OLD, {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}]}}),
        OWN_STATE,
    ),
}


def test_a_daemon_cannot_fill_an_object_with_field_managers() -> None:
    managers = [{"manager": str(number), "operation": "Apply"} for number in range(21)]
    spec, user = policy(domain_objects(), "cliques"), {"username": f"{ACCOUNT}{DAEMONS}", "extra": KNOWN}
    few, many = (merged(OLD, {"metadata": {"managedFields": managers[:count]}}) for count in (20, 21))
    assert verdict(spec, "UPDATE", few, OLD, user) is None
    assert verdict(spec, "UPDATE", many, few, user) == MANAGERS


KUBELET = {"username": "system:node:a", "groups": ["system:nodes", "system:authenticated"]}
KUBELETS: Mapping[str, tuple[JSON | None, JSON, str | None]] = {
    "heartbeat": (node({DOMAIN_LABEL: ONE}), node({DOMAIN_LABEL: ONE}), None),
    "other label": (node({DOMAIN_LABEL: ONE}), node({DOMAIN_LABEL: ONE, "zone": "z"}), None),
    "registration": (None, node({"zone": "z"}), None),
    "set": (node(), node({DOMAIN_LABEL: TWO}), ONLY_CONTROLLER),
    "changed": (node({DOMAIN_LABEL: ONE}), node({DOMAIN_LABEL: TWO}), ONLY_CONTROLLER),
    "removed": (node({DOMAIN_LABEL: ONE}), node(), ONLY_CONTROLLER),
    "registered with it": (None, node({DOMAIN_LABEL: TWO}), ONLY_CONTROLLER),
}


@pytest.mark.parametrize("what", KUBELETS)
def test_a_kubelet_does_not_put_its_node_into_a_domain(what: str) -> None:
    old, new, expected = KUBELETS[what]
    spec, operation = policy(domain_objects(), "kubelets"), "UPDATE" if old else "CREATE"
    assert verdict(spec, operation, new, old, KUBELET) == expected
    assert verdict(spec, operation, new, old, {"username": "admin", "groups": ["system:masters"]}) is None


def test_kubelet_policy_covers_the_status_of_nodes() -> None:
    (rule,) = policy(domain_objects(), "kubelets")["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["nodes", "nodes/status"]


OTHER_CLASS = "compute-domain-default-channel.nvidia.com"
REQUESTS: Mapping[str, tuple[list[JSON], bool]] = {
    "exactly": ([{"name": "a", "exactly": {"deviceClassName": DAEMON_CLASS}}], True),
    "first available": ([{"name": "a", "firstAvailable": [{"name": "b", "deviceClassName": DAEMON_CLASS}]}], True),
    "second choice": (
        [{"name": "a", "firstAvailable": [{"deviceClassName": OTHER_CLASS}, {"deviceClassName": DAEMON_CLASS}]}],
        True,
    ),
    "v1beta1": ([{"name": "a", "deviceClassName": DAEMON_CLASS}], True),
    "second request": (
        [{"exactly": {"deviceClassName": OTHER_CLASS}}, {"exactly": {"deviceClassName": DAEMON_CLASS}}],
        True,
    ),
    "other class": ([{"name": "a", "exactly": {"deviceClassName": OTHER_CLASS}}], False),
    "other classes": ([{"name": "a", "firstAvailable": [{"deviceClassName": OTHER_CLASS}]}], False),
    "no class": ([{"name": "a", "exactly": {}}, {"name": "b"}], False),
    "no request": ([], False),
}
USER = {"username": "user", "groups": ["system:authenticated"]}


@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_only_the_driver_claims_daemons(what: str, kind: str) -> None:
    requests, is_refused = REQUESTS[what]
    spec: JSON = {"devices": {"requests": requests}} if requests else {}
    value = {"metadata": {"name": "a"}, "spec": spec if kind == "ResourceClaim" else {"spec": spec}}
    found = verdict(policy(domain_objects(), "daemon-claims"), "CREATE", value, None, USER, "default")
    assert found == (ONLY_DRIVER if is_refused else None)
    assert verdict(policy(domain_objects(), "daemon-claims"), "CREATE", value, None, USER, NAMESPACE) is None


def test_existing_claims_for_daemons_can_be_released_and_deleted() -> None:
    (rule,) = policy(domain_objects(), "daemon-claims")["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE"]
    assert rule["resources"] == ["resourceclaims", "resourceclaimtemplates"]


def test_the_driver_itself_claims_daemons_with_this_class() -> None:
    (request,) = encode_claim_spec(daemon_claim(ONE), V1)["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == DAEMON_CLASS


@pytest.mark.parametrize("what", REPORTS)
def test_a_daemon_reports_its_own_state_only(what: str) -> None:
    new, expected = REPORTS[what]
    user = {"username": f"{ACCOUNT}{DAEMONS}", "extra": KNOWN}
    assert verdict(policy(domain_objects(), "cliques"), "UPDATE", new, OLD, user) == expected


@pytest.mark.parametrize(
    ("operation", "extra", "expected"),
    [
        ("UPDATE", {}, UNKNOWN),
        ("UPDATE", {NODE_NAME: ["a"]}, OWN_DOMAIN),
        ("UPDATE", {**KNOWN, "authentication.kubernetes.io/pod-name": [FOREIGN]}, OWN_DOMAIN),
        ("UPDATE", {**KNOWN, "authentication.kubernetes.io/pod-name": ["computedomain-daemon-"]}, OWN_DOMAIN),
        ("CREATE", KNOWN, NO_OTHERS),
        ("DELETE", KNOWN, NO_OTHERS),
    ],
)
def test_a_daemon_writes_to_its_own_domain_only(operation: str, extra: JSON, expected: str) -> None:
    old, new = None if operation == "CREATE" else OLD, None if operation == "DELETE" else OLD
    user = {"username": f"{ACCOUNT}{DAEMONS}", "extra": extra}
    assert verdict(policy(domain_objects(), "cliques"), operation, new, old, user) == expected
    assert verdict(policy(domain_objects(), "cliques"), operation, new, old, {**user, "username": "other"}) is None


ONE_LABEL = "the cluster controller may change the label resource.nvidia.com/computeDomain of a Node only"
LABELS: Mapping[str, tuple[JSON, JSON, str | None]] = {
    "set": (node({"zone": "z"}), node({"zone": "z", DOMAIN_LABEL: ONE}), None),
    "first": (node(), node({DOMAIN_LABEL: ONE}), None),
    "changed": (node({DOMAIN_LABEL: ONE}), node({DOMAIN_LABEL: TWO}), None),
    "removed": (node({"zone": "z", DOMAIN_LABEL: ONE}), node({"zone": "z"}), None),
    "last": (node({DOMAIN_LABEL: ONE}), node(), None),
    "other set": (node(), node({"zone": "z"}), ONE_LABEL),
    "other changed": (node({"zone": "z"}), node({"zone": "y"}), ONE_LABEL),
    "other removed": (node({"zone": "z"}), node({DOMAIN_LABEL: ONE}), ONE_LABEL),
    "annotation": (node(), node(annotations={"a": "b"}), ONE_LABEL),
    "finalizer": (node(finalizers=["a.b/c"]), node(), ONE_LABEL),
    "spec": (node(), node(spec={"podCIDR": "10.0.0.0/24", "unschedulable": True}), ONE_LABEL),
    "taint": (
        node(),
        node(spec={"podCIDR": "10.0.0.0/24", "taints": [{"key": "a", "effect": "NoExecute"}]}),
        ONE_LABEL,
    ),
}


@pytest.mark.parametrize("what", LABELS)
def test_the_controller_labels_nodes_and_changes_nothing_else(what: str) -> None:
    old, new, expected = LABELS[what]
    spec = policy(domain_objects(), "domain-labels")
    account = find(domain_objects(), "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    assert verdict(spec, "UPDATE", new, old, {"username": f"{ACCOUNT}{account}"}) == expected
    assert verdict(spec, "UPDATE", new, old, {"username": "other"}) is None


@REAL
def test_a_real_api_server_holds_daemons_to_their_row(cluster: dict[str, ApiClient]) -> None:
    admin, own, foreign = cluster["admin"], cluster[DAEMON], cluster[FOREIGN]
    name = OLD["metadata"]["name"]
    admin.create(CLIQUES, OLD, NAMESPACE)

    def report(client: ApiClient, row: int, field: str, value: Any) -> Callable[[], object]:
        test = {"op": "test", "path": f"/daemons/{row}/nodeName", "value": "ab"[row]}
        operations = [test, {"op": "replace", "path": f"/daemons/{row}/{field}", "value": value}]
        return lambda: client.json_patch(CLIQUES, name, operations, namespace=NAMESPACE)

    number = iter(range(1000))  # until the policy is in force, other rows can be changed
    wait_for(lambda: OWN_ROW in denied(report(own, 1, "message", str(next(number)))), "the policy to be in force")
    for field, value in (("status", "NotReady"), ("state", "INIT_GPU"), ("domainState", "DOWN"), ("message", "why")):
        report(own, 0, field, value)()
        assert admin.get(CLIQUES, name, NAMESPACE)["daemons"][0][field] == value
    assert OWN_DOMAIN in denied(report(foreign, 0, "message", "x"))
    assert OWN_STATE in denied(report(own, 0, "index", 7))
    assert OWN_STATE in denied(report(own, 0, "ipAddress", "10.0.0.9"))
    before = admin.get(CLIQUES, name, NAMESPACE)
    for new, expected in REPORTS.values():
        change = {"metadata": new["metadata"], "daemons": new["daemons"]}
        if expected:
            assert denied(partial(own.patch, CLIQUES, name, change, namespace=NAMESPACE)), new
    after = admin.get(CLIQUES, name, NAMESPACE)
    assert after == before
    for action in (
        lambda: own.create(CLIQUES, clique(uid=TWO), NAMESPACE),
        lambda: own.delete(CLIQUES, name, NAMESPACE),
        lambda: own.update(CLIQUES, after),
        lambda: own.list(CLIQUES),
        lambda: own.list(COMPUTE_DOMAINS, namespace="default"),
        lambda: own.patch(NODES, "a", {"metadata": {"labels": {DOMAIN_LABEL: ONE}}}),
    ):
        assert "403" in denied(action)
    for one in domain_objects():
        if one["kind"] == "ValidatingAdmissionPolicy":
            kind = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies")
            assert (
                not admin.get(kind, one["metadata"]["name"])
                .get("status", {})
                .get("typeChecking", {})
                .get("expressionWarnings")
            )
    delete(admin, CLIQUES, name, NAMESPACE)


@REAL
def test_a_real_api_server_lets_the_controller_label_nodes(cluster: dict[str, ApiClient]) -> None:
    admin, controller = cluster["admin"], cluster["controller"]

    number = iter(range(1000))

    def other() -> str:  # until the policy is in force, it can set any label
        labels = {"zone": str(next(number))}
        return denied(lambda: controller.patch(NODES, "a", {"metadata": {"labels": labels}}))

    wait_for(lambda: ONE_LABEL in other(), "the policy to be in force")
    admin.patch(NODES, "a", {"metadata": {"labels": {"zone": "y"}}})
    for value in (ONE, TWO, None):
        controller.patch(NODES, "a", {"metadata": {"labels": {DOMAIN_LABEL: value}}})
        assert admin.get(NODES, "a")["metadata"]["labels"].get(DOMAIN_LABEL) == value
    for change in (
        {"metadata": {"labels": {"zone": None}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        {"metadata": {"labels": {DOMAIN_LABEL: ONE}, "finalizers": ["a.b/c"]}},
    ):
        assert ONE_LABEL in denied(partial(controller.patch, NODES, "a", change))
    assert DOMAIN_LABEL not in admin.get(NODES, "a")["metadata"]["labels"]


@REAL
def test_a_real_api_server_refuses_claims_of_users_for_daemons(cluster: dict[str, ApiClient]) -> None:
    admin = cluster["admin"]
    kinds = {
        "ResourceClaim": claims_of(V1),
        "ResourceClaimTemplate": templates_of(V1),
    }

    def create(kind: str, requests: list[JSON], namespace: str) -> str:
        spec: JSON = {"devices": {"requests": requests}}
        value = {
            "apiVersion": V1.api_version,
            "kind": kind,
            "metadata": {"name": "daemon"},
            "spec": spec if kind == "ResourceClaim" else {"spec": spec},
        }
        answer = denied(lambda: admin.create(kinds[kind], value, namespace))
        if not answer:
            admin.delete(kinds[kind], "daemon", namespace)
        return answer

    exactly = [{"name": "a", "exactly": {"deviceClassName": DAEMON_CLASS}}]
    wait_for(lambda: ONLY_DRIVER in create("ResourceClaim", exactly, "default"), "the policy to be in force")
    options = [{"name": name, "deviceClassName": name} for name in ("other", "b")]
    second = [{"name": "a", "firstAvailable": [options[0], {**options[1], "deviceClassName": DAEMON_CLASS}]}]
    for kind in kinds:
        for requests in (exactly, second):
            assert ONLY_DRIVER in create(kind, requests, "default")
            assert create(kind, requests, NAMESPACE) == ""
        assert create(kind, [{"name": "a", "firstAvailable": options}], "default") == ""


@REAL
def test_a_real_api_server_limits_the_texts_of_a_row(cluster: dict[str, ApiClient]) -> None:
    admin, own = cluster["admin"], cluster[DAEMON]
    name = OLD["metadata"]["name"]
    admin.create(CLIQUES, OLD, NAMESPACE)

    def report(field: str, length: int) -> str:
        operations: list[JSON] = [{"op": "replace", "path": f"/daemons/0/{field}", "value": "x" * length}]
        return denied(lambda: own.json_patch(CLIQUES, name, operations, namespace=NAMESPACE))

    fields = {"state": "state", "domainState": "domain_state", "message": "message"}
    for field, limit in fields.items():
        assert report(field, LONGEST[limit]) == ""
        for length in (LONGEST[limit] + 1, 900_000):
            assert "Too long" in report(field, length)
    delete(admin, CLIQUES, name, NAMESPACE)


def test_the_definition_has_the_limits_of_a_report() -> None:
    (definition,) = (
        one for one in domain_objects() if one["metadata"]["name"] == "computedomaincliques.resource.nvidia.com"
    )
    (version,) = definition["spec"]["versions"]
    rows = version["schema"]["openAPIV3Schema"]["properties"]["daemons"]
    limits = {name: field["maxLength"] for name, field in rows["items"]["properties"].items() if "maxLength" in field}
    assert {limits[name] for name in ("state", "domainState")} == {LONGEST["state"], LONGEST["domain_state"]}
    assert limits["message"] == LONGEST["message"]
    assert rows["maxItems"] == MOST_SLOTS
