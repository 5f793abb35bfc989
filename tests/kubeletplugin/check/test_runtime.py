# SPDX-License-Identifier: Apache-2.0
"""Which runtime a node has."""

from pathlib import Path

import pytest

from kubeletplugin.check.containerd import CONFIGS, ContainerdFacts
from kubeletplugin.check.crio import CONFIG, CrioFacts
from kubeletplugin.check.finding import Level
from kubeletplugin.check.runtime import RuntimeFacts, drop_in, read_runtime, runtime_findings, version_of

from .support import make_host, only


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
def test_the_version_is_what_the_node_reports(reported: str, version: tuple[int, ...]) -> None:
    assert version_of(reported) == version


@pytest.mark.parametrize(
    ("reported", "files", "expected"),
    [
        ("containerd://2.1.4", {}, ContainerdFacts),
        ("cri-o://1.34.0", {CONFIGS[0]: ""}, CrioFacts),  # the Node knows better than old files
        ("", {"/run/containerd/containerd.sock": ""}, ContainerdFacts),
        ("", {CONFIG: ""}, CrioFacts),
        ("", {CONFIG: "", CONFIGS[0]: ""}, type(None)),
        ("", {}, type(None)),
        ("docker://28", {}, type(None)),
    ],
)
def test_the_runtime_is_the_nodes_word_or_the_only_one_that_left_files(
    tmp_path: Path, reported: str, files: dict[str, str], expected: type
) -> None:
    host = make_host(tmp_path, files)
    facts = read_runtime(host, reported, "/var/run/cdi", visible=True, config=None)
    assert isinstance(facts.configuration, expected)


def test_the_first_file_that_a_distribution_has_is_read(tmp_path: Path) -> None:
    host = make_host(tmp_path, {CONFIGS[1]: "version = 3\n"})
    facts = read_runtime(host, "containerd://2.1.4-k3s1", "/var/run/cdi", visible=True, config=None)
    assert isinstance(facts.configuration, ContainerdFacts)
    assert facts.configuration.main == CONFIGS[1]


def test_a_main_file_that_was_named_is_taken(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/opt/c.toml": "version = 3\n", CONFIGS[0]: "broken"})
    facts = read_runtime(host, "containerd://2.1.4", "/var/run/cdi", visible=True, config="/opt/c.toml")
    assert only(runtime_findings(facts)).level is Level.PASS


@pytest.mark.parametrize(("facts", "says"), [(RuntimeFacts(), "neither"), (RuntimeFacts(visible=False), "container")])
def test_what_cannot_be_seen_is_a_warning(facts: RuntimeFacts, says: str) -> None:
    found = only(runtime_findings(facts))
    assert found.level is Level.WARN
    assert says in found.text
    assert drop_in(facts) is None
