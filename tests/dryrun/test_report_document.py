# SPDX-License-Identifier: Apache-2.0
"""The JSON and YAML output, held to the published schema and to its description."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.report import Report, to_document, to_json, to_yaml

from .conftest import DryRun
from .reports import every_kind

DOCS = Path(__file__).parents[2] / "docs/reference"
SCHEMA = json.loads((DOCS / "dryrun-output.schema.json").read_text(encoding="utf-8"))
EXAMPLES = Path(__file__).parents[2] / "examples"


def check(document: object) -> None:
    jsonschema: Any = importlib.import_module("jsonschema")  # published without types
    validator = jsonschema.Draft202012Validator(SCHEMA)
    problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
    assert problems == []


def properties(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
            yield from schema["properties"]
        for value in schema.values():
            yield from properties(value)


def objects(schema: object) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects(value)


@pytest.fixture(scope="module")
def report() -> Report:
    return every_kind()


def test_every_kind_of_answer_follows_the_schema(report: Report) -> None:
    document = to_document(report)
    check(document)
    assert [one["fits"] for one in document["demands"]] == [True, True, False, False]
    whole, mig, crowded, broken = document["demands"]
    assert whole["devices"][0]["uuid"].startswith("GPU-")
    assert mig["devices"][0]["driver"] == "gpu.nvidia.com"
    assert mig["devices"][0]["profile"] == "3g.40gb"
    assert mig["devices"][0]["parentUUID"].startswith("GPU-")
    assert crowded["changes"]
    assert crowded["refused"][0]["nodes"] == [crowded["picture"]["node"]]
    assert broken["refused"][0]["fatal"]
    assert broken["picture"] is None


@pytest.mark.parametrize("output", ["json", "yaml"])
@pytest.mark.parametrize("flags", [(), ("--replicas", "3")], ids=" ".join)
def test_output_follows_the_schema(output: str, flags: tuple[str, ...], dryrun: DryRun) -> None:
    code, out, _ = dryrun("--built-in", EXAMPLES / "mig-slices.yaml", "-o", output, *flags)
    assert code == 0
    document = yaml.load(out, yaml.CSafeLoader)
    check(document)
    assert document["inputs"]["source"] == "built-in example nodes (no cluster was asked)"
    (gpu,) = [
        one for one in document["demands"][0]["picture"]["gpus"] if any(cell["proposedFor"] for cell in one["cells"])
    ]
    assert [cell["slices"] for cell in gpu["cells"]] == [2, 1, 1, 4]


def test_yaml_says_the_same_as_json(report: Report) -> None:
    document = to_document(report)
    assert yaml.load(to_yaml(document), yaml.CSafeLoader) == json.loads(to_json(document)) == document


def test_devices_that_an_earlier_demand_gets_are_held_in_the_pictures_that_follow(report: Report) -> None:
    _, mig, crowded, _ = to_document(report)["demands"]
    held = {claim for gpu in crowded["picture"]["gpus"] for cell in gpu["cells"] for claim in cell["heldBy"]}
    assert {one["claim"] for one in mig["devices"]} <= held


def test_the_schema_is_closed_and_leaves_out_nothing() -> None:
    for schema in objects(SCHEMA):
        assert schema["additionalProperties"] is False
        optional = {"leftover", "queues", "replicas"} if "apiVersion" in schema["properties"] else set()
        assert set(schema["required"]) == set(schema["properties"]) - optional


def test_the_schema_refuses_other_documents(report: Report) -> None:
    changes: list[dict[str, object]] = [{"apiVersion": "v1"}, {"more": 1}, {"fits": "yes"}, {"demands": [{}]}]
    for change in changes:
        with pytest.raises(AssertionError):
            check({**to_document(report), **change})


def test_every_field_is_described() -> None:
    words = set(re.findall(r"\w+", (DOCS / "dryrun-output.md").read_text(encoding="utf-8")))
    assert set(properties(SCHEMA)) <= words
