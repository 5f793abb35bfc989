# SPDX-License-Identifier: Apache-2.0
"""What a runtime would refuse, and what comes from flags and claims, is found before it is written."""

from dataclasses import replace

import pytest

from kubeletplugin.containers.cdi import ContainerEdits, Mount
from kubeletplugin.containers.cdi.spec import CdiDevice, DeviceNode, Hook, Spec, validate

from .specs import EDITS, EVERYTHING, MINIMAL


def with_edits(edits: ContainerEdits) -> Spec:
    """A spec in which the only device makes `edits`, and so does the spec for all devices."""
    return replace(MINIMAL, devices=(CdiDevice("gpu0", edits),), container_edits=edits)


def mount(host_path: str, container_path: str) -> Spec:
    return with_edits(ContainerEdits(mounts=(Mount(host_path, container_path),)))


def named(name: str) -> Spec:
    return replace(MINIMAL, devices=(CdiDevice(name, EDITS),))


GOOD = [
    MINIMAL,
    EVERYTHING,
    replace(MINIMAL, devices=(CdiDevice("a", EDITS), CdiDevice("b", EDITS))),
    replace(MINIMAL, devices=(CdiDevice("a", ContainerEdits(additional_gids=(0,))),)),
    mount("/a", "/b"),
    *map(named, ("0", "gpu-0", "9f53-gpu-0-mig-1g.10gb-19-0", "a:b_c", "A")),
]

REFUSED = [
    (replace(MINIMAL, devices=(CdiDevice("a", ContainerEdits()),)), "device a has no edits"),
    (with_edits(ContainerEdits(device_nodes=(DeviceNode(""),))), "'' is not an absolute path"),
    (mount("", "/a"), "'' is not an absolute path"),
    (mount("/a", ""), "'' is not an absolute path"),
    (with_edits(ContainerEdits(hooks=(Hook("prestart", ""),))), "'' is not an absolute path"),
    *(
        (named(name), "is not a CDI device name")
        for name in ("", "-gpu", "gpu-", "gpu/0", "gpu=0", "gpu 0", "gpu\n", "é")
    ),
]

RELATIVE = [
    (with_edits(ContainerEdits(device_nodes=(DeviceNode("dev/a"),))), "'dev/a' is not an absolute path"),
    (with_edits(ContainerEdits(device_nodes=(DeviceNode("/dev/a", "dev/b"),))), "'dev/b' is not an absolute path"),
    (mount("a", "/a"), "'a' is not an absolute path"),
    (mount("/a", "a"), "'a' is not an absolute path"),
    (with_edits(ContainerEdits(hooks=(Hook("prestart", "true"),))), "'true' is not an absolute path"),
]
"""SPEC.md asks for absolute paths, and the library leaves them to the runtime."""


@pytest.mark.parametrize("spec", GOOD)
def test_a_valid_spec_has_no_problems(spec: Spec) -> None:
    assert validate(spec) == []


@pytest.mark.parametrize(("spec", "message"), REFUSED + RELATIVE)
def test_each_problem_names_what_is_wrong(spec: Spec, message: str) -> None:
    assert message in validate(spec)[0]


def test_every_problem_is_reported_at_once() -> None:
    spec = Spec("v/c", (CdiDevice("", ContainerEdits(mounts=(Mount("a", "b"),))), CdiDevice("x", ContainerEdits())))
    assert len(validate(spec)) == 4
