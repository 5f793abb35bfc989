# SPDX-License-Identifier: Apache-2.0
"""What a runtime would refuse is found before it is written, with the place where it is."""

from dataclasses import replace
from typing import Any

import pytest

from dra_driver.cdi import ContainerEdits, Mount
from dra_driver.cdi.spec import Device, DeviceNode, Hook, Spec, validate

from .specs import EDITS, EVERYTHING, MINIMAL


def with_edits(edits: ContainerEdits) -> Spec:
    """A spec in which the only device makes `edits`, and so does the spec for all devices."""
    return replace(MINIMAL, devices=(Device("gpu0", edits),), container_edits=edits)


def node(**fields: Any) -> Spec:
    return with_edits(ContainerEdits(device_nodes=(replace(DeviceNode("/dev/a"), **fields),)))


def mount(host_path: str, container_path: str) -> Spec:
    return with_edits(ContainerEdits(mounts=(Mount(host_path, container_path),)))


def hook(name: str, path: str, **fields: Any) -> Spec:
    return with_edits(ContainerEdits(hooks=(replace(Hook(name, path), **fields),)))


GOOD = [
    MINIMAL,
    EVERYTHING,
    replace(MINIMAL, devices=(Device("a", EDITS), Device("b", EDITS))),
    replace(MINIMAL, devices=(Device("a", ContainerEdits(additional_gids=(0,))),)),
    node(type="p"),
    node(type="u", major=1, minor=0, permissions="rwm", file_mode=0, gid=2**32 - 1),
    mount("/a", "/b"),
    hook("poststop", "/bin/true"),
]

BAD = [
    (replace(MINIMAL, kind="gpu"), "kind", "is not a CDI kind"),
    (replace(MINIMAL, devices=()), "devices", "at least one device"),
    (replace(MINIMAL, devices=(Device("gpu/0", EDITS),)), "devices[0].name", "is not a device name"),
    (replace(MINIMAL, devices=(Device("a", EDITS), Device("a", EDITS))), "devices[1].name", "used twice"),
    (replace(MINIMAL, devices=(Device("a", ContainerEdits()),)), "devices[0].containerEdits", "not be empty"),
]

BAD_EDITS = [
    (with_edits(ContainerEdits(env=("A=b", "PATH"))), "env[1]", "not of the form NAME=value"),
    (with_edits(ContainerEdits(env=("=b",))), "env[0]", "not of the form NAME=value"),
    (node(path=""), "deviceNodes[0].path", "is required"),
    (node(path="dev/a"), "deviceNodes[0].path", "not an absolute path"),
    (node(host_path="dev/a"), "deviceNodes[0].hostPath", "not an absolute path"),
    (node(type="char"), "deviceNodes[0].type", "'char' is not one of b, c, u, p"),
    (node(permissions="rx"), "deviceNodes[0].permissions", "other letters than r, w and m"),
    (node(permissions="none"), "deviceNodes[0].permissions", "other letters than r, w and m"),
    (node(major=-1), "deviceNodes[0].major", "from 0 to 9223372036854775807, not -1"),
    (node(minor=2**63), "deviceNodes[0].minor", "from 0 to 9223372036854775807"),
    (node(file_mode=0o10000), "deviceNodes[0].fileMode", "from 0 to 4095, not 4096"),
    (node(gid=-1), "deviceNodes[0].gid", "from 0 to 4294967295"),
    (node(gid=2**32), "deviceNodes[0].gid", "from 0 to 4294967295"),
    (mount("", "/a"), "mounts[0].hostPath", "is required"),
    (mount("a", "/a"), "mounts[0].hostPath", "not an absolute path"),
    (mount("/a", ""), "mounts[0].containerPath", "is required"),
    (mount("/a", "a"), "mounts[0].containerPath", "not an absolute path"),
    (hook("createcontainer", "/bin/true"), "hooks[0].hookName", "not one of prestart, createRuntime, "),
    (hook("prestart", ""), "hooks[0].path", "is required"),
    (hook("prestart", "true"), "hooks[0].path", "not an absolute path"),
    (hook("prestart", "/bin/true", env=("A",)), "hooks[0].env[0]", "not of the form NAME=value"),
    (with_edits(ContainerEdits(additional_gids=(1, -1))), "additionalGids[1]", "from 0 to 4294967295"),
]


@pytest.mark.parametrize("spec", GOOD)
def test_a_valid_spec_has_no_problems(spec: Spec) -> None:
    assert validate(spec) == ()


@pytest.mark.parametrize(("spec", "path", "message"), BAD)
def test_each_problem_names_its_place(spec: Spec, path: str, message: str) -> None:
    (problem,) = validate(spec)
    assert problem.path == path
    assert message in problem.message


@pytest.mark.parametrize(("spec", "path", "message"), BAD_EDITS)
def test_edits_are_checked_for_each_device_and_for_all_devices(spec: Spec, path: str, message: str) -> None:
    problems = validate(spec)
    assert [problem.path for problem in problems] == [f"containerEdits.{path}", f"devices[0].containerEdits.{path}"]
    assert all(message in problem.message for problem in problems)


def test_every_problem_is_reported_at_once() -> None:
    spec = Spec("gpu", (Device("", ContainerEdits(env=("A",), mounts=(Mount("a", "b"),))),))
    assert [problem.path for problem in validate(spec)] == [
        "kind",
        "devices[0].name",
        "devices[0].containerEdits.env[0]",
        "devices[0].containerEdits.mounts[0].hostPath",
        "devices[0].containerEdits.mounts[0].containerPath",
    ]
