# SPDX-License-Identifier: Apache-2.0
"""The GPUs of one node with their MIG devices, and the settings of the device plugin that the node shows.

What a node offers counts more than a configuration, because a configuration may not be in use. MIG devices are placed
by the mig-parted configuration that the label `nvidia.com/mig.config` names, or else evenly, as far as they fit.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...gpu.simulated.board import BoardModel
from .configs import GPU, SHARED, MigGroup, PluginConfig, profile_of, resource_of
from .labels import INVALID, LabelFacts, Model, count_of, model_of

_MIG_LABEL: Final = "nvidia.com/mig.config"
_SLICES, _MEMORY_SLICES = 7, 8
"""Compute slices and memory slices of a GPU that the simulation has no board of."""
_MEMORY_OF: Final = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Memory slices of a MIG device by its compute slices, unless its name tells of more memory."""
_PROFILE: Final = re.compile(r"([0-9]+)g\.([0-9]+)gb(.*)")

Layout = tuple[tuple[str, ...] | None, ...]
"""For each GPU the profiles of its MIG devices, or None if its MIG mode is off."""


@dataclass(frozen=True, slots=True)
class ProfileSize:
    """The share of a GPU that a MIG device takes, the largest number of such devices on a GPU, and their memory."""

    slices: int
    memory_slices: int
    most: int
    memory_mib: int


