# SPDX-License-Identifier: Apache-2.0
"""The objects that allocation reads, and the indexes that are computed from them once."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...kube.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from .equivalence import NodeEquivalence
from .features import Features
from .pools import PoolView, pools_of
from .selectors import SelectorVerdicts
from .survey import Survey


@dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster at one moment. Claims with an allocation hold devices, the others are pending."""

    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    nodes: tuple[Node, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    pool_views: dict[Hashable, PoolView] = field(default_factory=dict, repr=False, kw_only=True)
    """The views of pools so far, by their content. A cluster that `dataclasses.replace` makes shares them."""
    _surveys: dict[Features, Survey] = field(default_factory=dict, init=False, repr=False)
    _equivalence: dict[Features, NodeEquivalence] = field(default_factory=dict, init=False, repr=False)
    _verdicts: dict[Features, SelectorVerdicts] = field(default_factory=dict, init=False, repr=False)

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

        The new cluster gets the computed indexes. Only the use of the pools of these claims is counted again.
        """
        gone = set(map(id, released))
        kept = tuple(claim for claim in self.claims if id(claim) not in gone) if gone else self.claims
        after = replace(self, claims=(*kept, *allocated))
        touched = pools_of((*allocated, *released))
        after._verdicts.update(self._verdicts)
        for features, survey in self._surveys.items():
            after._surveys[features] = survey.after(allocated, released)
        for features, equivalence in self._equivalence.items():
            after._equivalence[features] = equivalence.after(after._surveys[features], touched)
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
        """The DeviceClasses by their names."""
        return {device_class.metadata.name: device_class for device_class in self.classes}

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}

    def survey(self, features: Features) -> Survey:
        """The views of the nodes under these features. Computed once."""
        if features not in self._surveys:
            self._surveys[features] = Survey(self.slices, self.claims, features, self.pool_views)
        return self._surveys[features]

    def equivalence(self, features: Features) -> NodeEquivalence:
        """The groups of equivalent nodes under these features. Computed once."""
        if features not in self._equivalence:
            self._equivalence[features] = NodeEquivalence(self.survey(features), self.nodes, features)
        return self._equivalence[features]

    def verdicts(self, features: Features) -> SelectorVerdicts:
        """The verdicts of expressions on devices so far."""
        return self._verdicts.setdefault(features, SelectorVerdicts(features))
