# SPDX-License-Identifier: Apache-2.0
"""The IMEX channel and the daemon of a node as DRA devices. Pure.

Names and attributes are those of NVIDIA's DRA driver. In addition, a channel has the clique of its node, and the domain
that the node is in. Unlike there, several pods of one domain can use the channel on a node.
"""

from dataclasses import replace
from typing import Final

from ..gpu.devices import Description, GpuDevices, without_tainted
from ..gpu.imex import FabricProgress, NodeFabric
from ..kube.resource import AttributeValue, Device, DeviceTaint, TaintEffect
from ..kube.resource.device import SliceFeatures
from .names import (
    CHANNEL_DEVICE,
    CHANNEL_TYPE,
    CLIQUE_ATTRIBUTE,
    DAEMON_DEVICE,
    DAEMON_TYPE,
    DOMAIN_ATTRIBUTE,
    FABRIC_TAINT,
)

_UNREADY: Final = (FabricProgress.IN_PROGRESS, FabricProgress.FAILED)


def describe_channels(fabric: NodeFabric, gpus: int, domain: str, features: SliceFeatures) -> Description:
    """The devices of a node with IMEX channels and this number of GPUs. `domain` is the UID of its domain, or empty.

    Channel 0 and the daemon can be allocated several times; the plugin prepares one daemon at a time. An API server
    that does not store this gets channel 0 under as many names as the node has GPUs, and one claim has the daemon. On
    one that stores no taints, a channel with a taint is withdrawn.
    """
    attributes: dict[str, AttributeValue] = {"type": CHANNEL_TYPE, "id": 0}
    if fabric.clique:
        attributes[CLIQUE_ATTRIBUTE] = fabric.clique
    if domain:
        attributes[DOMAIN_ATTRIBUTE] = domain
    taints = (DeviceTaint(FABRIC_TAINT, TaintEffect.NO_SCHEDULE, fabric.progress),)
    channel = Device(
        CHANNEL_DEVICE,
        attributes,
        taints=taints if fabric.progress in _UNREADY else (),
        allow_multiple_allocations=features.consumable_capacity,
    )
    aliases = range(1, 1 if features.consumable_capacity else gpus)
    made = GpuDevices(
        CHANNEL_DEVICE,
        (
            channel,
            *(replace(channel, name=f"{CHANNEL_DEVICE}-{number}") for number in aliases),
            # A user's claim for the daemon, which the plugin refuses, must not exclude the driver's own claim.
            Device(
                DAEMON_DEVICE,
                {"type": DAEMON_TYPE, "id": 0},
                allow_multiple_allocations=features.consumable_capacity,
            ),
        ),
    )
    return Description((made,)) if features.device_taints else without_tainted((made,))
