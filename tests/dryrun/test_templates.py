# SPDX-License-Identifier: Apache-2.0
"""`node-template NAME`: template slices, by the rules of the autoscalers that simulate nodes with them.

The rules are those of cluster-autoscaler's docs/dra_support.md and its issue 10199 (commit 55c37cd), and of
`ResourceSliceTemplate` in pkg/cloudprovider/dynamicresources.go of Karpenter (commit 2266468).
"""

from typing import Any

import pytest
import yaml

from .conftest import DryRun, Write, gpu, slice_of
from .test_command import claim

TAINT = {"key": "gpu.nvidia.com/xid", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}


def slices_of(out: str) -> list[dict[str, Any]]:
    return [one["spec"] for one in yaml.load_all(out, yaml.CSafeLoader)]


@pytest.mark.parametrize(
    ("kind", "policy", "types"),
    [
        ("h100x8", "", {"gpu"}),
        ("h100x8-mig", "", {"mig"}),
        ("h100x8", "gpus: [{mig: dynamic}]", {"gpu", "mig"}),
        ("h100x8", "gpus: [{shares: {mode: 4, enforce: mps}}]", {"gpu"}),
        ("h100x8", "gpus: [{match: {nodes: [other]}, publish: false}]", {"gpu"}),
    ],
)
def test_templates_keep_the_rules_of_autoscalers(
    kind: str, policy: str, types: set[str], dryrun: DryRun, write: Write
) -> None:
    code, out, err = dryrun("node-template", kind, "--policy", write("policy.yaml", policy))
    assert (code, err) == (0, "")
    slices = slices_of(out)
    # Node-local devices of one pool that has the name of the node and is complete.
    assert {one["nodeName"] for one in slices} == {one["pool"]["name"] for one in slices} == {f"new-{kind}-1"}
    assert {one["pool"]["resourceSliceCount"] for one in slices} == {len(slices)}
    assert len({one["pool"]["generation"] for one in slices}) == 1
    # A template with shared counters and devices would lose its devices.
    assert all(("devices" in one) != ("sharedCounters" in one) for one in slices)
    devices = [device for one in slices for device in one.get("devices", ())]
    assert len({one["name"] for one in devices}) == len(devices)
    assert {one["attributes"]["type"]["string"] for one in devices} == types
    assert not any("taints" in one for one in devices)
    # Devices without counters are equal, and otherwise the counter sets are.
    counters = [each for one in slices for each in one.get("sharedCounters", ())]
    used = {each["counterSet"] for one in devices for each in one.get("consumesCounters", ())}
    assert used == {one["name"] for one in counters}
    same = [one["counters"] for one in counters] or [one["capacity"] for one in devices]
    assert all(one == same[0] for one in same)


def test_the_slices_of_a_node_become_those_of_a_new_one(dryrun: DryRun, write: Write) -> None:
    device = {**gpu("gpu-0"), "taints": [TAINT]}
    device["attributes"] |= {"uuid": {"string": "GPU-1"}}
    cluster = write("cluster.json", slice_of("old", device))
    code, out, _ = dryrun("node-template", "old", "--slices", cluster)
    (made,) = slices_of(out)
    assert (code, made["nodeName"], made["pool"]["name"]) == (0, "new-old-1", "new-old-1")
    assert "taints" not in made["devices"][0]
    assert made["devices"][0]["attributes"]["uuid"]["string"] not in ("GPU-1", "")
    templates = write("templates.yaml", out)
    wanted = write("claim.yaml", claim("device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H100')"))
    assert dryrun("fit", wanted, "--slices", templates)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["node-template"], "missing argument 'NAME'"),
        (["node-template", "none"], "there is no node 'none' with slices in"),
        (["node-template", "none", "--policy", "POLICY"], "--policy: none is not a built-in type"),
        (["node-template", "h100x8", "--policy", "WRONG"], "gpus[0].mig: must be auto"),
    ],
)
def test_mistakes_are_named(arguments: list[str], says: str, dryrun: DryRun, write: Write) -> None:
    policy, wrong = (str(write(name, f"gpus: [{{mig: {mig}}}]")) for name, mig in (("a", "auto"), ("b", "never")))
    code, _, err = dryrun(*({"POLICY": policy, "WRONG": wrong}.get(one, one) for one in arguments))
    assert code == 2
    assert says in err
