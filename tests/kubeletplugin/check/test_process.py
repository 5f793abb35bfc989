# SPDX-License-Identifier: Apache-2.0
"""How kubelet was started, as the host's /proc and the Node tell it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kubeletplugin.check.host import Host
from kubeletplugin.check.process import DEFAULT_ROOT, Flags, Started, Unseen, find_kubelet, parse_flags

from .support import make_host, process


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ([], Flags()),
        (["--config=/etc/k.yaml", "--root-dir", "/data/kubelet"], Flags("/etc/k.yaml", root_dir="/data/kubelet")),
        (["--config_dir=/etc/k.d"], Flags(config_dir="/etc/k.d")),
        (["--root-dir=/a", "--root-dir=/b"], Flags(root_dir="/b")),
        (["--root-dir="], Flags(root_dir=DEFAULT_ROOT)),
        (["--hostname-override=Node-A"], Flags(hostname_override="node-a")),
        (["--v", "4", "--fail-swap-on", "--config=/c"], Flags("/c")),
        (["--config"], Flags()),
        (["--feature-gates=A=true,B=false", "--feature-gates", "B=1, C=T"], Flags(gates=dict.fromkeys("ABC", True))),
        (["--feature-gates=A", "feature-gates=B=true"], Flags()),
        (["--container-runtime-endpoint=unix:///a.sock"], Flags(runtime_endpoint="unix:///a.sock")),
    ],
)
def test_flags_are_read_as_kubelet_reads_them(arguments: list[str], flags: Flags) -> None:
    assert parse_flags(arguments) == flags


OTHER_NODE = process(900, "kubelet", "--root-dir=/other", namespaces="\t12")
MICROK8S = "/var/snap/microk8s/8511/args/kubelet"


@pytest.mark.parametrize(
    ("files", "of_node", "flags", "by"),
    [
        (process(812, "kubelet", "--root-dir=/data"), {}, Flags(root_dir="/data"), "process 812"),
        (process(812, "kubelet") | OTHER_NODE, {}, Flags(), "process 812"),
        (
            process(812, "kubelet", "--hostname-override=node-a") | process(813, "kubelet", "--root-dir=/b"),
            {},
            Flags(hostname_override="node-a"),
            "process 812",
        ),
        (
            process(7, "k3s-agent"),
            {"k3s": ["agent", "--kubelet-arg", "feature-gates+=A=true", "--kubelet-arg", "root-dir=/data"]},
            Flags(config_dir="/var/lib/rancher/k3s/agent/etc/kubelet.conf.d", root_dir="/data", gates={"A": True}),
            "annotation k3s.io/node-args",
        ),
        (
            {},
            {"rke2": ["server", "--data-dir", "/rke2", "--kubelet-arg", "--config-dir=/etc/k.d", "--kubelet-arg"]},
            Flags(config_dir="/etc/k.d"),
            "annotation rke2.io/node-args",
        ),
        (
            process(9, "kubelet", "--config-dir=/etc/k.d"),
            {"rke2": ["agent"]},
            Flags(config_dir="/etc/k.d"),
            "process 9",
        ),
        (
            {
                **process(20, "kubelite", "--scheduler-args-file=/x", f"--kubelet-args-file={MICROK8S}"),
                MICROK8S: '--root-dir="${SNAP_COMMON}/var/lib/kubelet"\n# a word\n--config=${SNAP_DATA}/kubelet.yaml\n',
            },
            {},
            Flags("/var/snap/microk8s/8511/kubelet.yaml", root_dir="/var/snap/microk8s/common/var/lib/kubelet"),
            f"process 20 and {MICROK8S}",
        ),
    ],
    ids=["alone", "kind's beside it", "two", "k3s", "rke2 unseen", "rke2", "microk8s"],
)
def test_the_nodes_kubelet_is_found(
    tmp_path: Path, files: dict[str, str], of_node: Mapping[str, Sequence[str]], flags: Flags, by: str
) -> None:
    found = find_kubelet(make_host(tmp_path, files), "node-a", of_node)
    assert isinstance(found, Started)
    assert (found.flags, found.by) == (flags, by)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "no process kubelet"),
        (OTHER_NODE, "no process kubelet"),
        (process(3, "kubelet-wrapper"), "no process kubelet"),
        ({**process(3, "kubelet"), "/proc/3/cmdline": ""}, "no process kubelet"),  # it has ended
        (process(3, "kubelet") | process(4, "kubelet"), "2 processes kubelet (3, 4)"),
        (process(7, "k3s-server"), "k3s hides"),
        (process(20, "kubelite", "--kubelet-args-file=/missing"), "no process kubelet"),
    ],
)
def test_a_kubelet_that_is_not_seen_is_told_with_the_reason(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    found = find_kubelet(make_host(tmp_path, files), "node-a", {})
    assert isinstance(found, Unseen)
    assert reason in found.reason
    assert found.remedy


@pytest.mark.node
def test_a_real_process_is_found_in_proc(tmp_path: Path) -> None:
    program = tmp_path / "kubelet"
    program.write_text("#!/bin/sh\necho started\nread line\n", encoding="ascii")
    program.chmod(0o755)
    name = f"test-{os.getpid()}"
    command = [str(program), f"--hostname-override={name}", "--root-dir", "/data"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        found = find_kubelet(Host(Path("/")), name, {})
        running.communicate(b"\n")
    assert isinstance(found, Started)
    assert (found.flags.root_dir, found.by) == ("/data", f"process {running.pid}")
