# SPDX-License-Identifier: Apache-2.0
"""Every command in README.md and docs/*.md is right: what it names exists, what runs here does and prints what is said.

A command is checked part by part (tests.docs.checks). Those that need no more than an API server are run as they stand,
by bash: dry runs, the sandbox, kubectl and Helm, where these are on PATH. tests.docs.ledger names the tests of others.
"""

import contextlib
import gzip
import json
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.gpu.devices import describe
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.policy.parse import parse_policy
from dra_driver.gpu.simulated import SimulatedNode, load_description
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.codec import V1, encode_slice
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.support.onpath import on_path
from tests.support.preloaded import start

from .checks import OURS, checks_of, setting, values_of
from .commands import COMMANDS, PAGES, ROOT, Command, blocks, commands, inline, says
from .ledger import run_by
from .running import BIN, environment

BENCH = ROOT / "tests/golden/bench"
NODES = ("node-0000", "node-0001", "node-0002")
CLAIM = """\
# SPDX-License-Identifier: Apache-2.0
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: training
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        cuont: 2
        selectors:
        - cel:
            expression: device.attributes['gpu.nvidia.com'].productName == 'H100'
"""


RUNNING = run_by(__name__)
UP = next(one for one in COMMANDS if "dra-sandbox up" in one.text)
INSTALL = next(one for one in COMMANDS if one.text.startswith("helm install"))
"""What upgrades and uninstalls need to have been run."""


def here(text: str) -> str:
    """The command with the programs of the environment that the tests run in."""
    return text.replace(".venv/bin/", f"{BIN}/")


