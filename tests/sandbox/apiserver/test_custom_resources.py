# SPDX-License-Identifier: Apache-2.0
"""Custom objects: their columns, rules and OpenAPI schemas are those of their CustomResourceDefinition."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.api import ApiClient, NotFoundError
from dra_driver.kube.kinds import DEFINITIONS, Kind
from dra_driver.sandbox.apiserver.groups import structural
from dra_driver.sandbox.apiserver.groups.jsonpath import JsonPathError, find, parse
from tests.support.apiserver import embedded
from tests.support.waiting import wait_for

WIDGETS = Kind("example.com/v1", "widgets", namespaced=True)
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer", "maximum": 9}}},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
OBJECT = {
    "metadata": {"labels": {"example.com/part": "p", "plain": "q"}},
    "list": [{"type": "First", "number": 1}, {"type": "Last", "number": 2}],
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (r".metadata.labels.example\.com/part", ["p"]),
        (".metadata.labels['plain']", ["q"]),
        ("{.metadata.labels[*]}", ["p", "q"]),
        (".list[0].type", ["First"]),
        (".list[-1].type", ["Last"]),
        (".list[-1:].type", ["Last"]),
        (".list[*].number", [1, 2]),
        ('.list[?(@.type=="Last")].number', [2]),
        (".list[?(@.number!=2)].type", ["First"]),
        (".list.type", []),
        (".absent[0].name", []),
    ],
)
def test_path_selects_values(path: str, found: list[Any]) -> None:
    assert find(OBJECT, parse(path)) == found


@pytest.mark.parametrize("path", ["", "..name", "name", ".list[?(@.number>1)]", ".list[(@.length-1)]"])
def test_path_with_another_step_is_refused(path: str) -> None:
    with pytest.raises(JsonPathError):
        parse(path)


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"minimum": 2}, 1, "Invalid value: 1: spec.f in body should be greater than or equal to 2"),
        ({"minimum": 2, "exclusiveMinimum": True}, 2, "Invalid value: 2: spec.f in body should be greater than 2"),
        ({"maximum": 2}, 3, "Invalid value: 3: spec.f in body should be less than or equal to 2"),
        ({"maximum": 2, "exclusiveMaximum": True}, 2, "Invalid value: 2: spec.f in body should be less than 2"),
        ({"multipleOf": 2}, 3, "Invalid value: 3: spec.f in body should be a multiple of 2"),
        ({"minLength": 2}, "a", 'Invalid value: "a": spec.f in body should be at least 2 chars long'),
        ({"maxLength": 2}, "abc", "Too long: may not be more than 2 bytes"),
        ({"pattern": "^a+$"}, "ab", "Invalid value: \"ab\": spec.f in body should match '^a+$'"),
        ({"minItems": 1}, [], "Invalid value: []: spec.f in body should have at least 1 items"),
        ({"maxItems": 1}, [1, 2], "Too many: 2: must have at most 1 items"),
        ({"minProperties": 1}, {}, "Invalid value: {}: spec.f in body should have at least 1 properties"),
        ({"maxProperties": 1}, {"a": 1, "b": 2}, "Too many: 2: must have at most 1 items"),
        ({"enum": ["x", "y"]}, "z", 'Unsupported value: "z": supported values: "x", "y"'),
        ({"allOf": [{"minimum": 2}]}, 1, "Invalid value: 1: spec.f in body should be greater than or equal to 2"),
        (
            {"anyOf": [{"minimum": 5}, {"enum": [2]}]},
            1,
            'Invalid value: 1: "spec.f" must validate at least one schema (anyOf)',
        ),
        (
            {"oneOf": [{"minimum": 5}, {"minimum": 2}]},
            6,
            'Invalid value: 6: "spec.f" must validate one and only one schema (oneOf). Found 2 valid alternatives',
        ),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            'Invalid value: {}: "spec.f" must validate one and only one schema (oneOf). Found none valid',
        ),
        ({"not": {"enum": [1]}}, 1, 'Invalid value: 1: "spec.f" must not validate the schema (not)'),
    ],
)
def test_value_that_breaks_a_rule_is_an_error(schema: structural.Schema, value: Any, problem: str) -> None:
    whole = {"properties": {"spec": {"properties": {"f": schema}}}}
    assert [str(error) for error in structural.problems({"spec": {"f": value}}, None, whole)] == [f"spec.f: {problem}"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"minimum": 2, "maximum": 2}, 2),
        ({"minLength": 2, "maxLength": 2, "pattern": "b"}, "ab"),
        ({"minItems": 1, "maxItems": 1}, [1]),
        ({"minProperties": 1, "maxProperties": 1}, {"a": 1}),
        ({"multipleOf": 2}, 4),
        ({"anyOf": [{"minimum": 5}, {"enum": [2]}], "oneOf": [{"minimum": 5}, {"minimum": 2}]}, 2),
        ({"allOf": [{"minimum": 2}], "not": {"enum": [1]}}, 2),
    ],
)
def test_value_at_the_limit_is_accepted(schema: structural.Schema, value: Any) -> None:
    assert list(structural.problems({"f": value}, None, {"properties": {"f": schema}})) == []


@pytest.mark.parametrize(
    ("schema", "items", "problem"),
    [
        ({"x-kubernetes-list-type": "set"}, ["a", "b", "a"], 'f[2]: Duplicate value: "a"'),
        (
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            [{"name": "a", "size": 1}, {"name": "a", "size": 2}],
            'f[1]: Duplicate value: {"name":"a"}',
        ),
    ],
)
def test_items_of_sets_and_maps_are_unique(schema: structural.Schema, items: list[Any], problem: str) -> None:
    problems = structural.problems({"f": items}, None, {"properties": {"f": schema}})
    assert [str(error) for error in problems] == [problem]


def test_rules_and_defaults_apply_to_the_values_of_a_map() -> None:
    schema = {"additionalProperties": {"properties": {"size": {"maximum": 1, "default": 3}}}}
    value: dict[str, Any] = {"a": {}}
    structural.set_defaults(value, schema)
    assert value == {"a": {"size": 3}}
    (error,) = structural.problems(value, None, schema)
    assert error.field == "a.size"


def definition(*columns: dict[str, Any]) -> dict[str, Any]:
    """A CustomResourceDefinition of widgets with these columns."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [{**version, "additionalPrinterColumns": list(columns)} if columns else version],
        },
    }


