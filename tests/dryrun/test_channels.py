# SPDX-License-Identifier: Apache-2.0
"""Claims for IMEX channels and daemons, on built-in nodes."""

import json

import pytest
import yaml

from dra_driver.domains.template import channel_claim, daemon_claim
from dra_driver.kube.resource import DeviceClaim
from dra_driver.kube.resource.codec import V1
from dra_driver.kube.resource.codec.encode import encode_claim_spec

from .conftest import DryRun, Write

DOMAIN = "0b0c8a3e-6c1e-4a57-9d0c-7f1f5a3d2e10"
CHANNEL, DAEMON = channel_claim(DOMAIN, all_channels=False), daemon_claim(DOMAIN)


def claims(claim: DeviceClaim, count: int) -> str:
    """So many claims, as a stream of documents."""
    spec = encode_claim_spec(claim, V1)
    names = [{"name": f"claim-{number}"} for number in range(count)]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return "\n---\n".join(json.dumps({**kind, "metadata": name, "spec": spec}) for name in names)


@pytest.mark.parametrize(
    ("claim", "count", "node", "fits"),
    [
        (CHANNEL, 5, "gb200x4", True),  # channel 0 can be allocated several times
        (DAEMON, 1, "gb200x4", True),
        (DAEMON, 2, "gb200x4", False),
        (CHANNEL, 1, "h100x8", False),
        (CHANNEL, 1, "gb200x4-mig", True),  # without a clique: the pod needs no device node
    ],
    ids=["channels", "daemon", "second daemon", "no channels", "no clique"],
)
def test_claims_of_a_domain_on_one_node(
    claim: DeviceClaim, count: int, node: str, fits: bool, dryrun: DryRun, write: Write
) -> None:
    code, out, _ = dryrun(write("claims.yaml", claims(claim, count)), "--with-node", node)
    assert (code == 0) == fits, out


def test_a_claim_is_allocated_on_the_built_in_nodes_with_channels(dryrun: DryRun, write: Write) -> None:
    code, out, _ = dryrun("--built-in", write("claim.yaml", claims(CHANNEL, 1)))
    assert code == 0
    assert "on node gb200x4, and on 3 other nodes" in out


def test_the_template_of_a_node_has_both_drivers(dryrun: DryRun) -> None:
    out = dryrun("node-template", "gb200x4")[1]
    names = {
        one["spec"]["driver"]: [device["name"] for device in one["spec"]["devices"]]
        for one in yaml.load_all(out, yaml.CSafeLoader)
    }
    assert names == {
        "gpu.nvidia.com": [f"gpu-{number}" for number in range(4)],
        "compute-domain.nvidia.com": ["channel-0", "daemon-0"],
    }


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("device.attributes['gpu.nvidia.com'].type == 'gpu'", "selects 4 of 4 devices of gpu.nvidia.com\n"),
        ("device.attributes['compute-domain.nvidia.com'].id == 0", "selects 2 of 2 devices of compute-domain.nv"),
        ("device.driver.startsWith('gpu')", "selects 4 of 6 devices\n"),
    ],
)
def test_an_expression_is_asked_about_the_drivers_that_it_names(expression: str, says: str, dryrun: DryRun) -> None:
    out = dryrun("cel", expression, "--with-node", "gb200x4")[1]
    assert says in out
    assert "error" not in out
