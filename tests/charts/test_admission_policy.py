# SPDX-License-Identifier: Apache-2.0
"""A node's driver may write for its own node only.

cel-python evaluates the policies' CEL. With KUBEBUILDER_ASSETS, a real API server enforces them on tokens of pods.
"""

import copy
import functools
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controller.node.labels import NODE_NAME_LABEL
from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES
from dra_driver.kube.resource.names import object_name
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.apiserver.users import NODE_NAME
from tests.support.apiserver import ASSETS, CLAIMS, SLICES
from tests.support.waiting import wait_for

from .policies import denied, installed, policy, verdict
from .rendering import JSON, NAMESPACE, find, merged, render

TAINT = "gpu.nvidia.com/starting"
ACCOUNT = "release-dra-driver-gpu-kubeletplugin"


@functools.cache
def rendered() -> list[JSON]:
    """The objects with all policies about nodes."""
    return render({"kubeletPlugin": {"startupTaint": TAINT}, "nodeLabels": "node-feature"})


def slice_of(node: str | None, *, pool: str = "", driver: str = DRIVER_NAME, name: str = "", **metadata: Any) -> JSON:
    spec = {"driver": driver, "pool": {"name": pool or str(node), "generation": 1, "resourceSliceCount": 1}}
    where = {"allNodes": True} if node is None else {"nodeName": node}
    return {
        "apiVersion": SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"00000-{driver}-{node}".lower(), **metadata},
        "spec": {**spec, **where, "devices": [{"name": "gpu-0"}]},
    }


def claim_with(**status: Any) -> JSON:
    return {"metadata": {}, "spec": {}, **({"status": status} if status else {})}


def device(pool: str, text: str = "", driver: str = DRIVER_NAME) -> JSON:
    return {"driver": driver, "pool": pool, "device": "gpu-0", **({"data": {"text": text}} if text else {})}


# By evaluation


def driver_on(node: str | None) -> JSON:
    return {
        "username": f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}",
        **({"extra": {NODE_NAME: [node]}} if node else {}),
    }


A, B = slice_of("a"), slice_of("b")
OTHERS = "the driver on node a may write the ResourceSlices of that node only"
ONLY_OURS = "the driver on node a may write slices of its own drivers and of pool a only"
NAMES = "the driver on node a may not take the name of a slice of another node"
FINALIZERS = "the driver may not set or remove finalizers of a slice"
OWNERS = "a slice of the driver on node a may belong to that node only"
UNKNOWN = "the token of the driver's service account does not say on which node its pod is"


@pytest.mark.parametrize(
    ("operation", "value", "old", "node", "expected"),
    [
        ("CREATE", A, None, "a", None),
        ("UPDATE", A, A, "a", None),
        ("DELETE", None, A, "a", None),
        ("CREATE", B, None, "a", OTHERS),
        ("UPDATE", B, B, "a", OTHERS),
        ("UPDATE", A, B, "a", OTHERS),
        ("UPDATE", B, A, "a", OTHERS),
        ("DELETE", None, B, "a", OTHERS),
        ("CREATE", slice_of(None), None, "a", OTHERS),
        ("CREATE", slice_of("a", pool="b"), None, "a", ONLY_OURS),
        ("CREATE", slice_of("a", driver=DOMAIN_DRIVER), None, "a", None),
        ("UPDATE", slice_of("b", driver=DOMAIN_DRIVER), slice_of("b", driver=DOMAIN_DRIVER), "a", OTHERS),
        ("CREATE", slice_of("a", driver=DOMAIN_DRIVER, pool="b"), None, "a", ONLY_OURS),
        ("CREATE", slice_of("a", driver="other.example.com"), None, "a", ONLY_OURS),
        ("DELETE", None, slice_of("a", driver="other.example.com"), "a", ONLY_OURS),
        ("CREATE", A, None, None, UNKNOWN),
        ("DELETE", None, A, None, UNKNOWN),
    ],
)
def test_a_driver_writes_the_slices_of_its_own_node_only(
    operation: str, value: JSON | None, old: JSON | None, node: str | None, expected: str | None
) -> None:
    assert verdict(policy(rendered(), "resourceslices"), operation, value, old, driver_on(node)) == expected


