# SPDX-License-Identifier: Apache-2.0
"""What happens to objects after a write: owners, finalizers, namespaces that go."""

from typing import Any

import pytest

from .conftest import CONFIG_MAPS
from .conversation import Partner

MERGE = "application/merge-patch+json"


def until_gone(api: Partner, path: str) -> None:
    """Asks until the object is gone; the test's own limit ends it otherwise."""
    while api.ask("GET", path)[0] != 404:
        pass


def make(api: Partner, name: str, *owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        for owner in owners
    ]
    meta = {"name": name, **({"ownerReferences": references} if references else {}), **metadata}
    code, _, body = api.ask("POST", CONFIG_MAPS, {"metadata": meta})
    assert code == 201, body
    made: dict[str, Any] = body
    return made


def test_dependents_go_with_their_last_owner(api: Partner) -> None:
    one, two = make(api, "owner-1"), make(api, "owner-2")
    make(api, "both", one, two)
    make(api, "only", one)
    make(api, "grandchild", api.ask("GET", f"{CONFIG_MAPS}/only")[2])
    api.ask("DELETE", f"{CONFIG_MAPS}/owner-1")
    until_gone(api, f"{CONFIG_MAPS}/grandchild")
    assert api.ask("GET", f"{CONFIG_MAPS}/only")[0] == 404
    left = api.ask("GET", f"{CONFIG_MAPS}/both")[2]["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in left] == ["owner-2"]
    api.ask("DELETE", f"{CONFIG_MAPS}/owner-2")
    until_gone(api, f"{CONFIG_MAPS}/both")


def test_an_object_whose_owner_never_was_goes_too(api: Partner) -> None:
    make(api, "stray", {"metadata": {"name": "nobody", "uid": "00000000-0000-0000-0000-000000000000"}})
    until_gone(api, f"{CONFIG_MAPS}/stray")


def test_an_owner_of_a_kind_that_is_not_served_is_left_alone(api: Partner) -> None:
    owner = {"apiVersion": "elsewhere.example.com/v1", "kind": "Thing", "name": "t", "uid": "u"}
    api.ask("POST", CONFIG_MAPS, {"metadata": {"name": "foreign", "ownerReferences": [owner]}})
    make(api, "another")
    api.ask("DELETE", f"{CONFIG_MAPS}/another")
    assert api.ask("GET", f"{CONFIG_MAPS}/foreign")[0] == 200


def test_orphaning_leaves_the_dependents(api: Partner) -> None:
    owner = make(api, "leaves")
    make(api, "orphan", owner)
    api.ask("DELETE", f"{CONFIG_MAPS}/leaves?propagationPolicy=Orphan")
    until_gone(api, f"{CONFIG_MAPS}/leaves")
    assert "ownerReferences" not in api.ask("GET", f"{CONFIG_MAPS}/orphan")[2]["metadata"]


def test_a_foreground_deletion_waits_for_dependents_that_block_it(api: Partner) -> None:
    owner = make(api, "front")
    child = {"apiVersion": "v1", "kind": "ConfigMap", "name": "front", "uid": owner["metadata"]["uid"]}
    meta = {"name": "slow", "finalizers": ["example.com/hold"]}
    api.ask("POST", CONFIG_MAPS, {"metadata": {**meta, "ownerReferences": [{**child, "blockOwnerDeletion": True}]}})
    _, _, going = api.ask("DELETE", f"{CONFIG_MAPS}/front?propagationPolicy=Foreground")
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"]
    while "deletionTimestamp" not in api.ask("GET", f"{CONFIG_MAPS}/slow")[2]["metadata"]:
        pass
    assert api.ask("GET", f"{CONFIG_MAPS}/front")[0] == 200
    api.ask("PATCH", f"{CONFIG_MAPS}/slow", {"metadata": {"finalizers": None}}, Content_Type=MERGE)
    until_gone(api, f"{CONFIG_MAPS}/front")


def test_the_last_finalizer_lets_a_deleted_object_go(api: Partner) -> None:
    make(api, "held", finalizers=["example.com/a", "example.com/b"])
    code, _, body = api.ask("DELETE", f"{CONFIG_MAPS}/held")
    assert code == 200
    assert body["metadata"]["deletionGracePeriodSeconds"] == 0
    patch = {"metadata": {"finalizers": ["example.com/b"]}}
    assert api.ask("PATCH", f"{CONFIG_MAPS}/held", patch, Content_Type=MERGE)[0] == 200
    assert api.ask("GET", f"{CONFIG_MAPS}/held")[0] == 200
    api.ask("PATCH", f"{CONFIG_MAPS}/held", {"metadata": {"finalizers": []}}, Content_Type=MERGE)
    assert api.ask("GET", f"{CONFIG_MAPS}/held")[0] == 404


def test_a_namespace_goes_with_everything_in_it(api: Partner) -> None:
    api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "short-lived"}})
    inside = "/api/v1/namespaces/short-lived/configmaps"
    api.ask("POST", inside, {"metadata": {"name": "a"}})
    api.ask("POST", inside, {"metadata": {"name": "b", "finalizers": ["example.com/hold"]}})
    _, _, going = api.ask("DELETE", "/api/v1/namespaces/short-lived")
    assert "deletionTimestamp" in going["metadata"]
    until_gone(api, f"{inside}/a")
    assert api.ask("GET", "/api/v1/namespaces/short-lived")[2]["status"]["phase"] == "Terminating"
    assert api.ask("POST", inside, {"metadata": {"name": "late"}})[0] == 403
    api.ask("PATCH", f"{inside}/b", {"metadata": {"finalizers": None}}, Content_Type=MERGE)
    until_gone(api, "/api/v1/namespaces/short-lived")


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
def test_the_namespaces_of_the_system_stay(api: Partner, name: str) -> None:
    assert api.ask("DELETE", f"/api/v1/namespaces/{name}")[0] == 403
    assert api.ask("GET", f"/api/v1/namespaces/{name}")[2]["status"]["phase"] == "Active"


