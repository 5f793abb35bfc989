# SPDX-License-Identifier: Apache-2.0
"""The chart's rights and policies on an API server, with the tokens of pods; and policies evaluated without one.

cel-python evaluates the policies' CEL: the embedded API server stores policies without effect.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import yaml

from dra_driver.kube.api import ApiClient, Kind, NotFoundError, StatusError
from dra_driver.kube.kinds import ACCESS_REVIEWS, DEFINITIONS, NAMESPACES, NODES, PODS, ROLES, SERVICE_ACCOUNTS
from tests.support.apiserver import connect
from tests.support.waiting import wait_for

from .cel import evaluate
from .rendering import JSON, NAMESPACE

KINDS: Mapping[str, Kind] = {
    "CustomResourceDefinition": DEFINITIONS,
    "ServiceAccount": SERVICE_ACCOUNTS,
    "Role": ROLES,
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings", namespaced=True),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "ValidatingAdmissionPolicy": Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"),
}
"""What `installed` installs of a rendering."""
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:"


def policy(objects: list[JSON], name: str) -> JSON:
    """The spec of a policy."""
    found: JSON
    (found,) = (
        one["spec"]
        for one in objects
        if one["kind"] == "ValidatingAdmissionPolicy" and f"-{name}." in one["metadata"]["name"]
    )
    return found


def verdict(
    spec: JSON, operation: str, value: JSON | None, old: JSON | None, user: JSON, namespace: str = ""
) -> str | None:
    """Why the policy denies a request; None when it does not, or is not about it."""
    variables: JSON = {}
    known = {
        "request": {"operation": operation, "userInfo": user, "namespace": namespace},
        "object": value,
        "oldObject": old,
        "variables": variables,
    }
    if not all(evaluate(one["expression"], known) for one in spec["matchConditions"]):
        return None
    for one in spec["variables"]:
        variables[one["name"]] = evaluate(one["expression"], known)
    for one in spec["validations"]:
        if not evaluate(one["expression"], known):
            return str(one["message"] if "message" in one else evaluate(one["messageExpression"], known))
    return None


def denied(action: Callable[[], object]) -> str:
    """The message of a refusal; empty when there was none."""
    try:
        action()
    except StatusError as error:
        return str(error)
    return ""


def _is_allowed(action: Callable[[], object]) -> bool:
    return not denied(action)


@contextmanager
def installed(
    admin: ApiClient, kubeconfig: Path, folder: Path, objects: list[JSON], pods: Mapping[str, tuple[str, str]]
) -> Iterator[dict[str, ApiClient]]:
    """Clients with the tokens of `pods` (name -> node and service account), under a rendering's rights and policies."""
    with ExitStack() as stack:

        def create(kind: Kind, value: JSON, where: str = "") -> JSON:
            stack.callback(delete, admin, kind, value["metadata"]["name"], where)
            return admin.create(kind, value, where)

        create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for one in objects:
            if one["kind"] in KINDS:
                create(KINDS[one["kind"]], one, one["metadata"].get("namespace", ""))
        for node in sorted({node for node, _ in pods.values()}):
            create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        clients = {}
        for name, (node, account) in pods.items():
            pod = create(PODS, _pod(name, node, account), NAMESPACE)
            document = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
            document["users"][0]["user"] = {"token": _token(admin, pod)}
            path = folder / f"kubeconfig-{name}"
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            clients[name] = stack.enter_context(connect(path))
        rights = ACCESS_REVIEWS
        attributes = {"verb": "get", "resource": "pods"}
        spec = {"resourceAttributes": attributes}
        review = {"apiVersion": rights.api_version, "kind": "SelfSubjectAccessReview", "spec": spec}
        for client in clients.values():  # everybody may ask, as soon as a real API server knows its own roles
            ask = partial(client.create, rights, review)
            wait_for(partial(_is_allowed, ask), "the right to ask for rights")
        yield clients


def delete(admin: ApiClient, kind: Kind, name: str, namespace: str = "") -> None:
    """Delete an object, if it is there. A real API server deletes a definition only after all objects of its kind."""

    def is_gone() -> bool:
        try:
            admin.delete(kind, name, namespace)
        except NotFoundError:
            return True
        return kind != DEFINITIONS

    wait_for(is_gone, f"the end of {name}")


def _pod(name: str, node: str, account: str) -> JSON:
    spec = {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "one", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _token(admin: ApiClient, pod: JSON) -> str:
    """A token as kubelet requests it for a pod."""
    bound = {"apiVersion": "v1", "kind": "Pod", **{key: pod["metadata"][key] for key in ("name", "uid")}}
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], "boundObjectRef": bound},
    }
    account = pod["spec"]["serviceAccountName"]
    answer = admin.create(SERVICE_ACCOUNTS, request, NAMESPACE, name=account, subresource="token")
    return str(answer["status"]["token"])
