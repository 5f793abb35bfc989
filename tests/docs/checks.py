# SPDX-License-Identifier: Apache-2.0
"""What is checked of a documented command without running it: flags, targets and values that it names exist."""

import itertools
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from controller.cluster.main import cluster_controller
from controller.main import controller
from controller.webhook.main import webhook
from dra_driver import __version__
from dra_driver.domains.daemon.main import imex_daemon
from dra_driver.dryrun.main import dryrun
from dra_driver.sandbox.main import sandbox
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


def flags(words: Sequence[str]) -> Iterator[str]:
    """`--name` of `--name` and `--name=value`, and `-x`."""
    return (word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word))


def values_of(words: Sequence[str], *names: str) -> list[str]:
    """What follows the flags of these names, as a word of its own or behind `=`."""
    after = [value for name, value in itertools.pairwise(words) if name in names]
    joined = [word.partition("=")[2] for word in words if word.partition("=")[0] in names and "=" in word]
    return after + joined


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


def setting(text: str) -> None:
    """`a.b.c=value`: asserts that the chart's schema has it."""
    schema: Any = json.loads((ROOT / "charts/dra-driver-gpu/values.schema.json").read_bytes())
    for key in text.partition("=")[0].split("."):
        assert key in schema.get("properties", {}), f"the chart has no value {text.partition('=')[0]}"
        schema = schema["properties"][key]


def check(words: Sequence[str]) -> None:
    """Asserts that what a command names exists, if it is one of our commands or `make`."""
    if not words:
        return
    if words[0].rpartition("/")[2] in OURS:
        ours(words)
    elif words[0] == "make":
        make(words)
    for value in values_of(words, "--set"):
        setting(value)
