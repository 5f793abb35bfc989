# SPDX-License-Identifier: Apache-2.0
"""The lowest cdiVersion that a spec's content needs, and what happens to one that says another."""

from dataclasses import replace

import pytest

from dra_driver.cdi import ContainerEdits, Mount
from dra_driver.cdi.codec import encode
from dra_driver.cdi.spec import Device, DeviceNode, Spec, minimum_version, validate

from .specs import EDITS, EVERYTHING, MINIMAL


def device(edits: ContainerEdits = EDITS, name: str = "gpu0", **annotations: str) -> Spec:
    return replace(MINIMAL, devices=(Device(name, edits, annotations),))


def for_all(edits: ContainerEdits) -> Spec:
    return replace(MINIMAL, container_edits=edits)


TYPED_MOUNT = ContainerEdits(mounts=(Mount("tmpfs", "/tmp", type="tmpfs"),))
HOST_PATH = ContainerEdits(device_nodes=(DeviceNode("/dev/a", host_path="/dev/b"),))
GIDS = ContainerEdits(additional_gids=(44,))


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        pytest.param(MINIMAL, "0.3.0", id="nothing special"),
        pytest.param(device(TYPED_MOUNT), "0.4.0", id="mount type"),
        pytest.param(for_all(TYPED_MOUNT), "0.4.0", id="mount type, for all devices"),
        pytest.param(device(HOST_PATH), "0.5.0", id="hostPath of a node"),
        pytest.param(for_all(HOST_PATH), "0.5.0", id="hostPath of a node, for all devices"),
        pytest.param(device(name="0gpu"), "0.5.0", id="device name with a digit in front"),
        pytest.param(device(name="gpu0"), "0.3.0", id="device name with a digit elsewhere"),
        pytest.param(device(color="green"), "0.6.0", id="annotation of a device"),
        pytest.param(replace(MINIMAL, annotations={"color": "green"}), "0.6.0", id="annotation of the spec"),
        pytest.param(replace(MINIMAL, kind="nvidia.com/gpu.mig"), "0.6.0", id="dot in the class"),
        pytest.param(device(GIDS), "0.7.0", id="additionalGids"),
        pytest.param(for_all(GIDS), "0.7.0", id="additionalGids, for all devices"),
        pytest.param(EVERYTHING, "0.7.0", id="all of it"),
    ],
)
def test_the_minimum_version_follows_from_the_content(spec: Spec, version: str) -> None:
    assert minimum_version(spec) == version
    assert encode(replace(spec, cdi_version=""))["cdiVersion"] == version


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.5.0", None),
        ("v0.5.0", None),
        ("1.1.0", None),
        ("0.4.0", "the content needs 0.5.0"),
        ("0.2.0", "the content needs 0.5.0"),
        ("1.2.0", "is not one of 0.1.0, "),
        ("0.5", "is not one of 0.1.0, "),
        ("5", "is not one of 0.1.0, "),
    ],
)
def test_a_version_that_is_given_must_be_known_and_not_too_old(version: str, problem: str | None) -> None:
    found = validate(replace(device(HOST_PATH), cdi_version=version))
    assert [p.path for p in found] == ([] if problem is None else ["cdiVersion"])
    assert all(problem is not None and problem in p.message for p in found)


def test_no_content_makes_a_version_below_the_floor_acceptable() -> None:
    assert [p.message for p in validate(replace(MINIMAL, cdi_version="0.2.0"))] == [
        "'0.2.0' is too old: no older one is accepted"
    ]
