# SPDX-License-Identifier: Apache-2.0
"""The commands as somebody types them: help, versions, mistakes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from controller.main import controller
from dra_driver import __version__
from dra_driver.dryrun.main import dryrun
from dra_driver.sandbox.main import sandbox
from kubeletplugin.main import kubeletplugin

from ..support import preloaded

pytestmark = pytest.mark.node

COMMANDS = (
    *("dra-controller", "dra-cluster-controller", "dra-kubeletplugin", "dra-webhook"),
    *("dra-dryrun", "kubectl-dra_dryrun", "dra-sandbox"),
)
MODULES: Mapping[str, str] = {
    "dra-controller": "controller.main",
    "dra-cluster-controller": "controller.cluster.main",
    "dra-kubeletplugin": "kubeletplugin.main",
    "dra-webhook": "controller.webhook.main",
    "dra-dryrun": "dra_driver.dryrun.main",
    "dra-sandbox": "dra_driver.sandbox.main",
}
BIN = Path(sys.executable).parent


def clean(**environment: str) -> dict[str, str]:
    """An environment that says nothing else to our commands."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ} | environment


def run(command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment with a clean environment."""
    return preloaded.run([str(BIN / command), *arguments], env=clean(**environment))


def typed(program: str) -> str:
    """The command that a user types: kubectl runs the plugin kubectl-dra_dryrun for `kubectl dra-dryrun`."""
    return "kubectl dra-dryrun" if program == "kubectl-dra_dryrun" else program


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "--version" in done.stdout
    assert done.stdout.startswith(f"Usage: {typed(command)}")


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


FAILS_EVERYWHERE = dict.fromkeys(COMMANDS, 2)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("arguments", "statuses"),
    [
        (["--help"], dict.fromkeys(COMMANDS, 0)),
        ([], {**FAILS_EVERYWHERE, "dra-cluster-controller": 1}),  # which needs no flag, only a cluster
        (["--no-such-flag"], FAILS_EVERYWHERE),
        (["no-such-command"], FAILS_EVERYWHERE),
    ],
    ids=["help", "nothing", "flag", "subcommand"],
)
def test_arguments_decide_the_exit_status(command: str, arguments: list[str], statuses: Mapping[str, int]) -> None:
    done = run(command, *arguments, HOME="/nonexistent")
    assert done.returncode == statuses[command], done.stderr
    assert bool(done.stdout) == (done.returncode == 0)
    assert "Traceback" not in done.stderr


def test_the_sandbox_without_a_command_prints_its_help() -> None:
    done = run("dra-sandbox")
    assert done.stderr == run("dra-sandbox", "--help").stdout


@pytest.mark.parametrize("command", MODULES)
def test_a_module_that_is_run_has_the_name_of_its_command(command: str) -> None:
    done = preloaded.run([sys.executable, "-m", MODULES[command], "--no-such-flag"], env=clean())
    assert done.stderr.startswith(f"{command}")
    assert f"(see {command}" in done.stderr


def test_a_bug_is_no_answer() -> None:
    broken = (
        "import click; from dra_driver.process.command import run; run(click.Command('x', callback=lambda: {}['key']))"
    )
    done = preloaded.run([sys.executable, "-c", broken])
    assert done.returncode == 70
    assert "KeyError: 'key'" in done.stderr


GRPC = """
import os, tempfile, threading, time
from concurrent import futures
import dra_driver
import grpc

def stream(request, context):
    yield b"one"
    threading.Event().wait(5)

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_stream_rpc_method_handler(stream)

with tempfile.TemporaryDirectory() as folder:
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Handler()])
    server.add_insecure_port(f"unix:{folder}/socket")
    server.start()
    answers = grpc.insecure_channel(f"unix:{folder}/socket").unary_stream("/a/b")(b"")
    next(answers)
    server.stop(None)
    time.sleep(1)  # in which the client hears of it
os._exit(0)
"""


def test_messages_of_grpc_are_not_printed() -> None:
    command = [sys.executable, "-c", GRPC]
    done = subprocess.run(command, env=clean(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_version_is_the_packages(command: str) -> None:
    assert run(command, "--version").stdout.split() == [*typed(command).split(), __version__]


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
            ["--node-name", "a", "--simulated-node", "h1000x8", "--simulated-root", "/nonexistent/x"],
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


def test_errors_of_a_plugin_of_kubectl_name_the_command_that_the_user_typed() -> None:
    done = run("kubectl-dra_dryrun", "fit", "--nothing")
    assert done.stderr == "kubectl dra-dryrun fit: no such option '--nothing' (see kubectl dra-dryrun fit --help)\n"
