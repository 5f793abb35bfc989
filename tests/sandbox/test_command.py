# SPDX-License-Identifier: Apache-2.0
"""dra-sandbox as a user runs it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from dra_driver.process.command import run
from dra_driver.sandbox.main import sandbox
from tests.support import preloaded
from tests.support.apiserver import SLICES, connect
from tests.support.waiting import wait_for

SANDBOX = (sys.executable, "-m", "dra_driver.sandbox.main")


@contextlib.contextmanager
def up(
    folder: Path, errors: IO[str] | None = None, command: Sequence[str] = preloaded.SANDBOX
) -> Iterator["subprocess.Popen[str]"]:
    """`dra-sandbox up` in a folder, from when it says that it is up."""
    command = [*command, "up", "--folder", str(folder), "--node", "a30x4"]
    with preloaded.start(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        assert process.stdout is not None
        assert "KUBECONFIG" in process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Exit code and standard error of a command in this process. The error must be one line."""
    with pytest.raises(SystemExit) as ended:
        run(sandbox, arguments)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if " INFO " not in line)
    return ended.value.code, line


def test_up_ends_if_one_of_its_processes_is_killed(short_path: Path) -> None:
    errors = short_path / "errors"
    log = short_path / "node-1/logs/controller.log"
    with errors.open("w") as output, up(short_path, output) as process:
        pid = writer_of(log)
        os.kill(pid, signal.SIGKILL)
        assert process.wait(60) == 1
    last = errors.read_text(encoding="utf-8").splitlines()[-1]
    ended = f"controller of node-1 (process {pid}) was ended by signal 9 (Killed)"
    assert last.startswith(f"dra-sandbox: the sandbox in {short_path} has ended: {ended}")
    assert last.endswith(f"; its log is {log}")


def writer_of(log: Path) -> int:
    """The process whose standard output is this file."""
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # it has ended meanwhile, or is another user's
            if path.readlink() == log:
                return int(path.parts[2])
    raise AssertionError(f"no process writes to {log}")


def test_a_folder_has_one_sandbox_at_a_time_and_a_killed_one_leaves_no_process(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A killed one ends its processes only if they are its own.
    with up(short_path, command=SANDBOX) as first:
        code, text = refusal(capsys, "up", "--folder", str(short_path), "--node", "a30x4")
        assert code == 1
        assert f"in use by the sandbox of process {first.pid}" in text
        with connect(short_path / "kubeconfig") as client:
            assert client.list(SLICES).items, "the first one goes on"
        first.kill()
        first.wait()
        with up(short_path) as second, connect(short_path / "kubeconfig") as client:
            assert wait_for(lambda: client.list(SLICES).items, "slices")
            second.send_signal(signal.SIGHUP)  # the terminal closes
            assert second.wait(60) == 0
    for name in ("controller", "kubeletplugin"):
        text = (short_path / f"node-1/logs/{name}.log").read_text(encoding="utf-8")
        assert text.count("stopped") == 2, "the first one's process ended by itself"


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = refusal(capsys, "up", "--folder", str(tmp_path), "--port", str(port))
    assert code == 1
    assert text.endswith(f": port {port} is taken: choose another --port, or 0 for a free one")


def test_options_are_not_set_by_variables_of_other_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "a port of something else")
    monkeypatch.setenv("DRA_SANDBOX_PORT", "99999")
    code, text = refusal(capsys, "up", "--folder", str(tmp_path))
    assert code == 2
    assert "'--port' (env var: 'DRA_SANDBOX_PORT')" in text


def test_release_without_the_api_version_of_the_driver_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = refusal(capsys, "up", "--kubernetes-version", "1.33")
    assert code == 2
    assert "'1.33' is not one of 1.34, " in text


def test_a_folder_that_cannot_be_made_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = refusal(capsys, "up", "--folder", "/proc/sandbox")
    assert code == 1
    assert "the sandbox in /proc/sandbox did not start" in text


def test_command_without_arguments_lists_the_subcommands() -> None:
    result = preloaded.run(SANDBOX)
    assert (result.returncode, result.stdout) == (2, "")
    commands = result.stderr.partition("Commands:")[2]
    assert [line.split()[0] for line in commands.strip().splitlines()] == ["demo", "kind-config", "up"]
    assert "..." not in commands, "a summary is cut off"
