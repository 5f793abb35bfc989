# SPDX-License-Identifier: Apache-2.0
"""Specs of NVIDIA's own DRA driver in the folder of ours."""

from pathlib import Path

from kubeletplugin.check.folders import foreign_findings

from .support import levels, make_host, only

CDI = Path("/var/run/cdi")
OTHERS = [f"k8s.gpu.nvidia.com-claim_{number}.yaml" for number in range(5)]


def test_specs_of_nvidias_driver_are_named_with_what_removes_them(tmp_path: Path) -> None:
    ours = ["k8s.gpu.nvidia.com-claim_9.json", "k8s.gpu.nvidia.com-driver.json", "nvidia.yaml"]
    host = make_host(tmp_path, {f"/run/cdi/{name}": "" for name in (*ours, *OTHERS)})
    found = only(foreign_findings(host, CDI))
    assert levels([found]) == [("cdi specs", "warn")]
    assert f": {', '.join(OTHERS[:3])} and 2 more; " in found.text
    assert found.remedy.endswith("rm " + " ".join(f"{CDI}/{name}" for name in OTHERS))


def test_nothing_is_said_where_there_are_none(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/run/cdi/k8s.gpu.nvidia.com-claim_9.json": "", "/file": ""})
    for folder in (CDI, Path("/missing"), Path("/file")):
        assert list(foreign_findings(host, folder)) == []
