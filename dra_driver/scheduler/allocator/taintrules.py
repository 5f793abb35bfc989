# SPDX-License-Identifier: Apache-2.0
"""DeviceTaintRules: taints of an administrator, which the scheduler adds to the taints of drivers.

Follows k8s.io/dynamic-resource-allocation/resourceslice/tracker: the allocator gets slices in which each selected
device has the taints of the rules after its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...kube.resource import Device, DeviceTaintRule, DeviceTaintSelector, ResourceSlice


def with_taint_rules(
    slices: Iterable[ResourceSlice], rules: Sequence[DeviceTaintRule], *, without_selector: bool
) -> list[ResourceSlice]:
    """The slices with the taints of the rules.

    `without_selector` says whether a rule without a selector selects every device: so up to Kubernetes 1.37. From 1.38
    on it selects nothing (kubernetes/kubernetes#141648). An empty selector always selects every device.
    """
    effective = [rule for rule in rules if rule.selector is not None or without_selector]
    return [_tainted(resource_slice, effective) for resource_slice in slices]


def selects(selector: DeviceTaintSelector, resource_slice: ResourceSlice) -> bool:
    """Whether a rule with this selector may select devices of the slice."""
    names = (selector.driver, resource_slice.driver), (selector.pool, resource_slice.pool.name)
    return all(wanted in (None, name) for wanted, name in names)


def _tainted(resource_slice: ResourceSlice, rules: Iterable[DeviceTaintRule]) -> ResourceSlice:
    selectors = [(rule.selector or DeviceTaintSelector(), rule.taint) for rule in rules]
    concerned = [(selector, taint) for selector, taint in selectors if selects(selector, resource_slice)]
    if not concerned:
        return resource_slice

    def tainted(device: Device) -> Device:
        added = tuple(taint for selector, taint in concerned if selector.device in (None, device.name))
        return replace(device, taints=(*device.taints, *added)) if added else device

    return replace(resource_slice, devices=tuple(map(tainted, resource_slice.devices)))
