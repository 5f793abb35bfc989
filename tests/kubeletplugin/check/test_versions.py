# SPDX-License-Identifier: Apache-2.0
"""The releases that the driver was made for."""

import pytest

from kubeletplugin.check.cluster import reported_minor, version_findings
from kubeletplugin.containers.runtime import version_of

from .support import levels


@pytest.mark.parametrize(("text", "minor"), [("v1.36.2", 36), ("1.34", 34), ("v1.33.4-gke.100", 33), ("v2", None)])
def test_minor_versions_are_read_from_what_distributions_write(text: str, minor: int | None) -> None:
    assert reported_minor(text) == minor


@pytest.mark.parametrize(
    ("reported", "version"),
    [
        ("containerd://2.1.4", (2, 1, 4)),
        ("containerd://v1.7.27-k3s1", (1, 7, 27)),
        ("cri-o://1.34.0", (1, 34, 0)),
        ("containerd://", ()),
        ("", ()),
    ],
)
def test_a_runtimes_version_is_what_the_node_reports(reported: str, version: tuple[int, ...]) -> None:
    assert version_of(reported) == version


@pytest.mark.parametrize(
    ("kubelet", "runtime", "expected"),
    [
        ("v1.32.0", "containerd://1.7.16", ["pass", "pass"]),
        ("v1.34.0", "containerd://1.7.12", ["pass", "warn"]),
        ("v1.37.1", "cri-o://1.37.0", ["pass", "pass"]),
        ("v1.31.9", "containerd://1.6.33", ["fail", "fail"]),
        ("v1.38.0", "docker://28.0.1", ["warn", "warn"]),
        ("dev", "containerd://dev", ["warn", "warn"]),
        ("v1.36.0", "cri-o://1.31.4", ["pass", "warn"]),
        ("", "", ["warn", "warn"]),
    ],
)
def test_each_version_has_a_line_with_what_to_do(kubelet: str, runtime: str, expected: list[str]) -> None:
    found = list(version_findings(kubelet, runtime))
    assert levels(found) == list(zip(("kubelet version", "container runtime version"), expected, strict=True))
    assert [bool(one.remedy) for one in found] == [level != "pass" for level in expected]
