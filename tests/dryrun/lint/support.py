# SPDX-License-Identifier: Apache-2.0
"""Linting text, and short ways to write what is linted."""

import functools
import json
import textwrap
from typing import Any

from dra_driver.dryrun.documents import read_text
from dra_driver.dryrun.lint.catalog import KnownObjects
from dra_driver.dryrun.lint.check import LintBasis, check
from dra_driver.dryrun.lint.finding import LintFinding
from dra_driver.dryrun.nodetypes import built_in_nodes
from dra_driver.scheduler.cel import NEWEST
from tests.dryrun.clusters import with_defaults

FILE = "claims.yaml"


@functools.cache
def known() -> KnownObjects:
    """The devices of the built-in nodes. What is found out about them does not depend on the files that are checked."""
    return KnownObjects(with_defaults(built_in_nodes(machines=True)))


def lint_text(text: str, release: str = NEWEST) -> list[LintFinding]:
    """The findings for one file with this text."""
    reading = read_text(textwrap.dedent(text), FILE, lenient=True)
    return list(check(reading, LintBasis(release, known(), "here", models=True)).findings)


def rules(findings: list[LintFinding]) -> list[str]:
    """The ids of the rules that were broken."""
    return [one.rule for one in findings]


def claim(
    requests: object = None,
    *,
    version: str = "v1",
    kind: str = "ResourceClaim",
    name: str = "wanted",
    **devices: object,
) -> dict[str, Any]:
    """A claim, or a template of one, with these requests (one for a GPU, when there are none)."""
    spec: dict[str, Any] = {"devices": {"requests": requests or [request()], **devices}}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec if kind == "ResourceClaim" else {"spec": spec},
    }


def template(requests: object = None, **others: Any) -> dict[str, Any]:
    """A ResourceClaimTemplate."""
    return claim(requests, kind="ResourceClaimTemplate", **others)


def request(name: str = "gpu", device_class: str = "gpu.nvidia.com", **exactly: object) -> dict[str, Any]:
    """A request for exactly this."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **exactly}}


def selecting(*expressions: str, device_class: str = "gpu.nvidia.com") -> dict[str, Any]:
    """A claim whose only request has these selectors."""
    return claim([request(device_class=device_class, selectors=selectors(*expressions))])


def selectors(*expressions: str) -> list[dict[str, Any]]:
    """A list of CEL selectors."""
    return [{"cel": {"expression": one}} for one in expressions]


def device_class(*expressions: str, name: str = "mine", **spec: object) -> dict[str, Any]:
    """A DeviceClass."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors(*expressions), **spec},
    }


def config(kind: str = "GpuConfig", *requests: str, **parameters: object) -> dict[str, Any]:
    """A configuration for this driver."""
    content = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **parameters}
    return {"requests": list(requests), "opaque": {"driver": "gpu.nvidia.com", "parameters": content}}


def channel_config(kind: str = "ComputeDomainChannelConfig", *requests: str, **parameters: object) -> dict[str, Any]:
    """A configuration for the driver of ComputeDomains."""
    made = config(kind, *requests, **{"domainID": "8a1f0c52-6d6c-4b7e-9f0e-0c9a7a1b2c3d", **parameters})
    return {**made, "opaque": {**made["opaque"], "driver": "compute-domain.nvidia.com"}}


def domain(*, name: str = "train", template: str = "train-channel", **spec: object) -> dict[str, Any]:
    """A ComputeDomain."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name},
        "spec": {"channel": {"resourceClaimTemplate": {"name": template}}, **spec},
    }


def pod(claims: object, *uses: object) -> dict[str, Any]:
    """A pod with these resourceClaims and one container with these uses of them."""
    container = {"name": "cuda", "image": "cuda", "resources": {"claims": list(uses)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "cuda"},
        "spec": {"containers": [container], "resourceClaims": claims},
    }


def stream(*objects: object) -> str:
    """The objects as YAML documents, one a line."""
    return "\n---\n".join(json.dumps(one) for one in objects)
