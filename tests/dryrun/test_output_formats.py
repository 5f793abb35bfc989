# SPDX-License-Identifier: Apache-2.0
"""The output formats of all subcommands."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dra_driver.dryrun.main import SUBCOMMANDS
from dra_driver.dryrun.main import dryrun as group

from .conftest import DryRun, Write, gpu, slice_of
from .test_command import claim

WITHOUT_OUTPUT = {"completion", "help", "version"}
OBJECTS = {"node-template", "snapshot"}
"""Subcommands that write Kubernetes objects."""
CHANGES = {"drain"}
"""Subcommands whose default is YAML: it has only the objects, for kubectl."""
REPORTS = sorted(set(SUBCOMMANDS) - WITHOUT_OUTPUT - OBJECTS)
WITH_EXAMPLE = ["capacity", "cel", "fit", "gpus", "lint", "migrate"]
"""Subcommands that `arguments` has."""


def formats(name: str) -> list[str]:
    """The values of -o."""
    (output,) = (param for param in group.commands[name].params if param.name == "output")
    assert isinstance(output.type, click.Choice)
    return [str(choice) for choice in output.type.choices]


@pytest.mark.parametrize("name", REPORTS)
def test_subcommands_with_a_report_have_the_same_formats(name: str) -> None:
    first = ["yaml", "table", "wide", "json"] if name in CHANGES else ["table", "wide", "json", "yaml"]
    assert formats(name)[:4] == first
    assert set(formats(name)[4:]) <= {"html", "github", "script"}


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_subcommands_that_write_objects_have_yaml_and_json(name: str) -> None:
    assert formats(name) == ["yaml", "json"]


@pytest.fixture
def arguments(write: Write) -> dict[str, list[object]]:
    """Arguments of each subcommand with which it has a report."""
    slices = write("slices.yaml", slice_of("node-1", gpu("gpu-0")))
    demand = write("claim.yaml", claim())
    nodes = Path(__file__).parent / "migrate/clusters/single-node"
    return {
        "fit": ["--slices", slices, demand],
        "capacity": ["--slices", slices],
        "cel": ["--slices", slices, "device.driver == 'gpu.nvidia.com'"],
        "lint": ["--slices", slices, write("wrong.yaml", claim().replace("wanted", "A_B"))],
        "migrate": [nodes],
        "gpus": ["--slices", slices],
    }


def loaded(out: str, output: str) -> Any:
    return json.loads(out) if output == "json" else yaml.load(out, yaml.CSafeLoader)


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_json_and_yaml_are_the_same_document(name: str, arguments: dict[str, list[object]], dryrun: DryRun) -> None:
    documents = [loaded(dryrun(name, *arguments[name], "-o", output)[1], output) for output in ("json", "yaml")]
    assert isinstance(documents[0], dict)
    assert documents[0] == documents[1]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_wide_has_the_lines_of_the_table_or_more(name: str, arguments: dict[str, list[object]], dryrun: DryRun) -> None:
    table, wide = (dryrun(name, *arguments[name], "-o", output)[1] for output in ("table", "wide"))
    assert table
    assert len(wide) >= len(table)


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_error_is_a_document_in_the_formats_for_programs(output: str, dryrun: DryRun) -> None:
    code, out, _ = dryrun("capacity", "--slices", "missing.yaml", "-o", output)
    assert code == 2
    assert loaded(out, output)["kind"] == "DryRunError"


def test_error_is_no_document_if_nobody_asked_for_a_format(dryrun: DryRun) -> None:
    code, out, err = dryrun("node-template", "missing")
    assert code == 2
    assert out == ""
    assert "missing" in err
