# SPDX-License-Identifier: Apache-2.0
"""What clients learn about the server before they use it."""

from typing import Any

from .conversation import Partner


def test_openapi_describes_every_kind_that_is_served(api: Partner) -> None:
    _, _, index = api.ask("GET", "/openapi/v3")
    for path, entry in index["paths"].items():
        code, _, document = api.ask("GET", entry["serverRelativeURL"])
        assert code == 200, path
        for reference in references(document):
            assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(references(item) for item in value))
    return set()


def test_openapi_has_what_kubectl_needs_for_patches_and_validation(api: Partner) -> None:
    _, _, document = api.ask("GET", "/openapi/v3/apis/apps/v1")
    containers = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    patch = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "apps", "kind": "Deployment", "version": "v1"}
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}