def size_of(profile: str, model: Model | None, memory_mib: int) -> ProfileSize:
    """The size of a profile on a board, or else as its name tells, on a GPU with this memory (0: unknown)."""
    known = model.board.profile_by_name(profile) if model is not None and model.board is not None else None
    if known is not None:
        info = known.info
        return ProfileSize(info.slice_count, known.placements[0].size, info.instance_count, info.memory_mib)
    named = _PROFILE.fullmatch(profile)
    slices, gigabytes = (int(named[1]), int(named[2])) if named is not None else (1, 0)
    size = _MEMORY_OF.get(slices, min(slices, _MEMORY_SLICES))
    if memory_mib:
        size = min(_MEMORY_SLICES, max(size, round(gigabytes * 1024 * _MEMORY_SLICES / memory_mib)))
    most = 1 if "+me" in profile else max(1, min(_SLICES // slices, _MEMORY_SLICES // size))
    return ProfileSize(slices, size, most, gigabytes * 10**9 >> 20)


def observed(
    config: PluginConfig, facts: LabelFacts, labels: Mapping[str, str], offered: Mapping[str, int], *, known: bool
) -> tuple[PluginConfig, list[str]]:
    """The configuration as the node shows it, and notes where a `known` one says something else.

    `offered` are the resources that kubelet reports, with their numbers.
    """
    mig = {name.removesuffix(SHARED): count for name, count in offered.items() if count and profile_of(name)}
    strategy = "mixed" if mig else "single" if facts.profile else facts.strategy or config.mig_strategy
    devices = facts.devices if facts.profile else facts.gpus
    total = offered.get(GPU + SHARED) or offered.get(GPU, 0)
    shares = {GPU: _shares(total, devices, facts.replicas, config.replicas.get(GPU, 1))}
    for name in dict.fromkeys((*mig, *(name for name in config.replicas if name != GPU))):
        labelled, count = (count_of(labels.get(f"{name}.{field}")) for field in ("replicas", "count"))
        shares[name] = _shares(mig.get(name, 0), count, labelled, config.replicas.get(name, 1))
    shown = [name for name, count in offered.items() if count and shares.get(name.removesuffix(SHARED), 1) > 1]
    found = replace(
        config,
        mig_strategy=strategy,
        replicas={name: count for name, count in shares.items() if count > 1},
        renamed=any(name.endswith(SHARED) for name in shown) if shown else config.renamed,
        mps=config.mps if facts.mps is None else facts.mps,
    )
    differs = [
        f"{name} {_text(old)} and not {_text(new)}"
        for name, old, new in (
            ("migStrategy", strategy, config.mig_strategy),
            ("replicas", found.replicas, config.replicas),
            ("MPS", found.mps, config.mps),
        )
        if old != new
    ]
    text = f"the node shows {', '.join(differs)}, as its configuration says: it is planned as the node shows it"
    return found, [text] if known and differs else []


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} x {count}" for name, count in value.items()) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shares(total: int, devices: int, labelled: int, configured: int) -> int:
    """The number of shares of each device: `total` are offered, of a number of devices (0: unknown)."""
    candidates = [count for count in (labelled, configured) if count]
    if not total:
        return candidates[0]
    agreeing = (count for count in candidates if total % count == 0 and (not devices or total // count <= devices))
    return next(agreeing, -(-total // devices) if devices else 1)


@dataclass
class NodeGpus:
    """The GPUs of one node, while they are counted. `config` is the configuration that the node shows."""

    labels: Mapping[str, str]
    facts: LabelFacts
    offered: Mapping[str, int]
    config: PluginConfig
    mig: Mapping[str, tuple[MigGroup, ...]]
    notes: list[str] = field(default_factory=list)

    def layout(self) -> Layout:
        """The GPUs and their MIG devices. Adds notes about what had to be assumed."""
        facts, single = self.facts, self.facts.profile
        found = self.offered.get(GPU + SHARED) or self.offered.get(GPU) or 0
        offered = found // self.config.replicas.get(GPU, 1)
        if single == INVALID:
            self.notes.append("it offers no GPU: its MIG devices are not all the same, as the strategy single demands")
            return (None,) * facts.gpus
        configured = self._configured(facts.devices or offered if single else facts.gpus or offered)
        if configured is not None:
            return configured
        profiles = {single: facts.devices or offered} if single else self._profiles()
        if not profiles:
            return (None,) * (offered or facts.gpus)
        whole = 0 if single else offered
        return (None,) * whole + self._split(profiles, max(facts.gpus - whole, 0))

    def _configured(self, devices: int) -> Layout | None:
        """The layout of the mig-parted configuration that the node has, None if it has none that is known."""
        done = self.labels.get(f"{_MIG_LABEL}.state", "success") == "success" and self.config.mig_strategy != "none"
        configured = self.mig.get(self.labels.get(_MIG_LABEL, "")) if done else None
        if not configured:
            return None
        model = model_of(self.facts.product)
        groups = [group for group in configured if _selects(group, model.board if model is not None else None)]
        each = next((sum(group.profiles.values()) for group in groups if group.profiles), 1)
        count = -(-devices // each) if self.facts.profile else devices
        return tuple(_layout(groups, index) for index in range(count))

    def _profiles(self) -> dict[str, int]:
        """The number of MIG devices of each profile on the node, with the strategy mixed."""
        if self.config.mig_strategy != "mixed":
            return {}
        shares = self.config.replicas
        found = {name: count // shares.get(name.removesuffix(SHARED), 1) for name, count in self.offered.items()}
        found |= {
            name.removesuffix(".count"): count_of(count)
            for name, count in self.labels.items()
            if name.endswith(".count")
        }
        return {profile: count for name, count in found.items() if count and (profile := profile_of(name))}

    def _split(self, profiles: Mapping[str, int], gpus: int) -> Layout:
        """The MIG devices on a number of GPUs (0: as few as possible), evenly if they fit so, else one GPU after the
        other.
        """
        model = model_of(self.facts.product)
        sizes = {name: size_of(name, model, self.facts.memory_mib) for name in profiles}
        every = sorted(Counter(profiles).elements(), key=lambda name: (-sizes[name].memory_slices, name))
        most = _most(model)
        packed = _packed(every, sizes, most)
        even: list[list[str]] = [[] for _ in range(gpus or len(packed))]
        for position, name in enumerate(every):
            even[position % len(even)].append(name)
        fitting = all(_fits(gpu, sizes, most) for gpu in even)
        chosen = even if fitting else packed
        if len(sizes) > 1 or any(_fits([*gpu, name], sizes, most) for gpu in chosen for name in sizes):
            self.notes.append(
                f"it is assumed that its last {len(chosen)} GPUs have the MIG devices,"
                f" {'evenly' if fitting else 'one GPU after the other'}: its label {_MIG_LABEL} names no known"
                " configuration of mig-parted"
            )
        return tuple(tuple(sorted(gpu)) for gpu in chosen)


def _most(model: Model | None) -> tuple[int, int]:
    """The compute slices and memory slices of a GPU."""
    if model is None or model.board is None or not model.board.profiles:
        return _SLICES, _MEMORY_SLICES
    return max(profile.info.slice_count for profile in model.board.profiles), model.board.memory_slices


def _fits(profiles: Sequence[str], sizes: Mapping[str, ProfileSize], most: tuple[int, int]) -> bool:
    """Whether one GPU can have all of these MIG devices, as far as their sizes tell."""
    slices = sum(sizes[name].slices for name in profiles)
    memory = sum(sizes[name].memory_slices for name in profiles)
    counts = Counter(profiles)
    return slices <= most[0] and memory <= most[1] and all(counts[name] <= sizes[name].most for name in counts)


def _packed(every: Iterable[str], sizes: Mapping[str, ProfileSize], most: tuple[int, int]) -> list[list[str]]:
    """The MIG devices, each on the first GPU that has room for it."""
    found: list[list[str]] = []
    for name in every:
        room = next((gpu for gpu in found if _fits([*gpu, name], sizes, most)), None)
        if room is None:
            found.append([name])
        else:
            room.append(name)
    return found


def _selects(group: MigGroup, board: BoardModel | None) -> bool:
    return not group.filters or (board is not None and f"0x{board.pci_device_id:08x}" in group.filters)


def _layout(groups: Iterable[MigGroup], index: int) -> tuple[str, ...] | None:
    """The MIG devices of a GPU that the plugin offers. Each uses its whole GPU instance."""
    group = next((group for group in groups if group.devices is None or index in group.devices), None)
    if group is None or group.profiles is None:
        return None
    return tuple(
        Counter({name: count for name, count in group.profiles.items() if profile_of(resource_of(name))}).elements()
    )