def owner(kind: str, name: str, **more: Any) -> JSON:
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": "1", **more}


LABELLED = slice_of("a", labels={"a": "b"}, annotations={"a": "b"})
HELD = slice_of("a", finalizers=["a.b/c"])
OWNED = slice_of("a", ownerReferences=[owner("Node", "a", controller=True)])
LONG = f"{'node.' * 45}end"


@pytest.mark.parametrize(
    ("operation", "value", "old", "expected"),
    [
        ("CREATE", slice_of("a", name=f"probe-{DRIVER_NAME}-a"), None, None),
        ("CREATE", slice_of("a", name=f"00000-{DRIVER_NAME}-b"), None, NAMES),
        ("CREATE", slice_of("a", name=f"00000-{DRIVER_NAME}-b-{DRIVER_NAME}-a"), None, NAMES),
        ("CREATE", slice_of("a", name=f"00000-{DOMAIN_DRIVER}-a"), None, NAMES),
        ("UPDATE", slice_of("a", name="made-by-another-driver"), A, None),
        ("DELETE", None, slice_of("a", name="made-by-another-driver"), None),
        ("CREATE", HELD, None, FINALIZERS),
        ("UPDATE", HELD, A, FINALIZERS),
        ("UPDATE", A, HELD, FINALIZERS),
        ("UPDATE", HELD, HELD, None),
        ("DELETE", None, HELD, None),
        ("UPDATE", LABELLED, A, None),
        ("CREATE", OWNED, None, None),
        ("UPDATE", OWNED, A, None),
        ("CREATE", slice_of("a", ownerReferences=[owner("Node", "b")]), None, OWNERS),
        ("UPDATE", slice_of("a", ownerReferences=[owner("Namespace", "a")]), OWNED, OWNERS),
        ("UPDATE", slice_of("a", ownerReferences=[owner("Node", "a", blockOwnerDeletion=True)]), OWNED, OWNERS),
    ],
)
def test_a_slice_cannot_hold_up_or_replace_other_objects(
    operation: str, value: JSON | None, old: JSON | None, expected: str | None
) -> None:
    assert verdict(policy(rendered(), "resourceslices"), operation, value, old, driver_on("a")) == expected


def test_slices_of_a_node_with_a_very_long_name_are_not_refused() -> None:
    value = slice_of(LONG, name=object_name(f"00000-{DRIVER_NAME}-{LONG}"))
    assert verdict(policy(rendered(), "resourceslices"), "CREATE", value, None, driver_on(LONG)) is None


ALLOCATION = {"devices": {"results": [{"request": "gpu", **device("a")}]}}
USED = [{"resource": "pods", "name": "pod", "uid": "1"}]
DEVICES_ONLY = "the driver may change status.devices of a claim only"
OWN_DEVICES = "the driver on node a may write the status of devices of that node only"


