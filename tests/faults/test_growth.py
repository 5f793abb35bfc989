# SPDX-License-Identifier: Apache-2.0
"""Nothing in the process grows with the number of claims that were."""

from pathlib import Path
from typing import Any

import grpc

from dra_driver.kube.api import ApiClient
from kubeletplugin.protocol import dra_v1_pb2
from tests.support.apiserver import CLAIMS
from tests.support.plugin import stored_claim
from tests.support.waiting import wait_for

from .processes import killable_plugin, require_as_before
from .resources import ResourceCounts
from .test_memory import method_of

EARLY, LATE = 30, 90
DEVICES = [
    ["gpu-0"],
    ["gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-1"],
    ["gpu-2"],
    ["gpu-3-mig-3g40gb-9-4"],
    ["gpu-9"],
]


class Kubelet:
    """kubelet's calls, over one connection."""

    def __init__(self, channel: grpc.Channel, client: ApiClient) -> None:
        self._prepare, self._unprepare = (method_of(channel, verb) for verb in ("Prepare", "Unprepare"))
        self._client = client

    def cycle(self, number: int) -> None:
        """A claim from its first to its last call; some are repeated, some are of claims that are gone."""
        devices = DEVICES[number % len(DEVICES)]
        fails = devices == ["gpu-9"]  # there is none
        claim = stored_claim(self._client, *devices)
        for _ in range(1 + number % 2):
            answer = self._prepare(dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim]))
            assert bool(answer.claims[claim.uid].error) is fails, answer
        if number % 3 == 0:
            wait_for(lambda: "devices" in self._status(claim), "the API server to be told of the claim")
        if number % 3 < 2:
            self._client.delete(CLAIMS, claim.name, "default")
        for _ in range(1 + number % 2):
            answer = self._unprepare(dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[claim]))
            assert answer.claims[claim.uid].error == ""

    def _status(self, claim: Any) -> Any:
        return self._client.get(CLAIMS, claim.name, "default")["status"]


def test_no_container_grows(kubeconfig: Path, client: ApiClient) -> None:
    with killable_plugin(kubeconfig, "--device-metadata") as plugin:
        plugin.start()
        before: ResourceCounts = {}
        with grpc.insecure_channel(f"unix:{plugin.service}") as channel:
            kubelet = Kubelet(channel, client)
            for number in range(LATE):
                if number == EARLY:
                    before = plugin.resource_counts()
                kubelet.cycle(number)
            require_as_before(plugin.resource_counts, before)
