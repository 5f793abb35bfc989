# SPDX-License-Identifier: Apache-2.0
"""The commands of the pages run by bash as they stand, and print what their page says, except those marked on the page.

Commands of kubectl and Helm are run if these are on PATH, with an API server. commands.py describes the marks.
"""

import contextlib
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.support.onpath import on_path
from tests.support.preloaded import SANDBOX, start
from tests.support.shared import made_once

from .checks import check
from .commands import COMMANDS, PAGES, ROOT, Command, commands, inline, says
from .reader import write_files
from .running import environment


def without_remark(command: Command) -> str:
    """Its text without a remark behind it."""
    return command.text.partition("  # ")[0].rstrip()


RUNNING = [*{(without_remark(one), one.output): one for one in reversed(COMMANDS) if not one.not_run}.values()][::-1]
"""Those on several pages once."""
UP = next(one for one in COMMANDS if "dra-sandbox up" in one.text)
INSTALL = next(one for one in COMMANDS if one.text.startswith("helm install"))
"""What upgrades and uninstalls need to have been run."""
OF_A_CLUSTER = re.compile(r"--until-fits|dra-dryrun upgrade (?!.*--slices|--to \S+$)")
"""Commands of dra-dryrun that a cluster is meant for. Without one, they evaluate all built-in nodes, which takes long:
one of them, `upgrade --to`, does.
"""


@contextlib.contextmanager
def started_sandbox() -> Iterator[Path]:
    """The kubeconfig of the sandbox that the README starts, as a user's shell would get it."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        program, *arguments = UP.parts[0]
        assert program.endswith("dra-sandbox")
        words = [*SANDBOX, *arguments]
        with start(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                assert said.startswith("export KUBECONFIG="), said
                yield Path(said.partition("=")[2].strip())
            finally:
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0


@contextlib.contextmanager
def started_server() -> Iterator[Path]:
    """The kubeconfig of an API server without controllers."""
    with tempfile.TemporaryDirectory() as folder, ApiServer(ApiServerOptions()) as server:
        yield server.write_kubeconfig(Path(folder) / "kubeconfig")


@contextlib.contextmanager
def server_after(command: str) -> Iterator[Path]:
    """The kubeconfig of such a server, for which a command has been run."""
    with started_server() as kubeconfig:
        subprocess.run(["bash", "-euc", command], cwd=ROOT, env=environment(kubeconfig), check=True)
        yield kubeconfig


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The server of all commands that change an installation."""
    with server_after(INSTALL.text) as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Path]:
    """The sandbox of all commands that install nothing."""
    with started_sandbox() as kubeconfig:
        yield kubeconfig


Shell = Callable[[str, Path, Path | None], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """Runs a command in a folder with a cluster or none, by bash. Our commands are those of `on_path`."""
    with on_path("dra-dryrun", "kubectl-dra_dryrun", "dra-sandbox") as (programs, variables, descriptor):

        def run(text: str, folder: Path, kubeconfig: Path | None) -> "subprocess.CompletedProcess[str]":
            of_user = environment(kubeconfig)
            return subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=folder,
                env={**of_user, **variables, "PATH": f"{programs}:{of_user['PATH']}"},
                pass_fds=[descriptor],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        yield run


@pytest.fixture(scope="module")
def readers_files() -> Iterator[Path]:
    """A folder with the files that the pages take for granted. Commands may change it."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(made_once("reader's files", write_files), name, dirs_exist_ok=True)
        yield Path(name)


@pytest.mark.parametrize("command", RUNNING, ids=str)
def test_a_command_does_what_its_page_says(
    command: Command, readers_files: Path, shell: Shell, request: pytest.FixtureRequest
) -> None:
    programs = {words[0] for words in command.parts}
    for name in programs & {"kubectl", "helm"}:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not on PATH")
    with contextlib.ExitStack() as stack:
        kubeconfig = None
        if "--wait" in command.text:  # a server without controllers never has what Helm waits for
            kubeconfig = stack.enter_context(started_sandbox())
        elif command.text.startswith("helm upgrade"):
            kubeconfig = request.getfixturevalue("installed")
        elif command.text.startswith("helm uninstall"):
            kubeconfig = stack.enter_context(server_after(INSTALL.text))
        elif "delete namespace" in command.text:
            kubeconfig = stack.enter_context(server_after(command.text.replace("delete", "create")))
        elif programs == {"helm"}:
            kubeconfig = stack.enter_context(started_server())
        elif programs == {"kubectl"} or command == UP or OF_A_CLUSTER.search(command.text):
            kubeconfig = request.getfixturevalue("sandbox")
        if command == UP:
            return  # it runs: the others are asked of it
        in_checkout = "examples/" in command.text or programs <= {"helm", "kubectl"}
        result = shell(command.text, ROOT if in_checkout else readers_files, kubeconfig)
    if command.output:
        assert result.returncode in (0, 1), result.stderr
        assert says(command.output, result.stdout + result.stderr), result.stdout + result.stderr
    else:
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_flags_targets_and_values_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words in (*(words.split() for words in inline(text)), *(w for c in commands(text, page.name) for w in c.parts)):
        check(words)


def test_reason_without_a_command_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"page\.md:1: no command begins with helm"):
        list(commands("<!-- not run (helm): no cluster -->\n```sh\nmake demo\n```\n", "page.md"))


def test_reason_concerns_the_named_programs() -> None:
    page = "<!-- not run (git, helm): no cluster -->\n```sh\nmake demo && git tag\ngit tag  # now\nhelm version\n```\n"
    assert [command.not_run for command in commands(page, "page.md")] == ["", "no cluster", "no cluster"]


def test_a_page_may_leave_out_what_does_not_matter() -> None:
    assert says("one\n…\nlast … of all\n", "one\ntwo\nthree\nlast line of all\n")
    assert not says("one\n…\nlast\n", "one\ntwo\n")
    assert not says("one\n", "one\ntwo\n")