@pytest.mark.parametrize(
    ("before", "after", "node", "expected"),
    [
        ({"allocation": ALLOCATION}, {"allocation": ALLOCATION, "devices": [device("a")]}, "a", None),
        ({"devices": [device("a")]}, {"devices": [device("a", "new")]}, "a", None),
        ({"devices": [device("a"), device("b")]}, {"devices": [device("b")]}, "a", None),
        ({"devices": [device("a")]}, {}, "a", None),
        ({"allocation": ALLOCATION}, {"devices": [device("a")]}, "a", DEVICES_ONLY),
        ({}, {"allocation": ALLOCATION}, "a", DEVICES_ONLY),
        ({"reservedFor": USED}, {}, "a", DEVICES_ONLY),
        ({}, {"devices": [device("a", driver=DOMAIN_DRIVER)]}, "a", None),
        ({"devices": [device("b")]}, {"devices": [device("b", "new")]}, "a", OWN_DEVICES),
        ({}, {"devices": [device("b", driver=DOMAIN_DRIVER)]}, "a", OWN_DEVICES),
        ({"devices": [device("b")]}, {}, "a", OWN_DEVICES),
        ({}, {"devices": [device("a", driver="other.example.com")]}, "a", OWN_DEVICES),
        ({}, {"devices": [device("a")]}, None, UNKNOWN),
    ],
)
def test_a_driver_writes_the_status_of_its_own_devices_only(
    before: JSON, after: JSON, node: str | None, expected: str | None
) -> None:
    found = verdict(
        policy(rendered(), "resourceclaims"), "UPDATE", claim_with(**after), claim_with(**before), driver_on(node)
    )
    assert found == expected


CLAIM_METADATA = "the driver may not change labels, annotations, finalizers and owners of a claim"


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"finalizers": ["a.b/c"]},
        {"ownerReferences": [owner("Pod", "a")]},
    ],
)
def test_the_metadata_of_a_claim_stays(metadata: JSON) -> None:
    changed = {**claim_with(), "metadata": metadata}
    for old, new in ((claim_with(), changed), (changed, claim_with())):
        assert verdict(policy(rendered(), "resourceclaims"), "UPDATE", new, old, driver_on("a")) == CLAIM_METADATA
    assert verdict(policy(rendered(), "resourceclaims"), "UPDATE", changed, changed, driver_on("a")) is None


def node_with(*taints: str, name: str = "a", spec: JSON | None = None, **metadata: Any) -> JSON:
    listed = {"taints": [{"key": one, "effect": "NoSchedule"} for one in taints]} if taints else {}
    return {"metadata": {"name": name, **metadata}, "spec": {**listed, **(spec or {})}}


ONE_TAINT = f"the driver may remove taint {TAINT} of a Node only"
TAINTS_ONLY = "the driver may change the taints of a Node only"


@pytest.mark.parametrize(
    ("before", "after", "node", "expected"),
    [
        (node_with(TAINT), node_with(), "a", None),
        (node_with("other", TAINT), node_with("other"), "a", None),
        (node_with("other", TAINT), node_with(), "a", ONE_TAINT),
        (node_with(TAINT), node_with("other"), "a", ONE_TAINT),
        (node_with(TAINT, name="b"), node_with(name="b"), "a", "the driver on node a may change that Node only"),
        (node_with(TAINT), node_with(labels={"a": "b"}), "a", TAINTS_ONLY),
        (node_with(TAINT), node_with(annotations={"a": "b"}), "a", TAINTS_ONLY),
        (node_with(TAINT, finalizers=["a.b/c"]), node_with(), "a", TAINTS_ONLY),
        (node_with(TAINT), node_with(ownerReferences=[{"name": "x"}]), "a", TAINTS_ONLY),
        (node_with(TAINT), node_with(spec={"unschedulable": True}), "a", TAINTS_ONLY),
        (node_with(TAINT), node_with(spec={"providerID": "x"}), "a", TAINTS_ONLY),
        (node_with(TAINT), node_with(), None, UNKNOWN),
    ],
)
def test_a_driver_removes_the_startup_taint_of_its_own_node_only(
    before: JSON, after: JSON, node: str | None, expected: str | None
) -> None:
    assert verdict(policy(rendered(), "nodes"), "UPDATE", after, before, driver_on(node)) == expected


OWN_FEATURES = "the driver on node a may write the NodeFeature of that node only"
OTHER_LABELS = "the driver may request node labels below nvidia.com/ only"


