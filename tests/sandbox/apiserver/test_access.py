# SPDX-License-Identifier: Apache-2.0
"""Who may do what: tokens, RBAC, and the finer rules for a claim's status."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dra_driver.sandbox.apiserver import ApiServerOptions
from dra_driver.sandbox.apiserver.users import User
from tests.support.faultyserver import FaultyServer

from .conftest import CLAIMS, SLICES, claim, resource_slice
from .conversation import Partner

RBAC = "/apis/rbac.authorization.k8s.io/v1"
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def guarded() -> Iterator[FaultyServer]:
    """A server that enforces RBAC."""
    with FaultyServer(ApiServerOptions(rbac=True)) as server:
        yield server


@pytest.fixture(scope="module")
def admin(guarded: FaultyServer, talk: Callable[..., Partner]) -> Partner:
    return talk(guarded)


def grant(admin: Partner, name: str, subject: dict[str, Any], rules: list[dict[str, Any]], namespace: str = "") -> None:
    """A role, cluster-wide or of one namespace, and its binding."""
    where = f"{RBAC}/namespaces/{namespace}/" if namespace else f"{RBAC}/cluster"
    kind = "Role" if namespace else "ClusterRole"
    admin.ask("POST", f"{where}roles", {"metadata": {"name": name}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    code, _, body = admin.ask(
        "POST", f"{where}rolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    )
    assert code == 201, body


def test_a_request_needs_a_token_that_is_known(guarded: FaultyServer, talk: Callable[..., Partner]) -> None:
    for token in ("unknown", ""):
        nobody = talk(guarded, "unknown")
        nobody.token = token
        assert nobody.ask("GET", "/api/v1/namespaces")[0] == 401


def test_rbac_grants_verbs_on_resources_in_their_namespaces(
    guarded: FaultyServer, admin: Partner, talk: Callable[..., Partner]
) -> None:
    token = guarded.add_service_account("default", "reader")
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "reader"}
    rules = [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list"]}]
    grant(admin, "reads-claims", subject, rules, namespace="default")
    reader = talk(guarded, token)
    admin.ask("POST", CLAIMS, claim("readable"))
    assert reader.ask("GET", CLAIMS)[0] == 200
    assert reader.ask("GET", f"{CLAIMS}/readable")[0] == 200
    for method, path in (
        ("DELETE", f"{CLAIMS}/readable"),
        ("GET", CLAIMS.replace("default", "kube-system")),
        ("GET", f"{CLAIMS}/readable/status"),
        ("GET", SLICES),
        ("GET", "/metrics"),
    ):
        code, _, body = reader.ask(method, path)
        assert code == 403, path
        assert 'User "system:serviceaccount:default:reader" cannot' in body["message"]


def test_resource_names_limit_a_rule(guarded: FaultyServer, admin: Partner, talk: Callable[..., Partner]) -> None:
    token = guarded.add_user(User("carol", ("devs",)))
    rules = [{"apiGroups": ["resource.k8s.io"], "resources": ["*"], "resourceNames": ["mine"], "verbs": ["*"]}]
    grant(admin, "one-slice", {"kind": "Group", "name": "devs", "apiGroup": "rbac.authorization.k8s.io"}, rules)
    admin.ask("POST", SLICES, resource_slice("mine"))
    carol = talk(guarded, token)
    assert carol.ask("GET", f"{SLICES}/mine")[0] == 200
    assert carol.ask("GET", f"{SLICES}/theirs")[0] == 403


def test_impersonated_user_has_its_own_permissions(
    guarded: FaultyServer, admin: Partner, talk: Callable[..., Partner]
) -> None:
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "watcher"}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    grant(admin, "watches-pods", subject, rules, namespace="default")
    account = "system:serviceaccount:default:watcher"
    pods, nodes = "/api/v1/namespaces/default/pods", "/api/v1/nodes"
    assert admin.ask("GET", pods, Impersonate_User=account)[0] == 200
    code, _, body = admin.ask("GET", nodes, Impersonate_User=account)
    assert (code, body["message"]) == (
        403,
        f'nodes is forbidden: User "{account}" cannot list resource "nodes" in API group "" at the cluster scope',
    )
    headers = {"Impersonate_User": "bob", "Impersonate_Group": "system:masters"}
    _, _, me = admin.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, **headers)
    groups = ["system:masters", "system:authenticated"]
    assert me["status"]["userInfo"] == {"username": "bob", "groups": groups, "extra": {}}
    dave = talk(guarded, guarded.add_user(User("dave")))
    code, _, body = dave.ask("GET", pods, Impersonate_User="bob")
    assert (code, body["message"]) == (
        403,
        'users "bob" is forbidden: User "dave" cannot impersonate resource "users" in API group "" '
        "at the cluster scope",
    )


ALLOCATION = {
    "devices": {"results": [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0"}]},
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
    },
}
DEVICE = {"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0", "data": {"ok": True}}
STATUS_RULE = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["get", "patch"]}


def driver_rule(verb: str, driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    return {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaims/driver"],
        "resourceNames": [driver],
        "verbs": [verb],
    }


@pytest.mark.parametrize(
    ("name", "node", "rules", "allowed"),
    [
        ("without-the-rule", "node-1", [], False),
        ("on-its-node", "node-1", [driver_rule("associated-node:patch")], True),
        ("on-another-node", "node-2", [driver_rule("associated-node:patch")], False),
        ("anywhere", "node-2", [driver_rule("arbitrary-node:patch")], True),
        ("wrong-verb", "node-1", [driver_rule("associated-node:update")], False),
        ("other-driver", "node-1", [driver_rule("associated-node:patch", "other.example.com")], False),
    ],
)
def test_a_driver_reports_on_its_own_devices(
    guarded: FaultyServer,
    admin: Partner,
    talk: Callable[..., Partner],
    name: str,
    node: str,
    rules: list[dict[str, Any]],
    allowed: bool,
) -> None:
    token = guarded.add_service_account("drivers", name, node=node)
    subject = {"kind": "ServiceAccount", "namespace": "drivers", "name": name}
    grant(admin, name, subject, [STATUS_RULE, *rules])
    admin.ask("POST", CLAIMS, claim(name))
    path = f"{CLAIMS}/{name}/status"
    code, _, body = admin.ask("PATCH", path, {"status": {"allocation": ALLOCATION}}, Content_Type=MERGE)
    assert code == 200, body
    code, _, body = talk(guarded, token).ask("PATCH", path, {"status": {"devices": [DEVICE]}}, Content_Type=MERGE)
    if allowed:
        assert code == 200, body
    else:
        assert (code, body["details"]["causes"][0]["field"]) == (422, "status.devices")
        assert "resourceclaims/driver" in body["message"]


def test_binding_a_claim_needs_its_own_permission(
    guarded: FaultyServer, admin: Partner, talk: Callable[..., Partner]
) -> None:
    token = guarded.add_service_account("drivers", "binder")
    grant(admin, "binder", {"kind": "ServiceAccount", "namespace": "drivers", "name": "binder"}, [STATUS_RULE])
    admin.ask("POST", CLAIMS, claim("to-bind"))
    patch = {"status": {"allocation": ALLOCATION}}
    code, _, body = talk(guarded, token).ask("PATCH", f"{CLAIMS}/to-bind/status", patch, Content_Type=MERGE)
    assert (code, body["details"]["causes"][0]["field"]) == (422, "status.allocation")


def test_users_can_ask_who_they_are_and_what_they_may(
    guarded: FaultyServer, admin: Partner, talk: Callable[..., Partner]
) -> None:
    token = guarded.add_service_account("default", "curious", node="node-9")
    curious = talk(guarded, token)
    _, _, me = curious.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert me["status"]["userInfo"]["username"] == "system:serviceaccount:default:curious"
    assert me["status"]["userInfo"]["extra"]["authentication.kubernetes.io/node-name"] == ["node-9"]
    asked = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert curious.ask("POST", path, asked)[2]["status"]["allowed"] is False
    assert admin.ask("POST", path, asked)[2]["status"]["allowed"] is True


def test_a_service_account_is_given_tokens_bound_to_its_pods_node(
    guarded: FaultyServer, admin: Partner, talk: Callable[..., Partner]
) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    admin.ask("POST", accounts, {"metadata": {"name": "plugin"}})
    spec = {"containers": [{"name": "a", "image": "b"}], "nodeName": "node-7"}
    admin.ask("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "plugin-pod"}, "spec": spec})
    request = {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "plugin-pod"}}}
    _, _, answer = admin.ask("POST", f"{accounts}/plugin/token", request)
    token = answer["status"]["token"]
    _, _, me = talk(guarded, token).ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert me["status"]["userInfo"]["extra"]["authentication.kubernetes.io/node-name"] == ["node-7"]
