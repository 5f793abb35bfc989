# SPDX-License-Identifier: Apache-2.0
"""DRA's feature gate as kubelet puts it together of its files and flags, and which Node kubelet is."""

from pathlib import Path

import pytest

from kubeletplugin.check.kubelet import kubelet_findings, read_kubelet
from kubeletplugin.finding import CheckResult, Level

from .support import levels, make_host, only, process

USUAL = "/var/lib/kubelet/config.yaml"
CONFIG, FOLDER = "/etc/kubelet.yaml", "/etc/kubelet.d"
ON = "featureGates: {DynamicResourceAllocation: true}\n"
OFF = "featureGates: {DynamicResourceAllocation: false}\n"
FLAG = "--feature-gates=DynamicResourceAllocation="
EMPTY = "kind: KubeletConfiguration\n"


def findings(
    folder: Path, files: dict[str, str], *flags: str, version: str = "v1.33.1", node_name: str = "node-a"
) -> list[CheckResult]:
    """Of a kubelet that runs with these flags."""
    host = make_host(folder, {**process(812, "kubelet", *flags), **files})
    return list(kubelet_findings(read_kubelet(host, USUAL, node_name, {}, visible=True), version, node_name))


@pytest.mark.parametrize(
    ("config", "drop_ins", "gates", "version", "level", "says"),
    [
        (EMPTY, {}, "", "v1.36.0", "pass", "by default; flags, /etc/kubelet.yaml do not change it"),
        (EMPTY, {}, "", "v1.33.1", "fail", "not set, and disabled by default before 1.34"),
        (EMPTY, {}, "", "", "warn", "kubelet's version is unknown"),
        ("featureGates:\n", {}, "", "v1.36.0", "pass", "by default"),
        (ON, {}, "", "v1.33.1", "pass", f"enabled ({CONFIG})"),
        (ON, {}, "", "", "pass", f"enabled ({CONFIG})"),
        (OFF, {}, "", "v1.36.0", "fail", f"disabled ({CONFIG})"),
        ("featureGates: {AllBeta: true}\n", {}, "", "v1.33.1", "pass", f"enabled ({CONFIG})"),
        (
            "featureGates: {AllBeta: true}\n",
            {},
            "DynamicResourceAllocation=false",
            "v1.33.1",
            "fail",
            "disabled (--feature",
        ),
        ("featureGates: {AllBeta: false}\n", {}, "", "v1.36.0", "pass", "by default"),
        (OFF, {}, "DynamicResourceAllocation=true", "v1.33.1", "pass", "enabled (--feature-gates, process 812)"),
        (ON, {}, "Other=true", "v1.33.1", "pass", f"enabled ({CONFIG})"),
        (OFF, {"10.conf": ON}, "", "v1.33.1", "pass", f"enabled ({FOLDER}/10.conf)"),
        (ON, {"10.conf": ON, "20.conf": OFF}, "", "v1.33.1", "fail", f"disabled ({FOLDER}/20.conf)"),
        (ON, {"10.conf": OFF, "20.conf": ON, "a/30.conf": EMPTY}, "", "v1.33.1", "pass", f"enabled ({FOLDER}/20.conf)"),
        (ON, {"10/b.conf": OFF}, "", "v1.33.1", "fail", f"disabled ({FOLDER}/10/b.conf)"),
        (ON, {"10.yaml": OFF}, "", "v1.33.1", "pass", f"enabled ({CONFIG})"),
        (ON, {"10.conf": "featureGates: null\n"}, "", "v1.33.1", "fail", "not set"),
        (ON, {"10.conf": "featureGates: {DynamicResourceAllocation: null}\n"}, "", "v1.33.1", "fail", "not set"),
        (ON, {"10.conf": OFF}, "DynamicResourceAllocation=true", "v1.33.1", "pass", "enabled (--feature-gates"),
    ],
)
def test_flags_are_over_drop_ins_and_drop_ins_over_the_file(
    tmp_path: Path, config: str, drop_ins: dict[str, str], gates: str, version: str, level: str, says: str
) -> None:
    files = {CONFIG: config, **{f"{FOLDER}/{name}": text for name, text in drop_ins.items()}}
    flags = [f"--config={CONFIG}", f"--config-dir={FOLDER}", *([f"--feature-gates={gates}"] if gates else [])]
    found = only(findings(tmp_path, files, *flags, version=version))
    assert (found.check, str(found.level)) == ("kubelet configuration", level)
    assert says in found.text
    assert bool(found.remedy) == (level != "pass")