@pytest.mark.parametrize(
    ("name", "target", "label", "node", "expected"),
    [
        ("nvidia.com-a", "a", "nvidia.com/gpu.count", "a", None),
        ("nvidia.com-b", "b", "nvidia.com/gpu.count", "a", OWN_FEATURES),
        ("nvidia.com-a", "b", "nvidia.com/gpu.count", "a", OWN_FEATURES),
        ("nvidia.com-a", None, "nvidia.com/gpu.count", "a", OWN_FEATURES),
        ("a", "a", "nvidia.com/gpu.count", "a", OWN_FEATURES),
        ("nvidia.com-a", "a", "node-role.kubernetes.io/control-plane", "a", OTHER_LABELS),
        ("nvidia.com-a", "a", "nvidia.com/gpu.count", None, UNKNOWN),
    ],
)
def test_a_driver_requests_labels_of_its_own_node_only(
    name: str, target: str | None, label: str, node: str | None, expected: str | None
) -> None:
    labels = {} if target is None else {NODE_NAME_LABEL: target}
    value = {"metadata": {"name": name, "labels": labels}, "spec": {"labels": {label: "1"}}}
    for operation in ("CREATE", "UPDATE"):
        assert verdict(policy(rendered(), "nodefeatures"), operation, value, value, driver_on(node)) == expected


def test_a_node_feature_cannot_hold_up_its_namespace() -> None:
    meta = {"name": "nvidia.com-a", "labels": {NODE_NAME_LABEL: "a"}}
    value, held = ({"metadata": {**meta, **more}, "spec": {}} for more in ({}, {"finalizers": ["a.b/c"]}))
    spec = policy(rendered(), "nodefeatures")
    expected = "the driver may not set or remove finalizers of a NodeFeature"
    assert verdict(spec, "CREATE", held, None, driver_on("a")) == expected
    assert verdict(spec, "UPDATE", held, value, driver_on("a")) == expected
    assert verdict(spec, "UPDATE", held, held, driver_on("a")) is None


def test_policies_do_not_apply_to_other_users() -> None:
    for name in ("resourceslices", "resourceclaims", "nodes", "nodefeatures"):
        assert verdict(policy(rendered(), name), "DELETE", None, B, {"username": "system:node:b"}) is None


