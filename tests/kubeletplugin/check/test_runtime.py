# SPDX-License-Identifier: Apache-2.0
"""Which runtime a node has, how it is found, and whether it injects CDI devices of our folder."""

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.check.cdi import cdi_findings
from kubeletplugin.check.runtime import RuntimeAccess, read_runtime, socket_of
from kubeletplugin.finding import CheckResult, Level
from kubeletplugin.host.programs import HostPrograms

from .runtimes import CONTAINERD_1, CONTAINERD_2, CRIO, CRIO_SOCKET, SOCKET, RecordedAnswer, serve_runtime
from .support import make_host, only, process

pytestmark = pytest.mark.node

WANTED = "/var/run/cdi"
K3S_SOCKET = "/run/k3s/containerd/containerd.sock"
ON = '[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = true\ncdi_spec_dirs = ["/run/cdi"]\n'


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuntimeAccess:
    """The way to the runtime of a host in a folder, whose programs are in `programs`."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    return RuntimeAccess(make_host(tmp_path / "host", {}), HostPrograms(Path("/"), enter=False))


@contextlib.contextmanager
def served(access: RuntimeAccess, *answers: tuple[RecordedAnswer, str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for answer, path in answers:
            stack.enter_context(serve_runtime(access.host.root, answer, path))
        yield


def install(access: RuntimeAccess, name: str, script: str) -> None:
    """Install a program of the host. Without a script, it would be one of this machine that runs."""
    program = access.host.root.parent / "programs" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


def without_programs(access: RuntimeAccess) -> None:
    for name in ("containerd", "crio"):
        install(access, name, "exit 127")


def finding(access: RuntimeAccess, reported: str = "") -> CheckResult:
    return only(cdi_findings(read_runtime(access, reported, WANTED)))


OTHER = ("/etc/cdi", "/opt/cdi")


@pytest.mark.parametrize(
    ("answer", "level", "text"),
    [
        (CONTAINERD_1, "fail", "containerd 1.7.34 has CDI disabled (enable_cdi = false)"),
        (CONTAINERD_1.with_config(enableCDI=True), "pass", f"containerd 1.7.34 has CDI enabled and reads {WANTED}"),
        (CONTAINERD_2, "pass", f"containerd 2.3.4 has CDI enabled and reads {WANTED}"),
        (CONTAINERD_2.with_config(enableCDI=None), "pass", f"containerd 2.3.4 has CDI enabled and reads {WANTED}"),
        (CONTAINERD_2.with_config(enableCDI=False), "fail", "containerd 2.3.4 has CDI disabled (enable_cdi = false)"),
        (CONTAINERD_2.with_config(cdiSpecDirs=["/run/cdi"]), "pass", f"has CDI enabled and reads {WANTED}"),
        (
            CONTAINERD_2.with_config(cdiSpecDirs=OTHER),
            "fail",
            f"specs are written to {WANTED}, and containerd 2.3.4 reads /etc/cdi, /opt/cdi",
        ),
        (CONTAINERD_2.with_config(cdiSpecDirs=[]), "fail", "containerd 2.3.4 reads none"),
        (CONTAINERD_2.with_config(cdiSpecDirs=None), "warn", "does not tell its folders of CDI specs (cdiSpecDirs)"),
        (CONTAINERD_2.with_config(cdiSpecDirs=[1]), "warn", "does not tell its folders of CDI specs (cdiSpecDirs)"),
        (CONTAINERD_2.with_config(enableCDI="yes"), "warn", "does not tell its folders of CDI specs (cdiSpecDirs)"),
        (RecordedAnswer("containerd", "2.3.4", {"config": "{"}), "warn", "that containerd://2.3.4 tells is not JSON"),
        (RecordedAnswer("containerd", "2.3.4", {"config": "[" * 9999}), "warn", "is not JSON"),
        (RecordedAnswer("containerd", "2.3.4", {}), "warn", "does not tell its folders of CDI specs (cdiSpecDirs)"),
    ],
)
def test_answer_of_containerd_decides(access: RuntimeAccess, answer: RecordedAnswer, level: str, text: str) -> None:
    with served(access, (answer, SOCKET)):
        found = finding(access)
    assert text in found.text
    assert found.level == level
    assert bool(found.remedy) is (level != "pass")


def test_text_of_an_unreadable_configuration_is_not_shown(access: RuntimeAccess) -> None:
    with served(access, (RecordedAnswer("containerd", "2.3.4", {"config": '{"password": "secret'}), SOCKET)):
        assert "secret" not in finding(access).text


@pytest.mark.parametrize(
    ("answer", "level", "text"),
    [
        (CRIO, "pass", f"cri-o 1.34.11 has CDI enabled and reads {WANTED}"),
        (
            CRIO.with_config(CDISpecDirs=["/etc/cdi"]),
            "fail",
            f"specs are written to {WANTED}, and cri-o 1.34.11 reads /etc/cdi",
        ),
        (RecordedAnswer("cri-o", "1.32.1", {"config": '{"sandboxImage": "pause"}'}), "warn", "(CDISpecDirs)"),
    ],
)
def test_answer_of_crio_decides(access: RuntimeAccess, answer: RecordedAnswer, level: str, text: str) -> None:
    with served(access, (answer, CRIO_SOCKET)):
        found = finding(access)
    assert text in found.text
    assert found.level == level


def test_old_crio_is_asked_by_its_own_program(access: RuntimeAccess) -> None:
    with served(access, (RecordedAnswer("cri-o", "1.32.1", {"config": "{}"}), CRIO_SOCKET)):
        assert "crio status config" in finding(access).remedy


def test_runtime_of_the_node_is_preferred(access: RuntimeAccess) -> None:
    with served(access, (CONTAINERD_1, SOCKET), (CRIO, CRIO_SOCKET)):
        assert "cri-o 1.34.11 has CDI enabled" in finding(access, "cri-o://1.34.11").text


def test_choice_between_two_runtimes_is_not_guessed(access: RuntimeAccess) -> None:
    with served(access, (CONTAINERD_1, SOCKET), (CONTAINERD_2, K3S_SOCKET)):
        found = finding(access)
    assert found.level is Level.WARN
    assert f"{SOCKET} is the socket of containerd://1.7.34" in found.text
    assert "--runtime-endpoint" in found.remedy


def test_named_socket_is_asked_alone(access: RuntimeAccess) -> None:
    named = RuntimeAccess(access.host, access.programs, K3S_SOCKET)
    with served(access, (CONTAINERD_1, SOCKET), (CONTAINERD_2, K3S_SOCKET)):
        assert "containerd 2.3.4 has CDI enabled" in finding(named).text


def test_runtime_without_the_cri_is_passed_over(access: RuntimeAccess) -> None:
    (access.host.root / "run/containerd").mkdir()
    (access.host.root / SOCKET.lstrip("/")).touch()
    with served(access, (CONTAINERD_2, K3S_SOCKET)):
        assert finding(access).level is Level.PASS


def test_runtime_that_cannot_be_asked_is_unknown(access: RuntimeAccess) -> None:
    (access.host.root / "run/containerd").mkdir()
    (access.host.root / SOCKET.lstrip("/")).touch()
    found = finding(access)
    assert (found.check, found.level) == ("container runtime", Level.WARN)
    assert found.text == f"whether it uses our CDI specs is unknown: {SOCKET} is not a socket"
    assert "crictl info" in found.remedy


def test_runtime_of_another_name_is_unknown(access: RuntimeAccess) -> None:
    with served(access, (RecordedAnswer("frakti", "1", CONTAINERD_2.info), SOCKET)):
        assert f"{SOCKET} is the socket of frakti://1" in finding(access).text


def test_runtime_that_check_does_not_know_is_not_asked(access: RuntimeAccess) -> None:
    with served(access, (CONTAINERD_1, SOCKET)):  # which Docker has for itself
        assert "this command cannot ask docker://28" in finding(access, "docker://28").text


def test_container_without_the_host_asks_nothing(access: RuntimeAccess) -> None:
    hidden = RuntimeAccess(access.host, access.programs, visible=False)
    found = finding(hidden, "containerd://2.1.4")
    assert found.level is Level.WARN
    assert "it cannot be reached from this container" in found.text
    assert "--host-root" in found.remedy


@pytest.mark.parametrize(
    ("table", "level", "text"),
    [
        (ON, "pass", "containerd 2.1.4 has CDI enabled and reads /var/run/cdi, according to `containerd config dump`"),
        (ON.replace("true", "false"), "warn", "has CDI disabled (enable_cdi = false), according to `containerd config"),
        (ON.replace("cri.v1.runtime", "grpc.v1.cri"), "pass", "has CDI enabled"),
        (ON.replace("/run/cdi", "/etc/cdi"), "warn", "containerd 2.1.4 reads /etc/cdi, according to `containerd conf"),
        ("version = 3", "warn", "containerd's CRI plugin is disabled, so kubelet cannot use it (disabled_plugins)"),
        ("[[", "warn", "`containerd config dump` does not print TOML: "),
    ],
)
def test_program_is_asked_where_there_is_no_socket(access: RuntimeAccess, table: str, level: str, text: str) -> None:
    install(access, "containerd", f"echo warning >&2; [ \"$*\" = 'config dump' ] && cat <<'END'\n{table}\nEND\n")
    found = finding(access, "containerd://2.1.4")
    assert text in found.text
    assert found.level == level


def test_program_gets_the_main_file_of_the_flag(access: RuntimeAccess) -> None:
    named = RuntimeAccess(access.host, access.programs, config="/opt/c c.toml")
    install(access, "containerd", f'[ "$1 $2" = "--config /opt/c c.toml" ] && echo {shlex.quote(ON)}')
    assert "`containerd --config '/opt/c c.toml' config dump`" in finding(named, "containerd://").text


def test_program_gets_the_main_file_of_the_command_line(tmp_path: Path, access: RuntimeAccess) -> None:
    host = make_host(tmp_path / "other", process(5, "containerd", "--config=/opt/c.toml"))
    other = RuntimeAccess(host, access.programs)
    install(access, "containerd", f'[ "$1 $2" = "--config /opt/c.toml" ] && echo {shlex.quote(ON)}')
    assert finding(other, "containerd://").level is Level.PASS


def test_program_of_crio_leaves_defaults_out(access: RuntimeAccess) -> None:
    install(access, "crio", "[ \"$*\" = config ] && echo '[crio.runtime]'")
    assert "cri-o 1.36.0 has CDI enabled and reads /var/run/cdi" in finding(access, "cri-o://1.36.0").text


def test_both_programs_are_tried_for_an_unknown_runtime(access: RuntimeAccess) -> None:
    install(access, "containerd", "exit 3")
    install(access, "crio", "echo '[crio.runtime]'")
    found = finding(access)
    assert found.check == "cdi in cri-o"
    assert found.level is Level.PASS


def test_node_without_runtime_is_unknown(access: RuntimeAccess) -> None:
    without_programs(access)
    found = finding(access)
    assert found.level is Level.WARN
    assert "there is no socket of a container runtime in the usual places; `containerd config dump` end" in found.text
    assert "start the runtime" in found.remedy


def test_absent_socket_of_kubelet_is_named(access: RuntimeAccess) -> None:
    without_programs(access)
    assert "there is no socket /x.sock" in finding(RuntimeAccess(access.host, access.programs, "/x.sock")).text


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("unix:///run/crio/crio.sock", "/run/crio/crio.sock"),
        ("/run/crio/crio.sock", "/run/crio/crio.sock"),
        ("tcp://127.0.0.1:80", ""),
        ("", ""),
    ],
)
def test_socket_of_an_endpoint(endpoint: str, path: str) -> None:
    assert socket_of(endpoint) == path