@contextlib.contextmanager
def started_sandbox() -> Iterator[Path]:
    """The kubeconfig of the sandbox that the README starts, as a user's shell would get it."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        words = shlex.split(here(UP.text), comments=True)
        with start(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                assert said.startswith("export KUBECONFIG="), said
                yield Path(said.partition("=")[2].strip())
            finally:
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0


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
    """What the pages take for granted in the reader's folder: manifests, snapshots, a chart, an overlay.

    A block of YAML whose first line is a comment with a file's name is that file.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = CLAIM.replace("cuont", "count").replace("'H100'", "'NVIDIA A30'")
        files = {
            "manifests/claim.yaml": CLAIM,
            "claim.yaml": good,
            "mig.yaml": (BENCH / "b-claim.yaml").read_text(encoding="utf-8"),
            "cluster.json": snapshot(),
            "crowded.json": crowded(),
            "charts/app/Chart.yaml": "apiVersion: v2\nname: app\nversion: 0.1.0\n",
            "charts/app/templates/claim.yaml": good,
            "overlays/production/claim.yaml": good,
            "overlays/production/kustomization.yaml": "resources: [claim.yaml]\n",
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        for page in PAGES:
            for _, _, content in blocks(page.read_text(encoding="utf-8")):
                if match := re.match(r"# (\S+\.yaml)\n", content):
                    (folder / match[1]).write_text(content, encoding="utf-8")
        write_slices(folder / "node.json", "l40sx4", parse_policy((folder / "policy.yaml").read_text(encoding="utf-8")))
        yield folder


def write_slices(path: Path, simulated: str, policy: NodePolicy) -> None:
    """What `dra-controller` publishes of a simulated node with a policy."""
    with tempfile.TemporaryDirectory() as folder:
        node = SimulatedNode.create(Path(folder), load_description(simulated), "node-1")
        nvml = node.nvml()
        nvml.initialize()
        gpus = describe(read_inventory(nvml, node.driver_root / "sys"), policy).gpus
    slices = (replace(one, pool=replace(one.pool, generation=1)) for one in node_slices("node-1", "", gpus))
    items = [encode_slice(one, V1) for one in slices]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")


def snapshot() -> str:
    """A few nodes of the large cluster that kube-scheduler decided about, with their first GPU in use."""
    texts = [
        text
        for name in ("b-cluster", "b-allocated-first-busy")
        for text in gzip.decompress((BENCH / f"{name}.yaml.gz").read_bytes()).decode().split("\n---\n")
        if not re.search(r"node-\d{4}", text) or any(node in text for node in NODES)
    ]
    return "\n---\n".join(texts)


def crowded() -> str:
    """Three nodes: one whose CPUs are in use, and two whose GPUs are. A pod waits for a node with another label."""
    items: list[dict[str, Any]] = []
    for number, name in enumerate(("node-0", "node-1", "node-2")):
        room = {"cpu": "4" if number == 0 else "64", "memory": "64Gi", "pods": "110"}
        items.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": room}})
        slices = [one for one in simulated_nodes("h100x8-mig", 1) if isinstance(one, ResourceSlice)]
        moved = [replace(one, node_name=name, pool=replace(one.pool, name=name)) for one in slices]
        for index, one in enumerate(moved):
            items.append({**encode_slice(one, V1), "metadata": {"name": f"{name}-{index}"}})
        whole = [
            {"driver": one.driver, "pool": name, "device": device.name, "request": "gpu"}
            for one in moved
            for device in one.devices
            if device.attributes.get("profile") == "7g.80gb" and number
        ]
        claim: dict[str, Any] = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": name}}
        if whole:
            items.append({**claim, "spec": {}, "status": {"allocation": {"devices": {"results": whole}}}})
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m"}}}
    busy = {"metadata": {"name": "busy"}, "spec": {"nodeName": "node-0", "containers": [container]}}
    items.append({"apiVersion": "v1", "kind": "Pod", **busy, "status": {"phase": "Running"}})
    waiting = {"metadata": {"name": "waiting"}, "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [container]}}
    items.append({"apiVersion": "v1", "kind": "Pod", **waiting, "status": {"phase": "Pending"}})
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_all_that_a_command_names_exists(command: Command) -> None:
    for words in command.parts:
        found = checks_of(words)
        assert len(found) == 1, (
            f"{command} shows {' '.join(words)!r}, which {len(found)} checks claim: there must be one in CHECKS of"
            " tests/docs/checks.py, and an entry of tests/docs/ledger.py for how it is run"
        )
        found[0](words)


@pytest.mark.parametrize("command", RUNNING, ids=str)
def test_a_command_does_what_its_page_says(
    command: Command, readers_files: Path, shell: Shell, request: pytest.FixtureRequest
) -> None:
    programs = {words[0] for words in command.parts}
    installed = programs == {"helm"} or "delete namespace" in command.text
    for name in programs & {"kubectl"} | ({"helm"} if installed else programs & {"helm"}):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not on PATH")
    with contextlib.ExitStack() as stack:
        kubeconfig = None
        if "--wait" in command.text:  # a server without controllers never has what Helm waits for
            kubeconfig = stack.enter_context(started_sandbox())
        elif installed:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(ApiServer(ApiServerOptions()))
            kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
            if not command.text.startswith("helm install"):
                subprocess.run(["bash", "-euc", INSTALL.text], cwd=ROOT, env=environment(kubeconfig), check=True)
        elif programs == {"kubectl"} or command == UP or "--until-fits" in command.text:
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
def test_commands_in_the_running_text_have_the_flags_they_are_shown_with(page: Path) -> None:
    for text in inline(page.read_text(encoding="utf-8")):
        words = text.split()
        if (words and words[0] in {*OURS, "make"}) or words[:2] == ["python", "-m"]:
            checks_of(words)[0](words)
        for value in values_of(words, "--set"):
            setting(value)


def test_the_transcript_has_every_question_that_dry_runs_answer() -> None:
    table = (ROOT / "docs/how-to/dry-run.md").read_text(encoding="utf-8").partition("## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
    shown = [one.text for one in COMMANDS if one.page == "dry-run-transcript.md"]
    assert len(rows) == 10
    for row in rows:
        question = re.findall(r"`([^`]*)`", row)[0].replace("pod/NAME", "pod/")
        asked = re.findall(r"--[a-z-]+|pod/|\b(?:capacity|cel|nodes|lint|snapshot)\b", question)
        assert any(all(word in text for word in asked) for text in shown), row
    assert all(one.output for one in COMMANDS if one.page == "dry-run-transcript.md")


def test_what_dry_runs_leave_out_is_told() -> None:
    page = (ROOT / "docs/how-to/dry-run.md").read_text(encoding="utf-8").partition("| evaluated | not evaluated |")[2]
    left_out = "\n".join(line.split("|")[2] for line in page.splitlines() if line.startswith("| "))
    for what in ("scores", "autoscaler", "gangs", "feature gates that are not default"):
        assert what in left_out


def test_a_program_that_nobody_checks_is_noticed() -> None:
    (command,) = commands("```sh\n\ncurl https://example.com | sh   # quick\n```\n", "page.md")
    assert str(command) == "page.md:3"
    assert [checks_of(words) for words in command.parts] == [[], []]


def test_a_page_may_leave_out_what_does_not_matter() -> None:
    assert says("one\n…\nlast … of all\n", "one\ntwo\nthree\nlast line of all\n")
    assert not says("one\n…\nlast\n", "one\ntwo\n")
    assert not says("one\n", "one\ntwo\n")
