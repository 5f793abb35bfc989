# SPDX-License-Identifier: Apache-2.0
"""The process does not grow: what it remembers of claims goes with them."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from dra_driver.kube.api import ApiClient
from kubeletplugin.protocol import dra_v1_pb2
from tests.support.plugin import plugin_on, stored_claim

CLAIMS = [
    ["gpu-0"],
    ["gpu-1"],
    ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1"],
    ["gpu-5-mig-3g40gb-9-4"],
    ["gpu-2", "gpu-6-mig-2g20gb-14-2"],
]
VERBS = ("Prepare", "Unprepare")
EARLY, LATE = 100, 300
MOST = 1.015


def test_three_hundred_claims_take_no_more_memory_than_a_hundred(kubeconfig: Path, client: ApiClient) -> None:
    with contextlib.ExitStack() as plugins:
        plugin = plugins.enter_context(plugin_on(kubeconfig)).start()
        assert plugin.process is not None
        status = Path(f"/proc/{plugin.process.pid}/status")
        own: dict[int, int] = {}  # without the pages of files, which come and go
        channel = plugins.enter_context(grpc.insecure_channel(f"unix:{plugin.service}"))  # kubelet keeps its own too
        calls = [(method_of(channel, verb), getattr(dra_v1_pb2, f"Node{verb}ResourcesRequest")) for verb in VERBS]
        for cycle in range(1, LATE + 1):
            claim = stored_claim(client, *CLAIMS[cycle % len(CLAIMS)])
            for method, messages in calls:
                assert method(messages(claims=[claim])).claims[claim.uid].error == ""
            if cycle in (EARLY, LATE):
                own[cycle] = next(
                    int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("RssAnon:")
                )
        print(f"KiB of its own after so many cycles: {own}")
        assert own[LATE] <= MOST * own[EARLY]


def method_of(channel: grpc.Channel, verb: str) -> Callable[[Any], Any]:
    """How kubelet calls, over a connection that it keeps."""
    return channel.unary_unary(
        f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node{verb}Resources",
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=getattr(dra_v1_pb2, f"Node{verb}ResourcesResponse").FromString,
    )
