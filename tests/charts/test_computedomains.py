# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains in the chart: the objects, what each process is told, and the API.

With KUBEBUILDER_ASSETS, a real API server applies the definitions' schemas; they are also applied here.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import jsonschema
import pytest

from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, decode_clique, decode_domain
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import DEFINITIONS

from .cel import evaluate
from .domains import DAEMONS, REAL, ROW, clique, domain_objects, domains
from .policies import denied
from .rendering import JSON, NAMESPACE, VALUES, render

# What processes are told


def told(objects: list[JSON], container: str) -> dict[str, str]:
    """The variables of a container that have a value."""
    (found,) = (
        one
        for workload in objects
        if workload["kind"] in ("DaemonSet", "Deployment")
        for one in workload["spec"]["template"]["spec"]["containers"]
        if one["name"] == container
    )
    return {one["name"]: one["value"] for one in found["env"] if "value" in one}


CONTROLLER: Final = {
    "COMPUTE_DOMAINS": "true",
    "IMEX_MODE": "driverManaged",
    "DAEMON_IMAGE": "dra-driver-gpu:0.1.0",
    "DAEMON_PULL_POLICY": "IfNotPresent",
    "DAEMON_SERVICE_ACCOUNT": DAEMONS,
    "DAEMON_PRIORITY_CLASS": "system-node-critical",
    "DAEMON_LOG_LEVEL": "0",
    "MAX_NODES_PER_IMEX_DOMAIN": "18",
    "DAEMON_NETWORK_POLICY": "true",
}
EVERYTHING: Final = {
    "DAEMON_IMAGE": f"registry.example.com/dra:v1@{VALUES['everything']['image']['digest']}",
    "DAEMON_PULL_POLICY": "Always",
    "DAEMON_PULL_SECRET": "pull",
    "DAEMON_PRIORITY_CLASS": "mine",
    "DAEMON_LOG_LEVEL": "4",
    "MAX_NODES_PER_IMEX_DOMAIN": "36",
    "IMEX_TLS_ISSUER": "ClusterIssuer/imex-ca",
}


@pytest.mark.parametrize(
    ("values", "controller", "plugin"),
    [
        ({}, CONTROLLER, {"IMEX_MODE": "driverManaged"}),
        (VALUES["everything"], CONTROLLER | EVERYTHING, {"IMEX_MODE": "driverManaged"}),
        (
            VALUES["host-managed"],
            {"COMPUTE_DOMAINS": "true", "IMEX_MODE": "hostManaged"},
            {"IMEX_MODE": "hostManaged", "IMEX_HOST_SOCKET_PATH": "/run/nvidia-imex/ctrl.sock"},
        ),
        (domains(enabled=False), {}, {}),
        ({"logVerbosity": 4}, {"DAEMON_LOG_LEVEL": "4"}, {}),
        ({"logVerbosity": 4, **domains(daemon={"logVerbosity": 0})}, {"DAEMON_LOG_LEVEL": "0"}, {}),
        (domains(imex={"tls": {"issuerName": "ca"}}), {"IMEX_TLS_ISSUER": "Issuer/ca"}, {}),
        (domains(daemon={"networkPolicy": {"enabled": False}}), {"DAEMON_NETWORK_POLICY": "false"}, {}),
    ],
    ids=["defaults", "everything", "host-managed", "disabled", "verbose", "quiet", "tls", "no-network-policy"],
)
def test_each_process_is_told_what_the_values_say(values: JSON, controller: JSON, plugin: JSON) -> None:
    objects = render(values)
    found = told(objects, "cluster-controller")
    assert controller.items() <= found.items()
    assert plugin.items() <= told(objects, "kubeletplugin").items()
    if len(controller) != 1:
        names = {*CONTROLLER, *EVERYTHING}
        assert names & set(found) == set(controller)
    for container in ("cluster-controller", "controller", "kubeletplugin"):
        assert ("COMPUTE_DOMAINS" in told(objects, container)) == bool(controller)


def test_requests_of_daemons_equal_their_limits() -> None:
    resources = json.loads(told(render({}), "cluster-controller")["DAEMON_RESOURCES"])
    assert resources["requests"] == resources["limits"]
    assert set(resources["limits"]) == {"cpu", "memory"}


@pytest.mark.parametrize(
    ("values", "definitions", "classes", "account"),
    [
        ({}, 2, 2, True),
        (domains(installCRDs=False), 0, 2, True),
        (domains(imex={"mode": "hostManaged"}), 2, 1, False),
        (domains(enabled=False), 0, 0, False),
        ({"controller": {"enabled": False}}, 0, 2, False),  # another release has the controller
    ],
)
def test_objects_are_there_for_whom_they_are_needed(
    values: JSON, definitions: int, classes: int, account: bool
) -> None:
    objects = render(values)
    found = [one for one in objects if one["kind"] == "CustomResourceDefinition"]
    assert len(found) == definitions
    assert all(one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for one in found)
    assert (
        sum("compute-domain" in one["metadata"]["name"] for one in objects if one["kind"] == "DeviceClass") == classes
    )
    assert any(one["metadata"]["name"] == DAEMONS for one in objects if one["kind"] == "ServiceAccount") == account


# The API

