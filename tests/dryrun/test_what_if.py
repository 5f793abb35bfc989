# SPDX-License-Identifier: Apache-2.0
"""Answers for a cluster that is a little different."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dra_driver.dryrun.nodetypes import built_in_nodes
from dra_driver.dryrun.whatif import WhatIf, changed, new_nodes, parse_node, without_claims, without_nodes
from dra_driver.kube.resource import Node, ObjectMeta, ResourceClaim, ResourceSlice
from dra_driver.kube.resource.codec import Decoded
from dra_driver.process.command import InputError

from .clusters import DRIVER, holding, node, wanting
from .conftest import DryRun, Write, gpu, slice_of
from .test_command import claim

NODES: list[Decoded] = [*node(1), *node(2)]
HELD = [holding("on-1", "new-a30-1", "gpu-0-mig-1g6gb-14-0"), holding("on-2", "new-a30-2", "gpu-0-mig-1g6gb-14-0")]


def names(objects: Sequence[Decoded]) -> list[str]:
    return [one.metadata.name for one in objects if isinstance(one, Node | ResourceClaim)]


def pools(objects: Sequence[Decoded]) -> set[str]:
    return {one.pool.name for one in objects if isinstance(one, ResourceSlice)}


def test_without_claims_pending_ones_are_still_there() -> None:
    assert names(without_claims([*NODES, *HELD, wanting("1g.6gb")])) == ["new-a30-1", "new-a30-2", "wanted"]


def test_a_drained_node_goes_with_its_pool_and_the_claims_that_hold_its_devices() -> None:
    left = without_nodes([*NODES, *HELD, wanting("1g.6gb")], ["new-a30-1"])
    assert names(left) == ["new-a30-2", "on-2", "wanted"]
    assert pools(left) == {"new-a30-2"}
    assert without_nodes([*NODES, *HELD], []) == [*NODES, *HELD]


def test_a_pool_that_other_nodes_share_stays_complete() -> None:
    slices = [one for one in NODES if isinstance(one, ResourceSlice)]
    shared: list[Decoded] = [replace(one, pool=replace(one.pool, name="fabric")) for one in slices]
    nodes = [one for one in NODES if isinstance(one, Node)]
    left = without_nodes([*nodes, *shared], ["new-a30-1"])
    assert names(left) == ["new-a30-2"]
    assert [one for one in left if isinstance(one, ResourceSlice)] == shared


def test_a_node_that_there_is_not_cannot_be_drained() -> None:
    with pytest.raises(InputError, match=r"--drain c: there is no such node \(there are new-a30-1, new-a30-2\)"):
        without_nodes(NODES, ["c"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("h100x8", ("h100x8", 1)), ("h100x8-mig=3", ("h100x8-mig", 3)), ("./a=b.yaml=2", ("./a=b.yaml", 2))],
)
def test_nodes_are_named_with_a_count(text: str, expected: tuple[str, int]) -> None:
    assert parse_node(text) == expected


@pytest.mark.parametrize("text", ["h100x8=", "h100x8=0", "=3", "h100x8=1001", "h100x8=x"])
def test_a_count_of_nodes_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write NAME=COUNT"):
        parse_node(text)


def test_new_nodes_are_numbered_and_their_gpus_are_their_own() -> None:
    made = new_nodes(WhatIf((("a30x4", 1), ("h100x8-mig", 1), ("a30x4", 1))))
    assert names(made) == ["new-a30x4-1", "new-a30x4-2", "new-h100x8-mig-1"]
    assert pools(made) == set(names(made))
    assert len({one.metadata.name for one in made if isinstance(one, ResourceSlice)}) == 11
    uuids = [
        device.attributes["uuid"]
        for one in made
        if isinstance(one, ResourceSlice)
        for device in one.devices
        if device.attributes["type"] == "gpu"
    ]
    assert len(set(uuids)) == len(uuids) == 8


def test_a_kind_of_node_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="node type h1000x8: there is no such file, and the built-in types"):
        new_nodes(WhatIf((("h1000x8", 1),)))


def test_a_new_node_does_not_take_the_place_of_one_that_is_there() -> None:
    there = Node(ObjectMeta(name="new-a30-1"))
    with pytest.raises(InputError, match="there is a node new-a30-1 already"):
        changed([there], WhatIf(), node(1))


CLUSTER = [slice_of("node-a", gpu("gpu-0")), slice_of("node-b", gpu("gpu-0"))]
IN_USE = [
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"held-{node_name}", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
        "status": {
            "allocation": {
                "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": node_name, "device": "gpu-0"}]}
            }
        },
    }
    for node_name in ("node-a", "node-b")
]


@pytest.mark.parametrize(
    ("flags", "where", "as_if"),
    [
        ((), None, []),
        (("--without-claims",), "node-a", ["no claim in use"]),
        (("--without-claims", "--drain", "node-a"), "node-b", ["no claim in use", "node node-a drained"]),
        (("--drain", "node-a"), None, ["node node-a drained"]),
        (("--with-node", "h100x8=2"), "new-h100x8-1", ["2 additional nodes of type h100x8"]),
    ],
)
def test_the_answer_is_that_of_the_changed_cluster(
    flags: tuple[str, ...], where: str | None, as_if: list[str], dryrun: DryRun, write: Write
) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": [*CLUSTER, *IN_USE]}
    source = ("--slices", write("cluster.json", items), write("claim.yaml", claim()))
    code, out, _ = dryrun(*source, *flags, "-o", "json")
    assert code == (1 if where is None else 0)
    found = json.loads(out)
    assert found["demands"][0]["node"] == where
    assert found["inputs"]["assumptions"] == as_if


def test_new_nodes_are_all_there_is_unless_a_cluster_is_named(dryrun: DryRun, write: Write) -> None:
    code, out, _ = dryrun(write("claim.yaml", claim()), "--with-node", "a30x4=2")
    assert code == 0
    assert "devices of 2 nodes" in out
    code, out, _ = dryrun(write("claim.yaml", claim()), "--built-in", "--with-node", "a30x4=2")
    assert code == 0
    there = sum(isinstance(one, Node) for one in built_in_nodes())
    assert f"devices of {there + 2} nodes" in out


def test_the_flags_can_be_set_in_the_environment(dryrun: DryRun, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRA_DRYRUN_WITH_NODE", "a30x4=2 h100x8")
    _, out, _ = dryrun(write("claim.yaml", claim()))
    assert "devices of 3 nodes" in out
