# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun cel`: what an expression means, and what it says about each device."""

import json

import pytest

from .conftest import DryRun, Write, gpu, slice_of

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


def test_devices_with_the_same_answer_share_a_line(dryrun: DryRun, slices: object) -> None:
    code, out, _ = dryrun("cel", H100, "--slices", slices)
    assert code == 0
    assert "selects 1 of 2 devices" in out
    assert [line.split() for line in out.splitlines()[-2:]] == [
        ["1", "node-a/gpu-0", "true"],
        ["1", "node-a/gpu-1", "false"],
    ]


def test_a_name_that_no_device_has_is_pointed_at(dryrun: DryRun, slices: object) -> None:
    code, out, _ = dryrun("cel", "device.attributes['gpu.nvidia.com'].productNam == 'x'", "--slices", slices)
    assert code == 0
    assert "did you mean 'productName'?" in out
    assert "selects 0 of 2 devices" in out
    assert "error: no such key" in out


@pytest.mark.parametrize("output", ["table", "json"])
def test_an_expression_that_does_not_compile_is_refused(output: str, dryrun: DryRun, slices: object) -> None:
    code, out, err = dryrun("cel", "device.driver = 'x'", "--slices", slices, "-o", output)
    assert code == 1
    assert "unexpected character" in out
    assert err == ""


def test_what_the_api_server_finds_too_complex_is_said(dryrun: DryRun, slices: object) -> None:
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


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("device.driver = 'gpu.nvidia.com'", "write == to compare"),
        ("device.capacity['gpu.nvidia.com'].memory >= quantity('40Gi')", "quantities are compared by methods"),
        (
            "device.attributes['gpu.nvidia.com'].memory == 1",
            "it is published as capacity: device.capacity['gpu.nvidia.com'].memory",
        ),
    ],
)
def test_usual_mistakes_are_known(expression: str, hint: str, dryrun: DryRun) -> None:
    assert hint in dryrun("cel", "--built-in", expression)[1]
