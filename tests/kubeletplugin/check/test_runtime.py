# SPDX-License-Identifier: Apache-2.0
"""Which runtime a node has."""

from pathlib import Path

import pytest

from kubeletplugin.check.containerd import CONFIGS, ContainerdFacts
from kubeletplugin.check.runtime import CONFIG, CrioFacts, RuntimeFacts, drop_in, read_runtime, runtime_findings
from kubeletplugin.finding import Level

from .support import make_host, only, process


@pytest.mark.parametrize(
    ("reported", "files", "expected"),
    [
        ("containerd://2.1.4", {}, ContainerdFacts),
        ("cri-o://1.34.0", {CONFIGS[0]: ""}, CrioFacts),  # the Node knows better than old files
        ("", {"/run/containerd/containerd.sock": ""}, ContainerdFacts),
        ("", {CONFIG: ""}, CrioFacts),
        ("", {CONFIG: "", CONFIGS[0]: ""}, type(None)),
        ("", {}, type(None)),
        ("docker://28", {CONFIGS[0]: ""}, type(None)),  # which runs containerd for itself
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


@pytest.mark.parametrize(
    ("processes", "main"),
    [
        (process(5, "containerd", "--config", "/opt/c.toml"), "/opt/c.toml"),
        (process(5, "containerd", "-c=/opt/c.toml", "--log-level=info"), "/opt/c.toml"),
        (process(5, "containerd", "--config=/not/here.toml"), CONFIGS[0]),
        (process(5, "containerd"), CONFIGS[0]),
        (process(5, "containerd") | process(6, "containerd", "-c", "/opt/c.toml"), CONFIGS[0]),  # one is Docker's
        (process(5, "containerd", "-c", "/opt/c.toml", namespaces="\t7"), CONFIGS[0]),
    ],
)
def test_the_file_of_the_command_line_is_taken(tmp_path: Path, processes: dict[str, str], main: str) -> None:
    host = make_host(tmp_path, {"/opt/c.toml": "version = 3\n", CONFIGS[0]: "version = 2\n", **processes})
    facts = read_runtime(host, "containerd://2.1.4", "/var/run/cdi", visible=True, config=None)
    assert isinstance(facts.configuration, ContainerdFacts)
    assert facts.configuration.main == main


@pytest.mark.parametrize(
    ("text", "expected"),
    [("version = 3\n", ContainerdFacts), ("[crio.runtime]\n", CrioFacts), ("broken [", ContainerdFacts)],
)
def test_a_file_that_was_named_tells_whose_it_is(tmp_path: Path, text: str, expected: type) -> None:
    facts = read_runtime(make_host(tmp_path, {"/opt/c": text}), "", "/var/run/cdi", visible=True, config="/opt/c")
    assert isinstance(facts.configuration, expected)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    facts = read_runtime(make_host(tmp_path, {}), "", "/var/run/cdi", visible=True, config="/opt/c")
    found = only(runtime_findings(facts))
    assert (found.level, found.text) == (Level.WARN, "/opt/c, which --runtime-config names, does not exist on the host")


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (RuntimeFacts(), "neither"),
        (RuntimeFacts(visible=False), "container"),
        (RuntimeFacts(other="docker://28"), "docker://28"),
    ],
)
def test_what_cannot_be_seen_is_a_warning(facts: RuntimeFacts, says: str) -> None:
    found = only(runtime_findings(facts))
    assert found.level is Level.WARN
    assert says in found.text
    assert drop_in(facts) is None
