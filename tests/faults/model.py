# SPDX-License-Identifier: Apache-2.0
"""What must be true of the node after any history of calls and mishaps, said without the plugin's help.

The model knows the claims, how each was answered, and what an administrator made by hand; nothing of how the plugin
works. Places are written `gpu/start:size`, in memory slices.
"""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .nodestate import NodeState

_NAME = re.compile(r"gpu-(\d+)(?:-mig-(\w+)-\d+-(\d+))?")
_SIZES = {"1g10gb": 1, "2g20gb": 2, "3g40gb": 4}
_WHOLE = 8


@dataclass(frozen=True, order=True)
class Place:
    """A part of a GPU; all of it for a whole one."""

    gpu: int
    start: int
    size: int

    @classmethod
    def of(cls, device: str) -> "Place":
        """Where a device is."""
        match = _NAME.fullmatch(device)
        assert match is not None, device
        gpu, profile, start = match.groups()
        return cls(int(gpu), 0, _WHOLE) if profile is None else cls(int(gpu), int(start), _SIZES[profile])

    @property
    def is_slice(self) -> bool:
        """Whether there is a GPU instance at it."""
        return self.size < _WHOLE

    def overlaps(self, other: "Place") -> bool:
        """Whether they have something in common."""
        same = self.gpu == other.gpu
        return same and self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        return f"{self.gpu}/{self.start}:{self.size}"


class Is(enum.Enum):
    """What kubelet knows of a claim. In doubt is one whose last call did not go well: it may be anything between."""

    CLEAN = enum.auto()
    PREPARED = enum.auto()
    IN_DOUBT = enum.auto()


@dataclass
class KnownClaim:
    """A claim, and where its devices are."""

    uid: str
    places: Sequence[Place]
    state: Is = Is.CLEAN

    def overlaps(self, places: Iterable[Place]) -> bool:
        """Whether it has something in common with these."""
        return any(mine.overlaps(other) for other in places for mine in self.places)


@dataclass
class Model:
    """`uuids` and `modes` are the GPUs' at the beginning, with no claim; `by_hand` is the administrator's."""

    uuids: Sequence[str]
    modes: Sequence[str]
    claims: dict[str, KnownClaim] = field(default_factory=dict)
    by_hand: set[Place] = field(default_factory=set)

    def went_well(self, verb: str, uid: str) -> None:
        """A call was answered without an error. No part of a GPU is ever given to two claims."""
        claim = self.claims[uid]
        claim.state = Is.PREPARED if verb == "Prepare" else Is.CLEAN
        if claim.state is Is.PREPARED:
            for other in self.of(Is.PREPARED):
                assert other is claim or not claim.overlaps(other.places), f"{uid} and {other.uid} are both prepared"

    def must_be_possible(self, uid: str) -> bool:
        """Whether nothing stands in the way of preparing the claim."""
        claim = self.claims[uid]
        taken = any(claim.overlaps(other.places) for other in self.claims.values() if other.state is not Is.CLEAN)
        if claim.state is not Is.CLEAN:
            return claim.state is Is.PREPARED
        in_the_way = {one for one in self.by_hand if one not in claim.places}
        return not taken and not claim.overlaps(in_the_way)

    def of(self, state: Is) -> list[KnownClaim]:
        """The claims in this state."""
        return [one for one in self.claims.values() if one.state is state]

    def problems(self, state: NodeState) -> list[str]:
        """What is not as it must be."""
        prepared = {one.uid: one for one in self.of(Is.PREPARED)}
        doubtful = {one.uid: one for one in self.of(Is.IN_DOUBT)}
        records: Mapping[str, str] = {name[:-5]: one["state"] for name, one in state["records"].items()}
        specs = {name[:-5].partition("claim_")[2] for name in state["specs"] if "claim_" in name}
        there = {one.split()[0]: one.endswith("[]") for one in state["instances"]}
        marked = {self._marked(name) for name in state["marks"] if not name.endswith(("_on", "_off"))}
        wanted = {str(place) for one in prepared.values() for place in one.places if place.is_slice}
        maybe = {str(place) for one in doubtful.values() for place in one.places if place.is_slice}
        by_hand = set(map(str, self.by_hand))
        found = [
            f"claim {uid} is lost: its record says {records.get(uid)}"
            for uid in prepared
            if records.get(uid) != "Prepared"
        ]
        found += [f"claim {uid} is lost: no CDI spec" for uid in prepared.keys() - specs]
        found += [f"no MIG device at {one}" for one in wanted if there.get(one, True)]
        found += [f"the administrator lost {one}" for one in by_hand - there.keys()]
        found += [f"stale record of {uid}" for uid in records.keys() - prepared.keys() - doubtful.keys()]
        found += [f"stale CDI spec of {uid}" for uid in specs - prepared.keys() - doubtful.keys()]
        found += [f"leaked instance {one}" for one in there.keys() - wanted - maybe - by_hand]
        found += [f"mark without instance {one}" for one in marked - there.keys() - maybe]
        found += [f"instance without mark {one}" for one in there.keys() - marked - maybe - by_hand]
        used = {place.gpu for one in (*prepared.values(), *doubtful.values()) for place in one.places}
        for gpu, (mode, original) in enumerate(zip(state["modes"], self.modes, strict=True)):
            if gpu not in used and mode != original:
                found.append(f"GPU {gpu} stays in {mode}")
        return found

    def _marked(self, name: str) -> str:
        uuid, _, start, size = name.split("_")
        return f"{self.uuids.index(uuid)}/{start}:{size}"
