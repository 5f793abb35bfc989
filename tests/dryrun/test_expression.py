# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun cel`: what an expression means, and what it says about each device."""

import json
import re

import pytest

from .conftest import DryRun, Write, gpu, slice_of
from .test_hostile import CLAIM

H100 = "device.attributes['gpu.nvidia.com'].productName.contains('H100')"


@pytest.fixture
def slices(write: Write) -> object:
    return write("slices.json", slice_of("node-a", gpu("gpu-0"), gpu("gpu-1", "NVIDIA A100-SXM4-80GB")))


def test_each_device_is_answered_for(dryrun: DryRun, slices: object) -> None:
    code, out, _ = dryrun("cel", H100, "--slices", slices, "-o", "json")
    assert code == 0
    answer = json.loads(out)
    assert [(one["device"], one["value"]) for one in answer["devices"]] == [("gpu-0", True), ("gpu-1", False)]
    assert answer["type"] == "bool"
    assert answer["maxCost"] >= max(one["cost"] for one in answer["devices"])
    assert answer["refusedByApiServer"] is None


def test_devices_with_the_same_answer_share_a_line_that_shows_what_was_found(dryrun: DryRun, slices: object) -> None:
    code, out, _ = dryrun("cel", H100, "--slices", slices)
    assert code == 0
    assert "selects 1 of 2 devices" in out
    assert [re.split("  +", line) for line in out.splitlines()[-3:]] == [
        ["COUNT", "ANSWER", "FOUND", "DEVICES"],
        ["1", "true", "productName=NVIDIA H100 80GB HBM3", "node-a/gpu-0"],
        ["1", "false", "productName=NVIDIA A100-SXM4-80GB", "node-a/gpu-1"],
    ]


def test_false_part_of_a_conjunction_is_shown_with_its_values(dryrun: DryRun, slices: object) -> None:
    memory = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('90Gi')) > 0"
    out = dryrun("cel", f"{H100} && {memory}", "--slices", slices)[1]
    assert [re.split("  +", line)[1:3] for line in out.splitlines()[-2:]] == [
        [f"false: {memory}", "memory=80Gi"],
        [f"false: {H100}", "productName=NVIDIA A100-SXM4-80GB"],
    ]
    found = json.loads(dryrun("cel", f"{H100} && {memory}", "--slices", slices, "-o", "json")[1])["devices"]
    assert [(one["falsePart"], one["values"]) for one in found] == [
        (memory, {"memory": "80Gi"}),
        (H100, {"productName": "NVIDIA A100-SXM4-80GB"}),
    ]


def test_values_that_differ_on_each_device_do_not_fill_the_terminal(dryrun: DryRun) -> None:
    out = dryrun("cel", "--built-in", "device.attributes['gpu.nvidia.com'].uuid == 'GPU-1'")[1]
    assert len(out.splitlines()) < 30
    assert "more combinations of values" in out


def test_a_name_that_no_device_has_is_pointed_at(dryrun: DryRun, slices: object) -> None:
    code, out, _ = dryrun("cel", "device.attributes['gpu.nvidia.com'].productNam == 'x'", "--slices", slices)
    assert code == 1
    assert "did you mean 'productName'?" in out
    assert "selects 0 of 2 devices" in out
    assert "it fails on every device: the scheduler gives up pods with this selector" in out
    assert "error: no such key" in out


@pytest.mark.parametrize("output", ["table", "json"])
def test_an_expression_that_does_not_compile_is_refused(output: str, dryrun: DryRun, slices: object) -> None:
    code, out, err = dryrun("cel", "device.driver = 'x'", "--slices", slices, "-o", output)
    assert code == 1
    assert "unexpected character" in out
    assert err == ""


def test_expression_that_is_too_complex_for_the_api_server_is_reported(dryrun: DryRun, slices: object) -> None:
    nested = "['a', 'b'].map(x, x + x).exists(y, y == y + 'x') && type(device.driver) == string"
    code, out, _ = dryrun("cel", nested, "--slices", slices)
    assert code == 1
    assert "the API server refuses it: too complex" in out


def test_functions_depend_on_the_release(dryrun: DryRun, slices: object) -> None:
    arguments = ("cel", "semver('v1.2', true).major() == 1", "--slices", slices, "--kubernetes-version")
    assert dryrun(*arguments, "1.36")[0] == 0
    assert dryrun(*arguments, "1.32")[0] == 1
    code, _, err = dryrun(*arguments, "1.12")
    assert code == 2
    assert "'1.12' is not one of" in err


NAMES = "device.attributes['gpu.nvidia.com']"
VERSION = "driverVersion is a version, and versions are compared by methods"
QUANTITY = "quantities are compared by methods"


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("device.driver = 'gpu.nvidia.com'", "write == to compare"),
        ("device.driver == 'a' and true", "write &&; and is no operator"),
        ("device.driver == 'a' & true", "write &&; & is no operator"),
        ("device.capacity['gpu.nvidia.com'].memory >= quantity('40Gi')", QUANTITY),
        ("device.capacity['gpu.nvidia.com'].memory == '40Gi'", QUANTITY),
        (f"{NAMES}.memory == 1", "it is published as capacity: device.capacity['gpu.nvidia.com'].memory"),
        ("device.capacity['gpu.nvidia.com'].uuid.isInteger()", "it is published as attribute: "),
        (f"{NAMES}.driverVersion >= '580'", VERSION),
        (f"{NAMES}.driverVersion == '580.0.0'", VERSION),
        (f"{NAMES}.driverVersion.startsWith('580')", VERSION),
        (f"{NAMES}.driverVersion > semver('580.0.0')", VERSION),
        ("semver('1.0.0') > semver('2.0.0')", "versions are compared by methods"),
        ("device.attributes['gpu.nvidia.com/uuid'] == 'x'", f"two steps: {NAMES}.uuid"),
        ("device.attributes.uuid == 'x'", f"name the domain first: {NAMES}.uuid"),
        ("device.attributes['uuid'] == 'x'", f"name the domain first: {NAMES}.uuid"),
    ],
)
def test_usual_mistakes_are_known(expression: str, hint: str, dryrun: DryRun, write: Write) -> None:
    assert hint in dryrun("cel", "--built-in", expression)[1]
    assert hint in str(json.loads(dryrun("cel", "--built-in", expression, "-o", "json")[1])["hints"])
    exactly = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    wanted = {**CLAIM, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    assert hint in dryrun("lint", "--built-in", write("claim.json", wanted))[1]


@pytest.mark.parametrize(
    "expression",
    [
        f"{NAMES}.driverVersion.isGreaterThan(semver('1.0.0')) && device.driver == 'a = b & c or d'",
        f"{NAMES}.driverVersion == semver('580.0.0') || {NAMES}.productName == 'a'",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
        f"{NAMES}.uuid <= 'GPU-1' && 'orion' in ['and']",
    ],
)
def test_correct_expression_gets_no_hint(expression: str, dryrun: DryRun) -> None:
    assert "hint" not in dryrun("cel", "--built-in", expression)[1]
