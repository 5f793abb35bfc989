# SPDX-License-Identifier: Apache-2.0
"""The rules of a policy. Every rule that matches a GPU applies; if two rules set the same field, the later one wins."""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase

from ...resource import TaintEffect
from ..inventory import Gpu, PciGpu

_BRACKETS = re.compile(r"\[(.+)\]")


class MigPolicy(enum.StrEnum):
    """How a GPU that can be split is offered.

    AUTO: whole while its MIG mode is off, else as MIG devices that are made for claims. STATIC: whole, or as exactly
    the MIG devices that an administrator made. DYNAMIC: whole and as MIG devices at once, whichever is claimed first,
    where the mode can be switched without a reset (Hopper and later); elsewhere like AUTO.
    """

    AUTO = "auto"
    STATIC = "static"
    DYNAMIC = "dynamic"


class Shares(enum.StrEnum):
    """How a device may be allocated to several claims at once: the modes of the official --consumable-shares.

    UNLIMITED: as often as wanted; memory may be asked for. MEMORY: as long as memory lasts; who asks for no amount gets
    all of it. A number instead of a mode: to so many claims.
    """

    DISABLED = "disabled"
    UNLIMITED = "unlimited"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class GpuPolicy:
    """What is wanted of one GPU. `binding_conditions`: pods that get it are bound only when the plugin has agreed."""

    publish: bool = True
    mig: MigPolicy = MigPolicy.AUTO
    passthrough: bool = False
    health: bool = True
    shares: Shares | int = Shares.DISABLED
    binding_conditions: bool = False


@dataclass(frozen=True, slots=True)
class GpuRule:
    """What is wanted (None: nothing said) of the GPUs that match everything given; an empty tuple matches all.

    `models` and `nodes` are globs. A model is compared in lower case, with `-` for spaces.
    """

    models: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    publish: bool | None = None
    mig: MigPolicy | None = None
    passthrough: bool | None = None
    health: bool | None = None
    shares: Shares | int | None = None
    binding_conditions: bool | None = None

    def matches_node(self, name: str) -> bool:
        """Whether the rule is for GPUs of this node."""
        return not self.nodes or any(fnmatchcase(name, glob) for glob in self.nodes)

    def matches(self, gpu: Gpu | None, pci: PciGpu | None) -> bool:
        """Whether the rule is for this GPU, nodes aside. What is not known of a GPU does not match."""
        address = pci.address if pci is not None else gpu.pci_address if gpu is not None else None
        return (
            (
                not self.models
                or any(fnmatchcase(name, _plain(glob)) for name in _models(gpu, pci) for glob in self.models)
            )
            and (not self.indexes or (gpu is not None and gpu.index in self.indexes))
            and (not self.uuids or (gpu is not None and gpu.uuid in self.uuids))
            and (not self.pci_addresses or address in self.pci_addresses)
        )


_WANTED = tuple(one.name for one in fields(GpuPolicy))


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """What is made of bad news. Times are in seconds.

    `application_xids` are taken for errors of the application, beside those known as such; `effect` is that of the
    taints for all others. A GPU that is gone is withdrawn when it has been tainted for `withdraw_after`. A fatal XID is
    forgiven after `clear_after`, None for not before a reset; an application's error after `quiet_after` without
    another one.
    """

    application_xids: frozenset[int] = frozenset()
    effect: TaintEffect = TaintEffect.NO_SCHEDULE
    withdraw_after: float = 300.0
    clear_after: float | None = None
    quiet_after: float = 600.0


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """All of it. `list_type_attributes`: publish lists where a standard attribute may be one and the API server takes
    it (gate DRAListTypeAttributes).
    """

    rules: tuple[GpuRule, ...] = ()
    health: HealthPolicy = field(default_factory=HealthPolicy)
    list_type_attributes: bool = False

    @property
    def binding_conditions(self) -> bool:
        """Whether any GPU may have binding conditions. Rules for certain nodes count from `on_node` on."""
        return any(rule.binding_conditions and not rule.nodes for rule in self.rules)

    @property
    def optional_features(self) -> frozenset[str]:
        """The flags of SliceFeatures that not every policy needs, and this one does."""
        wanted = {"list_attributes": self.list_type_attributes, "binding_conditions": self.binding_conditions}
        return frozenset(flag for flag, is_wanted in wanted.items() if is_wanted)

    def on_node(self, name: str) -> "NodePolicy":
        """The same for one node: rules for other nodes are gone."""
        return replace(self, rules=tuple(replace(rule, nodes=()) for rule in self.rules if rule.matches_node(name)))

    def for_gpu(self, gpu: Gpu | None, pci: PciGpu | None = None) -> GpuPolicy:
        """What is wanted of a GPU, given as NVML sees it, the PCI bus, or both. Rules for certain nodes don't count
        before `on_node`.
        """
        policy = GpuPolicy()
        for rule in self.rules:
            if not rule.nodes and rule.matches(gpu, pci):
                said = {name: value for name in _WANTED if (value := getattr(rule, name)) is not None}
                policy = replace(policy, **said)
        return policy


def _models(gpu: Gpu | None, pci: PciGpu | None) -> Iterator[str]:
    """NVML's product name, or what the PCI database calls the product, so that a rule still matches when the GPU is
    bound to another driver: `GH100 [H100 SXM5 80GB]` counts as `NVIDIA H100 SXM5 80GB`.
    """
    if gpu is not None and gpu.product_name is not None:
        yield _plain(gpu.product_name)
    elif pci is not None and pci.product_name is not None:
        found = _BRACKETS.search(pci.product_name)
        yield _plain(f"NVIDIA {found[1]}" if found else pci.product_name)


def _plain(model: str) -> str:
    return model.lower().replace(" ", "-")
