# SPDX-License-Identifier: Apache-2.0
"""DRA's feature gate in kubelet's configuration file."""

from pathlib import Path

import pytest

from kubeletplugin.check.kubelet import kubelet_findings, read_kubelet

from .support import levels, make_host

PATH = "/var/lib/kubelet/config.yaml"


@pytest.mark.parametrize(
    ("text", "version", "level"),
    [
        (None, "v1.33.1", []),
        ("kind: KubeletConfiguration\n", "v1.36.0", ["pass"]),
        ("kind: KubeletConfiguration\n", "v1.33.1", ["fail"]),
        ("kind: KubeletConfiguration\n", "", ["pass"]),
        ("featureGates:\n", "v1.36.0", ["pass"]),
        ("featureGates: {DynamicResourceAllocation: true}\n", "v1.33.1", ["pass"]),
        ("featureGates: {DynamicResourceAllocation: false}\n", "v1.36.0", ["fail"]),
        ("featureGates: [a]\n", "v1.36.0", ["warn"]),
        ("- a\n", "v1.36.0", ["warn"]),
        ("a: [\n", "v1.36.0", ["warn"]),
    ],
)
def test_the_gate_is_on_by_the_file_or_by_default(
    tmp_path: Path, text: str | None, version: str, level: list[str]
) -> None:
    host = make_host(tmp_path, {} if text is None else {PATH: text})
    assert [one for _, one in levels(kubelet_findings(read_kubelet(host, PATH), version))] == level
