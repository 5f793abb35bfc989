# SPDX-License-Identifier: Apache-2.0
"""The two kinds of spec that this driver writes: the node's driver, once, and each claim's devices.

Kinds and names of claims are those of NVIDIA's DRA driver. A container asks for `BASE_DEVICE` and for each of its
devices by `claim_device`. The claim's uid is in the name so that a runtime never serves a cached device of an
earlier claim.

Every device that kubelet reports to the runtime comes with `BASE_DEVICE`, so a container of eight GPUs asks for it
eight times. containerd counts a repeated name once, CRI-O makes its edits each time. A spec's own edits are made once
by both, therefore the driver is there, and the device itself has only what may be said again.
"""

from collections.abc import Mapping

from .names import qualified_name
from .spec import ContainerEdits, Device, Spec

CLAIM_KIND = "k8s.gpu.nvidia.com/claim"
BASE_KIND = "k8s.gpu.nvidia.com/driver"
BASE_DEVICE = qualified_name(BASE_KIND, "common")
"""What every container with a GPU asks for."""

VOID = "NVIDIA_VISIBLE_DEVICES=void"
"""Keeps the older injection of nvidia-container-runtime from adding every GPU of the node."""


def base_spec(edits: ContainerEdits) -> Spec:
    """The node's own spec, with `common_edits`."""
    return Spec(BASE_KIND, (Device("common", ContainerEdits(env=(VOID,))),), container_edits=edits)


def claim_spec(claim_uid: str, devices: Mapping[str, ContainerEdits]) -> Spec:
    """The spec of the claim `claim_uid`: edits by device name as the ResourceSlice has it (`gpu-0`)."""
    return Spec(CLAIM_KIND, tuple(Device(f"{claim_uid}-{name}", edits) for name, edits in devices.items()))


def claim_device(claim_uid: str, device: str) -> str:
    """What a container asks for to get `device` of the claim. ValueError when that is not a CDI name."""
    return qualified_name(CLAIM_KIND, f"{claim_uid}-{device}")