def test_the_policies_are_about_the_account_that_the_pods_have() -> None:
    """The official chart's is about one that does not exist."""
    pod = find(rendered(), "DaemonSet")["spec"]["template"]["spec"]
    account = f"system:serviceaccount:{NAMESPACE}:{pod['serviceAccountName']}"
    for name in ("resourceslices", "resourceclaims", "nodes", "nodefeatures"):
        (condition,) = policy(rendered(), name)["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == '{account}'"


def test_every_policy_is_bound_and_denies() -> None:
    bound = {
        one["spec"]["policyName"]: one["spec"]["validationActions"]
        for one in rendered()
        if one["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    names = [one["metadata"]["name"] for one in rendered() if one["kind"] == "ValidatingAdmissionPolicy"]
    assert bound == {name: ["Deny"] for name in names}


# By a real API server


@pytest.mark.skipif(not ASSETS, reason="no KUBEBUILDER_ASSETS: the embedded API server does not enforce policies")
def test_a_real_api_server_enforces_the_policies(client: ApiClient, kubeconfig: Path, tmp_path: Path) -> None:
    pods = {node: (node, ACCOUNT) for node in ("a", "b")}
    with installed(client, kubeconfig, tmp_path, rendered(), pods) as nodes:
        a, b = nodes["a"], nodes["b"]

        def misplaced() -> str:  # until the policy is in force, some slices of b are made from a
            found = denied(lambda: a.create(SLICES, B))
            if not found:
                client.delete(SLICES, B["metadata"]["name"])
            return found

        assert OTHERS in wait_for(misplaced, "the policy to be in force")
        own, foreign = a.create(SLICES, A), b.create(SLICES, B)
        changed = copy.deepcopy(own)
        changed["spec"]["devices"] = []
        own = a.update(SLICES, changed)
        theirs = copy.deepcopy(foreign)
        theirs["spec"]["devices"] = []
        assert OTHERS in denied(lambda: a.update(SLICES, theirs))
        assert OTHERS in denied(lambda: a.delete(SLICES, foreign["metadata"]["name"]))
        assert ONLY_OURS in denied(lambda: a.create(SLICES, slice_of("a", pool="b")))
        assert NAMES in denied(lambda: a.create(SLICES, slice_of("a", name=f"00001-{DRIVER_NAME}-b")))
        forbidden: list[tuple[JSON, str]] = [
            ({"finalizers": ["a.b/c"]}, FINALIZERS),
            ({"ownerReferences": [owner("Namespace", "a")]}, OWNERS),
        ]
        for meta, refusal in forbidden:
            assert refusal in denied(partial(a.update, SLICES, merged(own, {"metadata": meta})))
            assert refusal in denied(partial(a.create, SLICES, slice_of("a", name=f"00001-{DRIVER_NAME}-a", **meta)))
        a.delete(SLICES, own["metadata"]["name"])
        assert client.get(SLICES, foreign["metadata"]["name"])["metadata"]["uid"] == foreign["metadata"]["uid"]

        taints = client.get(NODES, "a")["spec"].get("taints") or []
        starting = {"spec": {"taints": [*taints, {"key": TAINT, "effect": "NoSchedule"}]}}
        for node in ("a", "b"):
            client.patch(NODES, node, starting)
        assert "may change that Node only" in denied(lambda: a.patch(NODES, "b", {"spec": {"taints": taints}}))
        assert ONE_TAINT in denied(
            lambda: a.patch(NODES, "a", {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}})
        )
        more = {"metadata": {"labels": {"a": "b"}}, "spec": {"taints": taints}}
        assert TAINTS_ONLY in denied(lambda: a.patch(NODES, "a", more))
        assert denied(lambda: a.patch(NODES, "a", {"spec": {"unschedulable": True}})), "the server adds a taint for it"
        a.patch(NODES, "a", {"spec": {"taints": taints}})
        assert (client.get(NODES, "a")["spec"].get("taints") or []) == taints

        claim = allocated_claim(client)

        def put(writer: ApiClient, **status: Any) -> None:
            value = client.get(CLAIMS, claim, "default")
            value["status"] |= status
            writer.update(CLAIMS, value, subresource="status")

        # From 1.36 the server's own rules refuse these already, before 1.36 the policy does.
        assert denied(lambda: put(a, allocation=None))
        assert denied(lambda: put(b, devices=[device("a")]))
        put(a, devices=[device("a")])
        found = client.get(CLAIMS, claim, "default")["status"]
        assert [one["pool"] for one in found["devices"]] == ["a"]
        assert "allocation" in found
        held = client.get(CLAIMS, claim, "default")
        held["metadata"] |= {"finalizers": ["a.b/c"], "labels": {"a": "b"}}
        denied(lambda: a.update(CLAIMS, held, subresource="status"))
        meta = client.get(CLAIMS, claim, "default")["metadata"]
        assert "a.b/c" not in meta.get("finalizers", [])
        assert "labels" not in meta
        assert "403" in denied(lambda: a.list(CLAIMS))
        assert "403" in denied(lambda: a.list(NODES))
        client.delete(CLAIMS, claim, "default")
        client.delete(SLICES, foreign["metadata"]["name"])


def allocated_claim(admin: ApiClient) -> str:
    """A claim that has a device of node a, and what that is called."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    claim = admin.create(
        CLAIMS,
        {
            "apiVersion": CLAIMS.api_version,
            "kind": "ResourceClaim",
            "metadata": {"name": "policies"},
            "spec": {"devices": {"requests": requests}},
        },
        "default",
    )
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]
    allocation = {**ALLOCATION, "nodeSelector": {"nodeSelectorTerms": terms}}
    admin.update(CLAIMS, {**claim, "status": {"allocation": allocation}}, subresource="status")
    return str(claim["metadata"]["name"])
