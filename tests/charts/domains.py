# SPDX-License-Identifier: Apache-2.0
"""Renderings, pods and objects for the tests of ComputeDomains in the chart."""

import functools
from typing import Any

import pytest

from dra_driver.domains.names import CLIQUE_LABEL, DOMAIN_LABEL, clique_name, daemon_name
from dra_driver.domains.objects import CLIQUES, DaemonReport, Member, encode_member
from tests.support.apiserver import ASSETS

from .rendering import JSON, NAMESPACE, render

DAEMONS = "compute-domain-daemon-service-account"
ONE, TWO = "6a1b1f34-0000-4000-8000-000000000001", "6a1b1f34-0000-4000-8000-000000000002"
CLIQUE = "9f410827-489f-46fd-8203-51266ca08eb7.7"
DAEMON, FOREIGN = f"{daemon_name(ONE)}-x7f2k", f"{daemon_name(TWO)}-p0q1r"
PODS = {
    DAEMON: ("a", DAEMONS),
    FOREIGN: ("a", DAEMONS),
    "driver": ("a", "release-dra-driver-gpu-kubeletplugin"),
    "controller": ("a", "release-dra-driver-gpu-controller"),
}
"""Pods on node a, with their accounts."""


def domains(**values: Any) -> JSON:
    """Values for ComputeDomains."""
    return {"resources": {"computeDomains": values}}


@functools.cache
def domain_objects() -> list[JSON]:
    """The objects of a rendering with ComputeDomains."""
    return render(domains(imex={"tls": {"issuerName": "ca"}}))


REAL = pytest.mark.skipif(
    not ASSETS, reason="no KUBEBUILDER_ASSETS: the embedded API server applies no schemas or policies"
)

ROW = encode_member(Member("a", "", CLIQUE, 0, DaemonReport(True, "READY", "UP", "")))
"""The row of node a in a clique."""


def clique(*rows: JSON, uid: str = ONE) -> JSON:
    """The members of a domain in `CLIQUE`."""
    labels = {DOMAIN_LABEL: uid, CLIQUE_LABEL: CLIQUE}
    meta = {"name": clique_name(uid, CLIQUE), "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": CLIQUES.api_version, "kind": "ComputeDomainClique", "metadata": meta, "daemons": list(rows)}
