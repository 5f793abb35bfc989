# SPDX-License-Identifier: Apache-2.0
"""The fields that the chart uses of kinds that no release of Kubernetes knows.

They are those of the Prometheus Operator's and cert-manager's CustomResourceDefinitions, and no others: a new field is
looked up there first.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

JSON = dict[str, Any]

_TEXT = r".+"
_DURATION = r"(?=.)(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?"


def _monitor(endpoints: str) -> Mapping[str, str]:
    return {
        r"selector\.matchLabels\..+": _TEXT,
        rf"{endpoints}\[\]\.port": _TEXT,
        rf"{endpoints}\[\]\.path": r"/.*",
        rf"{endpoints}\[\]\.interval": _DURATION,
    }


SPECS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("monitoring.coreos.com/v1", "PodMonitor"): _monitor("podMetricsEndpoints"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _monitor("endpoints"),
    ("monitoring.coreos.com/v1", "PrometheusRule"): {
        r"groups\[\]\.name": _TEXT,
        r"groups\[\]\.rules\[\]\.(alert|expr)": _TEXT,
        r"groups\[\]\.rules\[\]\.for": _DURATION,
        r"groups\[\]\.rules\[\]\.(labels|annotations)\.\w+": _TEXT,
    },
    ("cert-manager.io/v1", "Certificate"): {
        r"secretName": _TEXT,
        r"dnsNames\[\]": _TEXT,
        r"issuerRef\.name": _TEXT,
        r"issuerRef\.kind": r"Issuer|ClusterIssuer",
        r"privateKey\.algorithm": r"RSA|ECDSA|Ed25519",
        r"privateKey\.rotationPolicy": r"Never|Always",
    },
    ("cert-manager.io/v1", "Issuer"): {r"selfSigned": ""},
}
"""(apiVersion, kind) -> path of a field below `spec` -> its value, both as patterns; an empty object has no value."""
NEEDED: Mapping[str, frozenset[str]] = {
    "PodMonitor": frozenset({"selector"}),
    "ServiceMonitor": frozenset({"selector", "endpoints"}),
    "PrometheusRule": frozenset({"groups"}),
    "Certificate": frozenset({"secretName", "issuerRef"}),
    "Issuer": frozenset(),
}
"""Kind -> what a spec is refused without."""


def is_custom(value: JSON) -> bool:
    """Whether an object is of one of these groups."""
    return value["apiVersion"].partition("/")[0] in {version.partition("/")[0] for version, _ in SPECS}


def complaints(value: JSON) -> list[str]:
    """What is wrong with an object, a line each."""
    kind, spec = value["kind"], value["spec"]
    known = SPECS[value["apiVersion"], kind]
    wrong = [
        f"{kind}: {path}={text}"
        for path, text in _fields(spec)
        if not any(re.fullmatch(name, path) and re.fullmatch(pattern, text) for name, pattern in known.items())
    ]
    return wrong + [f"{kind}: no {name}" for name in sorted(NEEDED[kind] - set(spec))]


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _fields(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _fields(inner, f"{path}[]")
    else:
        yield path, "" if value == {} else str(value)
