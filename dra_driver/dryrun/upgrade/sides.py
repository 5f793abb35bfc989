# SPDX-License-Identifier: Apache-2.0
"""The two sides that are compared: a Kubernetes release with its feature gates, now and then.

A gate that is set now stays set: the flags and files of the control plane outlive an upgrade. It is known to be set if
the API server reports another value than the default of its release, or if the user names it. A value that a release
does not accept (`Conflict`) keeps its processes from starting, so the side has the value that the release has then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...kube.releases import GATES, default_gates, minor_release
from ...process.command import InputError
from ...scheduler.allocator import Features
from ...scheduler.allocator.features import GATES as GATES_OF_ALLOCATOR
from ..release import ServerRelease

GatesGiven = Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Side:
    """A release with the value of each gate that it knows. `given` are the gates that are set, and `features`
    are the gates of the allocator.
    """

    release: str
    gates: Mapping[str, bool]
    given: Mapping[str, bool]
    features: Features

    @property
    def name(self) -> str:
        """`Kubernetes 1.37`."""
        return f"Kubernetes {self.release}"

    @staticmethod
    def of(release: str, given: GatesGiven) -> "Side":
        """The release with these gates set. Gates that it does not know, or whose value is locked, are left out."""
        kept = {name: value for name, value in given.items() if not refusal(release, name, value)}
        gates = {**default_gates(release), **kept}
        features = Features.from_gates(
            {name: value for name, value in kept.items() if name in GATES_OF_ALLOCATOR}, release=release
        )
        return Side(release, gates, kept, features)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A gate that is set now, and that the release does not accept: `reason` says why."""

    gate: str
    value: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides, and the gates of now that the release of then refuses."""

    now: Side
    then: Side
    conflicts: tuple[Conflict, ...] = ()


def sides_of(now: str, then: str, server: ServerRelease, given_now: GatesGiven, given_then: GatesGiven) -> Sides:
    """The sides of an upgrade from one release to another. `given_now` and `given_then` are the gates that the user
    names. Raises InputError for gates that a release does not accept.
    """
    _check("--feature-gates-now", now, given_now)
    _check("--feature-gates", then, given_then)
    set_now = {**_set_on(server, now), **given_now}
    kept = {**set_now, **given_then}
    conflicts = tuple(
        Conflict(gate, value, reason) for gate, value in kept.items() if (reason := refusal(then, gate, value))
    )
    return Sides(Side.of(now, set_now), Side.of(then, kept), conflicts)


def _set_on(server: ServerRelease, release: str) -> dict[str, bool]:
    """The gates of a server whose values are not the defaults of its release."""
    if minor_release(server.release or release) != minor_release(release):
        return {}
    defaults = default_gates(release)
    return {name: value for name, value in server.gates.items() if name in defaults and defaults[name] != value}


def _check(option: str, release: str, given: GatesGiven) -> None:
    for gate, value in given.items():
        if problem := refusal(release, gate, value):
            known = "" if gate in GATES[minor_release(release)] else f" (known: {', '.join(default_gates(release))})"
            raise InputError(f"{option}: {problem}{known}")


def refusal(release: str, gate: str, value: bool) -> str:
    """Why processes of a release do not accept a value of a gate. Empty if they do."""
    stage = GATES[minor_release(release)].get(gate)
    if stage is None:
        return f"Kubernetes {release} does not know the feature gate {gate}"
    if stage.is_locked and value is not stage.is_on:
        return f"Kubernetes {release} has locked the feature gate {gate} to {_TEXTS[stage.is_on]}"
    return ""


_TEXTS: Final[Mapping[bool, str]] = {True: "true", False: "false"}