SPEC: JSON = {"channel": {"resourceClaimTemplate": {"name": "workload"}}}
CONDITION: JSON = {
    "type": "DomainUp",
    "status": "True",
    "reason": "Up",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def domain(name: str = "one", **spec: Any) -> JSON:
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": COMPUTE_DOMAINS.api_version, "kind": "ComputeDomain", "metadata": meta, "spec": spec}


def with_status(**status: Any) -> JSON:
    return {**domain(**SPEC), "status": {"status": "Ready", **status}}


def node_row(**fields: Any) -> JSON:
    return {"name": "a", "ipAddress": "", "cliqueID": "", **fields}


INVALID: Mapping[str, tuple[JSON, str]] = {
    "no channel": (domain(), "channel"),
    "no template": (domain(channel={}), "resourceClaimTemplate"),
    "no name": (domain(channel={"resourceClaimTemplate": {}}), "name"),
    "unknown mode": (domain(channel={**SPEC["channel"], "allocationMode": "Some"}), "Some"),
    "negative number": (domain(**SPEC, numNodes=-1), "-1"),
    "unknown status": (with_status(status="Up"), "Up"),
    "unknown status of a node": (with_status(nodes=[node_row(status="Up")]), "Up"),
    "node without a clique": (with_status(nodes=[{"name": "a", "ipAddress": ""}]), "cliqueID"),
    "condition without a reason": (with_status(conditions=[{**CONDITION, "reason": ""}]), "reason"),
    "row without an index": (clique({key: text for key, text in ROW.items() if key != "index"}), "index"),
    "row with an unknown status": (clique({**ROW, "status": "Up"}), "Up"),
}
VALID: Mapping[str, JSON] = {
    "least": domain(**SPEC),
    "all": domain(channel={**SPEC["channel"], "allocationMode": "All"}, numNodes=4),
    "status": with_status(nodes=[node_row(index=-1)], conditions=[CONDITION]),
    "no rows": clique(),
    "rows": clique(ROW, {**ROW, "nodeName": "b", "index": 1}),
}


def definition(kind: str) -> JSON:
    found: JSON
    (found,) = (
        one["spec"]
        for one in domain_objects()
        if one["kind"] == "CustomResourceDefinition" and one["spec"]["names"]["kind"] == kind
    )
    return found


def schema(kind: str) -> JSON:
    (version,) = definition(kind)["versions"]
    found: JSON = version["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize("what", [*VALID, *INVALID])
def test_the_schemas_refuse_what_processes_cannot_read(what: str) -> None:
    value, wrong = INVALID.get(what, (VALID.get(what, {}), ""))
    problems = [str(one) for one in jsonschema.Draft202012Validator(schema(value["kind"])).iter_errors(value)]
    assert bool(problems) == bool(wrong)
    assert wrong in "".join(problems)
    if not wrong:
        (decode_domain if value["kind"] == "ComputeDomain" else decode_clique)(value)


def test_the_schemas_have_every_field_that_processes_write() -> None:
    assert set(schema("ComputeDomainClique")["properties"]["daemons"]["items"]["properties"]) == set(ROW)


def test_spec_of_a_compute_domain_is_immutable() -> None:
    (rule,) = schema("ComputeDomain")["properties"]["spec"]["x-kubernetes-validations"]
    assert rule["message"] == "A computeDomain.spec is immutable"
    for new, same in ((SPEC, True), ({**SPEC, "numNodes": 1}, False)):
        assert evaluate(rule["rule"], {"self": new, "oldSelf": SPEC}) == same


@REAL
def test_a_real_api_server_applies_the_schemas(cluster: dict[str, ApiClient]) -> None:
    admin = cluster["admin"]
    kinds = {"ComputeDomain": COMPUTE_DOMAINS, "ComputeDomainClique": CLIQUES}
    for what, (value, wrong) in INVALID.items():
        kind = kinds[value["kind"]]
        if "status" in value:
            admin.create(kind, {**value, "status": None}, "default")
            status = {"status": value["status"]}
            refused = denied(
                partial(admin.patch, COMPUTE_DOMAINS, "one", status, namespace="default", subresource="status")
            )
            admin.delete(COMPUTE_DOMAINS, "one", "default")
        else:
            refused = denied(partial(admin.create, kind, value, value["metadata"]["namespace"]))
        assert wrong in refused, what
        assert "422" in refused

    stored = admin.create(COMPUTE_DOMAINS, with_status(), "default")
    assert stored["spec"] == {"channel": {**SPEC["channel"], "allocationMode": "Single"}, "numNodes": 0}
    assert "status" not in stored
    change = {"spec": {"numNodes": 1}}
    assert "A computeDomain.spec is immutable" in denied(
        lambda: admin.patch(COMPUTE_DOMAINS, "one", change, namespace="default")
    )

    def write(**status: Any) -> JSON:
        return admin.patch(COMPUTE_DOMAINS, "one", {"status": status}, namespace="default", subresource="status")

    found = write(nodes=[node_row()], conditions=[CONDITION])["status"]
    assert found == {"status": "NotReady", "nodes": [node_row(status="NotReady")], "conditions": [CONDITION]}
    assert "Duplicate value" in denied(lambda: write(nodes=[node_row(), node_row()]))
    assert "Duplicate value" in denied(lambda: write(conditions=[CONDITION, CONDITION]))
    admin.delete(COMPUTE_DOMAINS, "one", "default")

    bare = {key: ROW[key] for key in ("nodeName", "ipAddress", "cliqueID", "index")}
    stored = admin.create(CLIQUES, clique({**bare, "other": "x"}), NAMESPACE)
    assert stored["daemons"] == [{**bare, "status": "NotReady"}]
    name = stored["metadata"]["name"]
    assert "Duplicate value" in denied(lambda: admin.patch(CLIQUES, name, {"daemons": [ROW, ROW]}, namespace=NAMESPACE))
    admin.delete(CLIQUES, name, NAMESPACE)
    for one in admin.list(DEFINITIONS).items:
        assert {condition["type"]: condition["status"] for condition in one["status"]["conditions"]}[
            "Established"
        ] == "True"
        assert "NonStructuralSchema" not in str(one["status"]["conditions"])
