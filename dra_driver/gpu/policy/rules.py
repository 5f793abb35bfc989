# SPDX-License-Identifier: Apache-2.0
"""The rules of a policy. Every rule that matches a GPU applies; if two rules set the same field, the later one wins."""

import enum
import re
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase

from ...kube.resource import TaintEffect
from ...names import AdditionalDevice
from ..inventory import Gpu, PciGpu

_BRACKETS = re.compile(r"\[(.+)\]")


class MigPolicy(enum.StrEnum):
    """How a GPU with MIG is published.

    AUTO: as a whole GPU while its MIG mode is disabled, else as MIG devices that are created for claims. STATIC: as a
    whole GPU, or as the MIG devices that an administrator created. DYNAMIC: as a whole GPU and as MIG devices at once,
    of which the first claim selects one, if the mode can be switched without a reset (Hopper and later); else like
    AUTO.
    """

    AUTO = "auto"
    STATIC = "static"
    DYNAMIC = "dynamic"


class PassthroughMode(enum.StrEnum):
    """What `passthrough` may be beside true and false. ONLY: the GPU is published as a vfio device and as nothing else,
    so that containers cannot use it. GPUs that share an IOMMU group need this to be given to a virtual machine.
    """

    ONLY = "only"


class ShareMode(enum.StrEnum):
    """How many claims may share a device: the modes of the official --consumable-shares.

    UNLIMITED: any number; claims may request memory. MEMORY: as long as memory remains; a claim that requests no amount
    gets all memory. A number instead of a mode: at most this number of claims.
    """

    DISABLED = "disabled"
    UNLIMITED = "unlimited"
    MEMORY = "memory"


class Enforcement(enum.StrEnum):
    """What keeps a claim within its share of a device.

    NONE: nothing; the scheduler only counts. MPS: limits of the MPS daemon. MEMORY_LIMITS: a limit of the container's
    GPU memory in the NVIDIA driver. AUTO: MEMORY_LIMITS if the device supports it, else MPS.
    """

    NONE = "none"
    MPS = "mps"
    MEMORY_LIMITS = "memory-limits"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class GpuPolicy:
    """The policy for one GPU. `vgpu_types` are the types of vGPUs that are created for claims (`12Q` or `L40S-12Q`).
    With `binding_conditions`, pods are bound only after the plugin has agreed. Every container with the GPU, or a MIG
    device of it, gets the `additional_devices`.
    """

    publish: bool = True
    mig: MigPolicy = MigPolicy.AUTO
    passthrough: PassthroughMode | bool = False
    health: bool = True
    shares: ShareMode | int = ShareMode.DISABLED
    enforce: Enforcement = Enforcement.NONE
    binding_conditions: bool = False
    additional_devices: tuple[AdditionalDevice, ...] = ()
    vgpu_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuRule:
    """The policy for the GPUs that match all given fields. An empty tuple matches all GPUs. None means that the rule
    does not set the field.

    `models` and `nodes` are globs. A model is compared in lower case, with `-` for spaces.
    """

    models: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    publish: bool | None = None
    mig: MigPolicy | None = None
    passthrough: PassthroughMode | bool | None = None
    vgpu_types: tuple[str, ...] | None = None
    health: bool | None = None
    shares: ShareMode | int | None = None
    enforce: Enforcement | None = None
    binding_conditions: bool | None = None
    additional_devices: tuple[AdditionalDevice, ...] | None = None

    def matches_node(self, name: str) -> bool:
        """Whether the rule applies to this node."""
        return not self.nodes or any(fnmatchcase(name, glob) for glob in self.nodes)

    def matches(self, gpu: Gpu | None, pci: PciGpu | None) -> bool:
        """Whether the rule applies to this GPU, without regard to nodes. Unknown values of a GPU do not match."""
        address = pci.address if pci is not None else gpu.pci_address if gpu is not None else None
        model = _model(gpu, pci)
        return (
            (not self.models or (model is not None and any(fnmatchcase(model, _plain(glob)) for glob in self.models)))
            and (not self.indexes or (gpu is not None and gpu.index in self.indexes))
            and (not self.uuids or (gpu is not None and gpu.uuid in self.uuids))
            and (not self.pci_addresses or address in self.pci_addresses)
        )


_WANTED = tuple(field_.name for field_ in fields(GpuPolicy))


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """How errors of GPUs are treated. Times are in seconds.

    `application_xids` are treated as errors of applications, in addition to the built-in ones. `effect` is the effect
    of taints for all other errors. A GPU that has vanished is withdrawn after it was tainted for `withdraw_after`. A
    fatal XID is cleared after `clear_after`, or only by a reset if that is None. An application's error is cleared if
    it does not occur again for `quiet_after`.
    """

    application_xids: frozenset[int] = frozenset()
    effect: TaintEffect = TaintEffect.NO_SCHEDULE
    withdraw_after: float = 300.0
    clear_after: float | None = None
    quiet_after: float = 600.0


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The policy of a node. `list_type_attributes` publishes standard attributes as lists where Kubernetes allows it
    and the API server stores lists (feature gate DRAListTypeAttributes). `mps` and `memory_limits` tell whether shares
    can be enforced in this way on the node; they do not come from the policy file.
    """

    rules: tuple[GpuRule, ...] = ()
    health: HealthPolicy = field(default_factory=HealthPolicy)
    list_type_attributes: bool = False
    mps: bool = False
    memory_limits: bool = False

    @property
    def binding_conditions(self) -> bool:
        """Whether a GPU may have binding conditions. Rules for named nodes count only after `on_node`."""
        return any(rule.binding_conditions and not rule.nodes for rule in self.rules)

    @property
    def optional_features(self) -> frozenset[str]:
        """The optional flags of SliceFeatures that this policy needs."""
        wanted = {"list_attributes": self.list_type_attributes, "binding_conditions": self.binding_conditions}
        return frozenset(flag for flag, is_wanted in wanted.items() if is_wanted)

    @property
    def has_machines(self) -> bool:
        """Whether a rule is about GPUs or vGPUs of virtual machines."""
        return any(rule.passthrough or rule.vgpu_types for rule in self.rules)

    def on_node(self, name: str) -> "NodePolicy":
        """The policy of one node, without the rules for other nodes."""
        return replace(self, rules=tuple(replace(rule, nodes=()) for rule in self.rules if rule.matches_node(name)))

    def for_gpu(self, gpu: Gpu | None, pci: PciGpu | None = None) -> GpuPolicy:
        """The policy for a GPU, which is given as NVML or the PCI bus sees it, or both. Rules for named nodes count
        only after `on_node`.
        """
        policy = GpuPolicy()
        for rule in self.rules:
            if not rule.nodes and rule.matches(gpu, pci):
                said = {name: value for name in _WANTED if (value := getattr(rule, name)) is not None}
                if "shares" in said:  # an earlier rule was about other shares
                    said.setdefault("enforce", Enforcement.NONE)
                policy = replace(policy, **said)
        return policy


def _model(gpu: Gpu | None, pci: PciGpu | None) -> str | None:
    """NVML's product name, or the name in the PCI database. So a rule still matches when the GPU is bound to another
    driver: `GH100 [H100 SXM5 80GB]` counts as `NVIDIA H100 SXM5 80GB`.
    """
    if gpu is not None and gpu.product_name is not None:
        return _plain(gpu.product_name)
    if pci is not None and pci.product_name is not None:
        found = _BRACKETS.search(pci.product_name)
        return _plain(f"NVIDIA {found[1]}" if found else pci.product_name)
    return None


def _plain(model: str) -> str:
    return model.lower().replace(" ", "-")
