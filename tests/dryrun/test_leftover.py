# SPDX-License-Identifier: Apache-2.0
"""What stays free of each kind of device after a demand has what it gets."""

import json
from collections.abc import Sequence
from dataclasses import replace

from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.stock import leftovers
from dra_driver.dryrun.workload import Demand
from dra_driver.kube.resource import DeviceRequest, ResourceClaim, ResourceSlice
from dra_driver.kube.resource.codec import Decoded
from dra_driver.scheduler.allocator import Features
from tests.dryrun.clusters import with_defaults

from .clusters import cluster, node, wanting
from .conftest import DryRun, Write
from .test_command import claim

NODES = [*node(1), *node(2)]


def left(objects: Sequence[Decoded], *claims: ResourceClaim) -> dict[str, tuple[int, int]]:
    named = [replace(one, metadata=replace(one.metadata, name=f"wanted-{number}")) for number, one in enumerate(claims)]
    demands = [Demand(one.metadata.name, (one,)) for one in named]
    verdicts = evaluate(demands, with_defaults(objects), Features())
    found = leftovers(verdicts, cluster(objects), Features())
    return {one.kind.profile: (one.before, one.after) for one in found}


def test_profiles_that_share_a_gpu_become_fewer_together() -> None:
    assert left(NODES, wanting("2g.12gb")) == {"1g.6gb": (8, 6), "2g.12gb": (4, 3), "4g.24gb": (2, 1)}


def test_demands_add_up_and_what_fits_nowhere_takes_nothing() -> None:
    assert left(NODES, wanting("4g.24gb"), wanting("4g.24gb"), wanting("4g.24gb"))["1g.6gb"] == (8, 0)
    assert left(NODES, wanting("4g.24gb", count=2)) == {}


def test_administrators_access_takes_nothing() -> None:
    one = wanting("4g.24gb")
    exactly = one.spec.requests[0].exactly
    assert exactly is not None
    request = DeviceRequest("gpu", exactly=replace(exactly, admin_access=True))
    assert left(NODES, replace(one, spec=replace(one.spec, requests=(request,)))) == {}


def test_a_share_of_a_device_takes_no_whole_one() -> None:
    shared = [
        replace(one, devices=tuple(replace(device, allow_multiple_allocations=True) for device in one.devices))
        if isinstance(one, ResourceSlice)
        else one
        for one in node(1)
    ]
    assert left(shared, wanting("4g.24gb")) == {}


def test_command_prints_free_devices_before_and_after(dryrun: DryRun, write: Write) -> None:
    wanted = write("claim.yaml", claim(count=3))
    _, out, _ = dryrun(wanted, "--with-node", "a30x4")
    assert [line.split(maxsplit=3) for line in out.splitlines()[-2:]] == [
        ["FREE", "BEFORE", "AFTER", "PROFILE  MODEL"],
        ["4", "1", "-", "NVIDIA A30"],
    ]
    _, out, _ = dryrun(wanted, "--with-node", "a30x4", "-o", "json")
    assert json.loads(out)["leftover"] == [
        {"driver": "gpu.nvidia.com", "model": "NVIDIA A30", "profile": None, "freeBefore": 4, "freeAfter": 1}
    ]
