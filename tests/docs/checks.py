# SPDX-License-Identifier: Apache-2.0
"""What can be said of a documented command without running it: that all it names exists.

CHECKS has one function for each way a command begins. It is given the words of the command, and asserts.
"""

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import yaml

from controller.cluster.main import cluster_controller
from controller.main import controller
from controller.webhook.main import webhook
from dra_driver import __version__
from dra_driver.domains.daemon.main import imex_daemon
from dra_driver.dryrun.main import dryrun
from dra_driver.sandbox.main import kind_config, sandbox
from kubeletplugin.features.mps.main import mps
from kubeletplugin.main import kubeletplugin

from .commands import ROOT

OURS: Mapping[str, click.Command] = {
    "dra-cluster-controller": cluster_controller,
    "dra-controller": controller,
    "dra-dryrun": dryrun,
    "dra-imex-daemon": imex_daemon,
    "dra-kubeletplugin": kubeletplugin,
    "dra-mps": mps,
    "dra-sandbox": sandbox,
    "dra-webhook": webhook,
}
IMAGE = f"dra-driver-gpu:{__version__}"
RELEASE = "dra-driver-gpu"
WORDS_OF_OTHERS: Mapping[str, Sequence[str]] = {"git": ("push", "tag")}
"""Programs of other projects that publish something: only how they are called is known here."""


def flags(words: Sequence[str]) -> Iterator[str]:
    """`--name` of `--name` and `--name=value`, and `-x`."""
    return (word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word))


def values_of(words: Sequence[str], *names: str) -> list[str]:
    """What follows the flags of these names, as a word of its own or behind `=`."""
    after = [value for name, value in itertools.pairwise(words) if name in names]
    joined = [word.partition("=")[2] for word in words if word.partition("=")[0] in names and "=" in word]
    return after + joined


def exists(name: str) -> None:
    """Asserts that the checkout has it."""
    assert (ROOT / name).exists(), f"{name} is not in the checkout"


def ours(words: Sequence[str]) -> None:
    """One of our commands: every flag is one of the command's, or of its subcommand's."""
    name, rest = words[0].rpartition("/")[2], words[1:]
    command = OURS[name]
    known = list(command.params)
    if isinstance(command, click.Group):
        asked = next((word for word in rest if word in command.commands), "fit" if name == "dra-dryrun" else "")
        known += command.commands[asked].params if asked else []
    names = {flag for one in known for flag in (*one.opts, *one.secondary_opts)} | {"--help"}
    assert set(flags(rest)) <= names, f"{words[0]} has no {', '.join(sorted(set(flags(rest)) - names))}"


def make(words: Sequence[str]) -> None:
    """A target that make finds, with everything it needs."""
    subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=True)


def module(words: Sequence[str]) -> None:
    """`python -m` with a module of ours that is a program."""
    path = ROOT / words[2].replace(".", "/")
    if not (path / "__main__.py").exists():
        assert '__name__ == "__main__"' in path.with_suffix(".py").read_text(encoding="utf-8")


def pytest(words: Sequence[str]) -> None:
    """Tests that are there."""
    for path in words[1:]:
        exists(path)


def docker(words: Sequence[str]) -> None:
    """Builds from our Dockerfile, with its arguments; pushes and runs what is built."""
    match words[1]:
        case "build":
            assert words[-1] == "."
            declared = set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
            assert {value.partition("=")[0] for value in values_of(words, "--build-arg")} <= declared
            assert all(tag.endswith(IMAGE) for tag in values_of(words, "-t"))
        case "push":
            assert words[2].endswith(IMAGE)
        case "run":
            place = words.index("IMAGE")
            ours(words[place + 1 :])
        case other:
            raise AssertionError(f"docker {other} is not checked: say in tests/docs/checks.py what is right")


def kind(words: Sequence[str]) -> None:
    """Clusters of our configuration, and the image that the chart then asks for."""
    assert values_of(words, "--config") in ([], ["kind.yaml"])
    if words[1:3] == ["load", "docker-image"]:
        image = yaml.safe_load((ROOT / "charts/dra-driver-gpu/values.yaml").read_text(encoding="utf-8"))["image"]
        chart = yaml.safe_load((ROOT / "charts/dra-driver-gpu/Chart.yaml").read_text(encoding="utf-8"))
        assert words[3] == IMAGE == f"{image['repository']}:{image['tag'] or chart['appVersion']}"
        assert set(values_of(words, "--name")) <= {kind_config.params[1].default}
    else:
        assert words[1:3] == ["create", "cluster"]


def kubectl(words: Sequence[str]) -> None:
    """Files that are there; in a pod of the chart, commands of ours."""
    for path in values_of(words, "-f"):
        exists(path)
    if "--" in words:
        ours(words[words.index("--") + 1 :])
    for target in (word for word in words if word.startswith("daemonset/")):
        component = target.removeprefix(f"daemonset/{RELEASE}-")
        name = {"kubeletplugin": "daemonset.yaml", "cleanup": "cleanup.yaml"}[component]
        template = (ROOT / "charts/dra-driver-gpu/templates" / name).read_text(encoding="utf-8")
        assert f'(list . "{component}")' in template
        assert all(f"- name: {container}\n" in template for container in values_of(words, "-c"))


def helm(words: Sequence[str]) -> None:
    """Our chart (or, of `helm template`, the reader's), with values that its schema knows."""
    match words[1]:
        case "template" | "verify":
            return
        case "uninstall":
            assert words[2] == RELEASE
        case _:
            assert words[1] in ("install", "upgrade")
            assert words[2] == RELEASE
            exists(words[3])
    for path in values_of(words, "--values", "-f"):
        exists(path)
    for value in values_of(words, "--set"):
        setting(value)


def setting(text: str) -> None:
    """`a.b.c=value`: asserts that the chart's schema has it."""
    schema: Any = yaml.safe_load((ROOT / "charts/dra-driver-gpu/values.schema.json").read_text(encoding="utf-8"))
    for key in text.partition("=")[0].split("."):
        assert key in schema.get("properties", {}), f"the chart has no value {text.partition('=')[0]}"
        schema = schema["properties"][key]


def foreign(words: Sequence[str]) -> None:
    """Programs that are not ours."""
    assert words[1] in WORDS_OF_OTHERS[words[0]]


def export(words: Sequence[str]) -> None:
    """Variables; what they are taken from is a `git` command."""
    text = " ".join(words)
    assert all(command.startswith("git ") for command in re.findall(r"\$\((.*?)\)", text))
    if shutil.which("git") and (ROOT / ".git").exists():
        subprocess.run(["bash", "-euc", text], cwd=ROOT, check=True)


CHECKS: Mapping[str, Callable[[Sequence[str]], None]] = {
    r"(\.venv/bin/)?dra-[a-z-]+": ours,
    "make": make,
    "python -m": module,
    r"\.venv/bin/pytest": pytest,
    "docker": docker,
    "kind": kind,
    "kubectl": kubectl,
    "helm": helm,
    "git": foreign,
    "export": export,
}
"""How a command begins (a pattern) -> what is checked of it."""


def checks_of(words: Sequence[str]) -> list[Callable[[Sequence[str]], None]]:
    """The checks that claim a command: there should be one."""
    return [check for begin, check in CHECKS.items() if re.match(rf"{begin}( |$)", " ".join(words))]
