# SPDX-License-Identifier: Apache-2.0
"""Every mode of sharing at the same time on one node: claims come and go together, and nothing is left."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.policy import Enforcement, GpuRule, MigPolicy, NodePolicy, ShareMode
from dra_driver.kube.resource import Quantity
from kubeletplugin.claims.model import ClaimRef
from tests.kubeletplugin.inside import NOTHING, ApiServer, Plugin
from tests.support.claims import mps, time_slicing
from tests.support.mps import mps_of

pytestmark = pytest.mark.node

SHARES = [f"0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e1{number}" for number in range(6)]
POLICY = NodePolicy(
    (
        GpuRule(indexes=(0,), shares=ShareMode.MEMORY, enforce=Enforcement.MPS),
        GpuRule(indexes=(1,), shares=2),
        GpuRule(indexes=(4,), shares=2, enforce=Enforcement.MPS),
        GpuRule(indexes=(3,), mig=MigPolicy.DYNAMIC),
    ),
    mps=True,
)
ROUNDS = 3


def enforced(api: ApiServer, device: str, name: str, share: str) -> ClaimRef:
    """A claim for 4 GiB of a device whose shares MPS enforces."""
    ref = api.add([device], name, shareID=share)
    claim = api.claims[ref.uid]
    assert claim.allocation is not None
    consumed = {"memory": Quantity.of(4 << 30), "shares": Quantity.of(1)}
    results = tuple(replace(one, consumed_capacity=consumed) for one in claim.allocation.results)
    api.claims[ref.uid] = replace(claim, allocation=replace(claim.allocation, results=results))
    return ref


def test_claims_of_all_modes_come_and_go_together(short_path: Path) -> None:
    api = ApiServer()
    plugin = Plugin(short_path, api, policy=POLICY)
    kinds: dict[str, Callable[[str], ClaimRef]] = {
        "share with limits": lambda name: enforced(api, "gpu-0", name, SHARES[0]),
        "another share with limits": lambda name: enforced(api, "gpu-0", name, SHARES[1]),
        "share in turns": lambda name: api.add(["gpu-1"], name, sharing=time_slicing("Long"), shareID=SHARES[2]),
        "share without limits": lambda name: api.add(["gpu-1"], name, shareID=SHARES[3]),
        "whole GPU with MPS": lambda name: api.add(["gpu-2"], name, sharing=mps(defaultActiveThreadPercentage=40)),
        "MIG device of a whole GPU": lambda name: api.add(["gpu-3-mig-1g10gb-19-0"], name),
        "share of a MIG device": lambda name: enforced(api, "gpu-4-mig-1g10gb-19-0", name, SHARES[4]),
        "another share of a MIG device": lambda name: enforced(api, "gpu-4-mig-1g10gb-19-0", name, SHARES[5]),
        "MIG device with MPS": lambda name: api.add(["gpu-5-mig-2g20gb-14-0"], name, sharing=mps()),
        "MIG device": lambda name: api.add(["gpu-5-mig-2g20gb-14-2"], name),
    }

    def live(kind: str) -> int:
        prepared = 0
        for _ in range(ROUNDS):
            claim = kinds[kind](kind)
            prepared += len(plugin.engine.prepare(claim).plan.devices)
            plugin.engine.unprepare(claim)
            api.delete(claim)
        return prepared

    try:
        with mps_of(short_path, plugin.node, short_path / "mps.log") as supervisor:
            with ThreadPoolExecutor(len(kinds)) as threads:
                assert list(threads.map(live, kinds)) == [ROUNDS] * len(kinds)
            assert (plugin.left(), supervisor.left()) == (NOTHING, [])
        assert plugin.unexpected == []
    finally:
        plugin.stop()
