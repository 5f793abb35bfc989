# SPDX-License-Identifier: Apache-2.0
"""The commands as somebody types them: help, versions, mistakes."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from controller.main import controller
from dra_driver import __version__
from dra_driver.dryrun.main import dryrun
from dra_driver.sandbox.main import sandbox
from kubeletplugin.main import kubeletplugin

COMMANDS = (
    *("dra-controller", "dra-cluster-controller", "dra-kubeletplugin", "dra-webhook"),
    *("dra-dryrun", "kubectl-dra_dryrun", "dra-sandbox"),
)
BIN = Path(sys.executable).parent


def run(command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment with a clean environment."""
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    return subprocess.run(
        [str(BIN / command), *arguments],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_there(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "--version" in done.stdout
    assert done.stdout.startswith(f"Usage: {command}")


@pytest.mark.parametrize(
    "command",
    [controller, kubeletplugin, *dryrun.commands.values(), *sandbox.commands.values()],
    ids=lambda one: str(one.name),
)
def test_every_flag_can_be_set_in_the_environment_and_is_explained(command: click.Command) -> None:
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in ("help", "version"):
            assert isinstance(option.envvar, str), option.name
            assert option.envvar.isupper()
            assert option.help


@pytest.mark.parametrize("command", COMMANDS)
def test_version_is_the_packages(command: str) -> None:
    assert run(command, "--version").stdout.split() == [command, __version__]


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("dra-controller", ["--node-nam", "a"], "no such option"),
        ("dra-controller", [], "missing option '--node-name'"),
        ("dra-controller", ["--node-name", "a", "--kubeconfig", "/does/not/exist"], "/does/not/exist"),
        ("dra-controller", ["--node-name", "a", "--log-format", "xml"], "'xml' is not one of 'text', 'json'"),
        ("dra-controller", ["--node-name", "a", "--simulated-node", "h100x8"], "--simulated-root"),
        (
            "dra-controller",
            ["--node-name", "a", "--simulated-node", "h1000x8", "--simulated-root", "/tmp/x"],
            "h1000x8",
        ),
        ("dra-kubeletplugin", ["--node-name", "a", "surplus"], "no such command 'surplus'"),
        ("dra-kubeletplugin", ["--node-name", "a", "-v", "much"], "'much' is not a valid integer"),
        ("dra-kubeletplugin", ["--node-name", "a"], "no cluster given"),
        ("dra-dryrun", [], "missing argument"),
        ("dra-dryrun", ["/does/not/exist.yaml"], "No such file"),
        ("dra-dryrun", ["--output", "xml", "-"], "'xml' is not one of"),
        ("dra-sandbox", ["dem"], "no such command 'dem'"),
    ],
)
def test_a_mistake_is_answered_with_one_line(command: str, arguments: list[str], says: str) -> None:
    done = run(command, *arguments, HOME="/nonexistent")
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(command)
    assert says in line


def test_flags_are_read_from_the_environment(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "missing"
    done = run("dra-controller", NODE_NAME="node-a", KUBECONFIG=str(kubeconfig), SIMULATED_NODE="h100x8")
    assert "--simulated-root" in done.stderr
    done = run("dra-controller", NODE_NAME="node-a", KUBECONFIG=str(kubeconfig))
    assert str(kubeconfig) in done.stderr
