# SPDX-License-Identifier: Apache-2.0
"""The objects that allocation looks at, and what is prepared from them once."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...kube.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from .features import Features
from .likeness import Likeness
from .pools import pools_of
from .selectors import Rulings
from .survey import Survey


@dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster at one moment. Claims with an allocation hold devices, the others are pending."""

    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    nodes: tuple[Node, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    _surveys: dict[Features, Survey] = field(default_factory=dict, init=False, repr=False)
    _likeness: dict[Features, Likeness] = field(default_factory=dict, init=False, repr=False)
    _rulings: dict[Features, Rulings] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(objects: Iterable[object]) -> "Cluster":
        """The cluster that these decoded objects describe, in any order. Templates and other things are ignored."""
        every = tuple(objects)
        return Cluster(
            tuple(item for item in every if isinstance(item, ResourceSlice)),
            tuple(item for item in every if isinstance(item, DeviceClass)),
            tuple(item for item in every if isinstance(item, Node)),
            tuple(item for item in every if isinstance(item, ResourceClaim)),
        )

    def after(self, allocated: Collection[ResourceClaim] = (), released: Collection[ResourceClaim] = ()) -> "Cluster":
        """The cluster with the claims `allocated` as well, and without the claims `released`, which it has now.

        What was prepared is passed on: only the use of the pools that these claims hold devices of is counted again.
        """
        gone = set(map(id, released))
        kept = tuple(claim for claim in self.claims if id(claim) not in gone) if gone else self.claims
        after = replace(self, claims=(*kept, *allocated))
        touched = pools_of((*allocated, *released))
        after._rulings.update(self._rulings)
        for features, survey in self._surveys.items():
            after._surveys[features] = survey.after(allocated, released)
        for features, likeness in self._likeness.items():
            after._likeness[features] = likeness.after(after._surveys[features], touched)
        return after

    @property
    def pending(self) -> tuple[ResourceClaim, ...]:
        """The claims without an allocation, in the order in which they were given."""
        return tuple(claim for claim in self.claims if claim.allocation is None)

    @property
    def allocated(self) -> tuple[ResourceClaim, ...]:
        """The claims that hold devices, in the order in which they were given."""
        return tuple(claim for claim in self.claims if claim.allocation is not None)

    @cached_property
    def class_by_name(self) -> Mapping[str, DeviceClass]:
        return {device_class.metadata.name: device_class for device_class in self.classes}

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    def survey(self, features: Features) -> Survey:
        """What the nodes see under these features; made once."""
        if features not in self._surveys:
            self._surveys[features] = Survey(self.slices, self.claims, features)
        return self._surveys[features]

    def likeness(self, features: Features) -> Likeness:
        """Which nodes are alike under these features; made once."""
        if features not in self._likeness:
            self._likeness[features] = Likeness(self.survey(features), self.nodes, features)
        return self._likeness[features]

    def rulings(self, features: Features) -> Rulings:
        """What expressions said of the devices so far."""
        return self._rulings.setdefault(features, Rulings(features))
