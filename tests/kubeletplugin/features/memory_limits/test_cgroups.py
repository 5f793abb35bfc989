# SPDX-License-Identifier: Apache-2.0
"""Which cgroup belongs to which pod."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.errors import LimitError
from kubeletplugin.features.memory_limits.cgroups import Cgroups

UID = "1b671a64-40d5-491e-99b0-da01ff1f3411"
FLAT = UID.replace("-", "_")
SLICES = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice"


@pytest.mark.parametrize(
    ("pod", "rest"),
    [
        (f"/kubepods/besteffort/pod{UID}", "/0123456789abcdef"),
        (f"/kubepods/pod{UID}", "/0123456789abcdef"),
        (SLICES, "/cri-containerd-0123456789abcdef.scope"),
        (SLICES, "/crio-0123456789abcdef.scope"),
        (SLICES, "/crio-0123456789abcdef.scope/container"),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{FLAT}.slice", "/x.scope"),
        (f"/system.slice/containerd.service/kubepods-besteffort-pod{FLAT}.slice:cri-containerd", ""),
    ],
)
def test_the_pod_of_a_container(tmp_path: Path, pod: str, rest: str) -> None:
    (tmp_path / (pod + rest).lstrip("/")).mkdir(parents=True)
    if not rest:
        with pytest.raises(LimitError, match="is not below the cgroup of a pod"):
            Cgroups(tmp_path).container(pod)
    else:
        found = Cgroups(tmp_path).container(pod + rest)
        assert (found.path, found.pod) == (pod + rest, pod)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "is not below the cgroup of a pod"),
        ("/", "is not the path of a cgroup"),
        ("/user.slice/user-0.slice", "is not below the cgroup of a pod"),
        (f"/kubepods/pod{UID}", "is not below the cgroup of a pod"),
        (f"/../kubepods/pod{UID}/x", "is not the path of a cgroup"),
        (f"/kubepods/pod{UID}/../x", "is not the path of a cgroup"),
        (f"/kubepods/pod{UID}//x", "is not the path of a cgroup"),
        (f"kubepods/pod{UID}/x", "is not the path of a cgroup"),
        (f"/kubepods/pod{UID}/x\0", "is not the path of a cgroup"),
        (f"/kubepods/pod{UID}/gone", "mount the host's /sys/fs/cgroup"),
        (f"/kubepods/pod{UID}/{'x' * 5000}", "mount the host's /sys/fs/cgroup"),
    ],
)
def test_other_paths_are_refused(tmp_path: Path, path: str, text: str) -> None:
    with pytest.raises(LimitError, match=text):
        Cgroups(tmp_path).container(path)


@given(st.lists(st.sampled_from(["", ".", "..", f"pod{UID}", "kubepods", "x", "\udcff"]) | st.text(), max_size=6))
def test_no_path_leads_out_of_the_hierarchy(steps: list[str]) -> None:
    root = Path("/nonexistent/root")
    with pytest.raises(LimitError):
        Cgroups(root).container("/".join(["", *steps]))