def create_widget(client: ApiClient, crd: dict[str, Any]) -> None:
    """Create the definition and a widget."""
    client.create(DEFINITIONS, crd)
    widget = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"size": 3},
        "status": {"when": "never", "names": ["a"], "ready": True},
    }

    def created() -> bool:
        try:
            client.create(WIDGETS, widget, "default")
        except NotFoundError:
            return False
        return True

    wait_for(created, "the definition to be established")


def table(client: ApiClient) -> tuple[list[tuple[str, int]], list[Any]]:
    """The columns of the widgets with their priorities, and the cells of the only widget."""
    answer = yaml.safe_load(client.send("GET", WIDGETS.path("default"), accept=TABLE))
    (row,) = answer["rows"]
    return [(column["name"], column["priority"]) for column in answer["columnDefinitions"]], row["cells"]


def test_columns_are_those_of_the_definition(tmp_path: Path) -> None:
    columns = (
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Ready", "type": "boolean", "jsonPath": ".status.ready", "priority": 1},
        {"name": "Names", "type": "string", "jsonPath": ".status.names"},
        {"name": "Text", "type": "integer", "jsonPath": ".status.when"},
        {"name": "When", "type": "date", "jsonPath": ".status.when"},
        {"name": "Absent", "type": "string", "jsonPath": ".status.absent"},
        {"name": "Unknown", "type": "string", "jsonPath": "..size"},
    )
    with embedded(tmp_path) as (_, _, client):
        create_widget(client, definition(*columns))
        heads, cells = table(client)
    assert heads == [("Name", 0), *((column["name"], column.get("priority", 0)) for column in columns)]
    assert cells == ["w", 3, True, '["a"]', None, "<invalid>", None, None]


def test_definition_without_columns_shows_the_age(tmp_path: Path) -> None:
    with embedded(tmp_path) as (_, _, client):
        create_widget(client, definition())
        heads, cells = table(client)
    assert heads == [("Name", 0), ("Age", 0)]
    assert re.fullmatch(r"\d+[smhd]", cells[1])


def test_openapi_document_has_the_schema_of_the_definition(tmp_path: Path) -> None:
    with embedded(tmp_path) as (_, _, client):
        create_widget(client, definition())
        schemas = client.get_path("/openapi/v3/apis/example.com/v1")["components"]["schemas"]
    declared = schemas["com.example.v1.Widget"]["properties"]
    assert declared["spec"] == SCHEMA["properties"]["spec"]
    assert declared["metadata"]["allOf"][0]["$ref"].rpartition("/")[2] in schemas
