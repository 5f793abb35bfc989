# SPDX-License-Identifier: Apache-2.0
"""The lowest cdiVersion that a spec's content needs."""

import json
from dataclasses import replace

import pytest

from kubeletplugin.containers.cdi import ContainerEdits
from kubeletplugin.containers.cdi.spec import CdiDevice, DeviceNode, Spec, dumps, minimum_version

from .specs import EDITS, EVERYTHING, MINIMAL


def device(edits: ContainerEdits = EDITS, name: str = "gpu0") -> Spec:
    return replace(MINIMAL, devices=(CdiDevice(name, edits),))


def for_all(edits: ContainerEdits) -> Spec:
    return replace(MINIMAL, container_edits=edits)


HOST_PATH = ContainerEdits(device_nodes=(DeviceNode("/dev/a", host_path="/dev/b"),))
GIDS = ContainerEdits(additional_gids=(44,))


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        pytest.param(MINIMAL, "0.3.0", id="nothing special"),
        pytest.param(device(HOST_PATH), "0.5.0", id="hostPath of a node"),
        pytest.param(for_all(HOST_PATH), "0.5.0", id="hostPath of a node, for all devices"),
        pytest.param(device(name="0gpu"), "0.5.0", id="device name with a digit in front"),
        pytest.param(device(name="gpu0"), "0.3.0", id="device name with a digit elsewhere"),
        pytest.param(device(GIDS), "0.7.0", id="additionalGids"),
        pytest.param(for_all(GIDS), "0.7.0", id="additionalGids, for all devices"),
        pytest.param(EVERYTHING, "0.7.0", id="all of it"),
    ],
)
def test_the_minimum_version_follows_from_the_content(spec: Spec, version: str) -> None:
    assert minimum_version(spec) == version
    assert json.loads(dumps(spec))["cdiVersion"] == version