def test_a_pod_on_a_node_is_given_its_grace_period(api: Partner) -> None:
    pods = "/api/v1/namespaces/default/pods"
    spec = {"containers": [{"name": "a", "image": "b"}], "terminationGracePeriodSeconds": 7, "nodeName": "n"}
    api.ask("POST", pods, {"metadata": {"name": "graceful"}, "spec": spec})
    assert api.ask("DELETE", f"{pods}/graceful")[2]["metadata"]["deletionGracePeriodSeconds"] == 7
    assert api.ask("DELETE", f"{pods}/graceful?gracePeriodSeconds=3")[2]["metadata"]["deletionGracePeriodSeconds"] == 3
    assert api.ask("DELETE", f"{pods}/graceful?gracePeriodSeconds=30")[2]["metadata"]["deletionGracePeriodSeconds"] == 3
    api.ask("DELETE", f"{pods}/graceful?gracePeriodSeconds=0")
    assert api.ask("GET", f"{pods}/graceful")[0] == 404


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(plural: str, **version: Any) -> dict[str, Any]:
    """A CustomResourceDefinition of one version."""
    names = {"plural": plural, "kind": plural.title()}
    versions = [{"name": "v1", "served": True, "storage": True, **version}]
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
    return {"metadata": {"name": f"{plural}.example.com"}, "spec": spec}


def test_a_custom_resource_is_stored_as_it_is_until_its_definition_goes(api: Partner) -> None:
    code, _, made = api.ask("POST", DEFINITIONS, definition("domains", subresources={"status": {}}))
    assert code == 201, made
    assert {condition["type"]: condition["status"] for condition in made["status"]["conditions"]}[
        "Established"
    ] == "True"
    domains = "/apis/example.com/v1/namespaces/default/domains"
    spec = {"nodes": 3, "empty": {}, "anything": [None, {"a": 1}]}
    assert api.ask("POST", domains, {"metadata": {"name": "d", "unknown": 1}, "spec": spec})[0] == 201
    changed = {"spec": {"nodes": 4}, "status": {"ready": True}}
    assert "status" not in api.ask("PATCH", f"{domains}/d", changed, Content_Type=MERGE)[2]
    api.ask("PATCH", f"{domains}/d/status", changed, Content_Type=MERGE)
    _, _, listed = api.ask("GET", domains)
    assert listed["kind"] == "DomainsList"
    assert listed["items"][0]["spec"] == {**spec, "nodes": 4}
    assert listed["items"][0]["status"] == {"ready": True}
    assert "unknown" not in listed["items"][0]["metadata"]
    assert "domains" in str(api.ask("GET", "/apis/example.com/v1")[2])
    assert api.ask("GET", "/openapi/v3/apis/example.com/v1")[0] == 200
    api.ask("DELETE", f"{DEFINITIONS}/domains.example.com")
    assert api.ask("GET", domains)[0] == 404
    assert api.ask("POST", DEFINITIONS, definition("domains"))[0] == 201
    assert api.ask("GET", domains)[2]["items"] == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"group": "example"}, "spec.group"),
        ({"scope": "Everywhere"}, "spec.scope"),
        ({"names": {"plural": "others", "kind": "Others"}}, "metadata.name"),
        ({"versions": []}, "spec.versions"),
    ],
)
def test_a_definition_that_cannot_be_served_is_refused(api: Partner, change: dict[str, Any], field: str) -> None:
    wrong = definition("wrongs")
    wrong["spec"] |= change
    code, _, body = api.ask("POST", DEFINITIONS, wrong)
    assert code == 422
    assert field in [cause["field"] for cause in body["details"]["causes"]]
