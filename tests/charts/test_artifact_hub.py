# SPDX-License-Identifier: Apache-2.0
"""The annotations of Chart.yaml for Artifact Hub, in the format of its page on annotations of Helm charts.

Every value is a string. Lists are YAML in a string.
"""

from typing import Any

import jsonschema
import yaml

from .rendering import CHART

JSON = dict[str, Any]
PREFIX = "artifacthub.io/"
KNOWN = {"category", "crds", "crdsExamples", "license", "operator"}
"""Those of its page that the chart has."""
CATEGORIES = {
    "ai-machine-learning",
    "database",
    "integration-delivery",
    "monitoring-logging",
    "networking",
    "security",
    "skip-prediction",
    "storage",
    "streaming-messaging",
}
ANNOTATIONS: dict[str, str] = yaml.load((CHART / "Chart.yaml").read_bytes(), yaml.CSafeLoader)["annotations"]
DEFINITIONS = [yaml.load(path.read_bytes(), yaml.CSafeLoader) for path in sorted((CHART / "files/crds").glob("*.yaml"))]


def test_every_annotation_is_a_known_string() -> None:
    assert {name.removeprefix(PREFIX) for name in ANNOTATIONS} == KNOWN
    assert all(isinstance(value, str) for value in ANNOTATIONS.values())
    assert ANNOTATIONS[f"{PREFIX}category"] in CATEGORIES


def test_the_definitions_are_those_of_the_chart() -> None:
    listed: list[JSON] = yaml.safe_load(ANNOTATIONS[f"{PREFIX}crds"])
    assert all(set(one) == {"kind", "version", "name", "displayName", "description"} for one in listed)
    assert sorted((one["kind"], one["version"], one["name"]) for one in listed) == sorted(
        (one["spec"]["names"]["kind"], one["spec"]["versions"][0]["name"], one["metadata"]["name"])
        for one in DEFINITIONS
    )


def test_the_examples_are_objects_of_these_definitions() -> None:
    examples: list[JSON] = yaml.safe_load(ANNOTATIONS[f"{PREFIX}crdsExamples"])
    assert [one["kind"] for one in examples] == ["ComputeDomain"]
    for example in examples:
        (definition,) = (one for one in DEFINITIONS if one["spec"]["names"]["kind"] == example["kind"])
        spec = definition["spec"]
        assert example["apiVersion"] == f"{spec['group']}/{spec['versions'][0]['name']}"
        jsonschema.validate(example, spec["versions"][0]["schema"]["openAPIV3Schema"])