@pytest.mark.parametrize(
    ("files", "flags", "remedy"),
    [
        ({}, [], "give kubelet `--feature-gates=DynamicResourceAllocation=true` where it is started"),
        ({CONFIG: ON}, [f"--config={CONFIG}", f"{FLAG}false"], "give kubelet `--feature-gates="),
        (
            {CONFIG: EMPTY},
            [f"--config={CONFIG}"],
            f"set `featureGates: {{DynamicResourceAllocation: true}}` in {CONFIG}",
        ),
        ({f"{FOLDER}/a.conf": OFF}, [f"--config-dir={FOLDER}"], f"in {FOLDER}/a.conf, and restart kubelet"),
    ],
)
def test_the_remedy_is_for_the_place_that_decides(
    tmp_path: Path, files: dict[str, str], flags: list[str], remedy: str
) -> None:
    assert remedy in only(findings(tmp_path, files, *flags)).remedy


def test_k3s_is_given_the_flag_in_its_own_file(tmp_path: Path) -> None:
    facts = read_kubelet(make_host(tmp_path, {}), USUAL, "node-a", {"k3s": ["server"]}, visible=True)
    found = only(kubelet_findings(facts, "v1.33.1+k3s1", "node-a"))
    assert found.level is Level.FAIL
    assert "as `kubelet-arg` in /etc/rancher/k3s/config.yaml, and `systemctl restart 'k3s*'`" in found.remedy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, f"{CONFIG}, which kubelet's --config names, does not exist"),
        ("a: [\n", f"{CONFIG} is not YAML"),
        ("- a\n", f"{CONFIG} is not a KubeletConfiguration"),
        ("featureGates: [a]\n", "is not a mapping"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_warning(tmp_path: Path, text: str | None, says: str) -> None:
    found = only(findings(tmp_path, {} if text is None else {CONFIG: text}, f"--config={CONFIG}"))
    assert found.level is Level.WARN
    assert says in found.text
    assert "/proxy/configz" in found.remedy


@pytest.mark.parametrize(
    ("files", "visible", "level", "says"),
    [
        ({}, True, "warn", "no process kubelet was found"),
        ({USUAL: ON}, True, "warn", "no process kubelet was found"),  # a flag may say otherwise
        ({USUAL: OFF}, True, "fail", f"disabled ({USUAL})"),
        ({USUAL: OFF}, False, "warn", "not visible from this container"),
    ],
)
def test_without_a_kubelet_only_the_usual_file_is_known(
    tmp_path: Path, files: dict[str, str], visible: bool, level: str, says: str
) -> None:
    facts = read_kubelet(make_host(tmp_path, files), USUAL, "node-a", {}, visible=visible)
    found = only(kubelet_findings(facts, "v1.33.1", "node-a"))
    assert str(found.level) == level
    assert says in found.text
    assert facts.root == ""


@pytest.mark.parametrize(
    ("override", "node_name", "checks"),
    [
        ("node-a", "node-a", ["kubelet configuration"]),
        ("NODE-A", "node-a", ["kubelet configuration"]),
        ("other", "node-a", ["kubelet configuration", "node name"]),
        ("other", "", ["kubelet configuration"]),
    ],
)
def test_kubelet_must_be_the_node_that_this_is_about(
    tmp_path: Path, override: str, node_name: str, checks: list[str]
) -> None:
    found = findings(tmp_path, {}, f"--hostname-override={override}", version="v1.36.0", node_name=node_name)
    assert levels(found) == [(check, "fail" if check == "node name" else "pass") for check in checks]


def test_relative_paths_start_where_kubelet_was_started(tmp_path: Path) -> None:
    files = {**process(812, "kubelet", "--config=kubelet.yaml", "--root-dir=data"), "/srv/kubelet.yaml": ON}
    host = make_host(tmp_path, files)
    (tmp_path / "proc/812/cwd").symlink_to("/srv")
    facts = read_kubelet(host, USUAL, "node-a", {}, visible=True)
    assert facts.problems == ()
    assert host.canonical(facts.root) == "/srv/data"


RUNTIME = "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n"


@pytest.mark.parametrize(
    ("config", "drop_in", "flags", "endpoint"),
    [
        (EMPTY, EMPTY, [], ""),
        (RUNTIME, EMPTY, [], "unix:///run/crio/crio.sock"),
        (EMPTY, RUNTIME, [], "unix:///run/crio/crio.sock"),
        (RUNTIME, "containerRuntimeEndpoint: /a.sock\n", [], "/a.sock"),
        (RUNTIME, EMPTY, ["--container-runtime-endpoint=/b.sock"], "/b.sock"),
    ],
)
def test_endpoint_of_the_runtime_is_read_in_order(
    tmp_path: Path, config: str, drop_in: str, flags: list[str], endpoint: str
) -> None:
    files = {CONFIG: config, f"{FOLDER}/10.conf": drop_in}
    started = process(812, "kubelet", f"--config={CONFIG}", f"--config-dir={FOLDER}", *flags)
    facts = read_kubelet(make_host(tmp_path, {**started, **files}), USUAL, "node-a", {}, visible=True)
    assert facts.endpoint == endpoint
