# SPDX-License-Identifier: Apache-2.0
"""dra-dryrun at a terminal: help, colors, completion, lists, Ctrl-C, and texts that would change the terminal."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click
import pytest

from dra_driver import __version__
from dra_driver.dryrun.answer import Question, answered
from dra_driver.dryrun.documents import read_all
from dra_driver.dryrun.lint.catalog import KnownObjects
from dra_driver.dryrun.lint.check import LintBasis, check
from dra_driver.dryrun.main import complete
from dra_driver.dryrun.main import dryrun as dryrun_group
from dra_driver.dryrun.options import Subcommand
from dra_driver.dryrun.progress import bar
from dra_driver.dryrun.sources import Source
from dra_driver.dryrun.workload import Demand
from dra_driver.kube.resource import ObjectMeta
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.allocator import Features
from tests.dryrun.clusters import with_defaults
from tests.support.preloaded import run, start
from tests.support.waiting import wait_for

from .conftest import DryRun, Write, gpu, slice_of
from .reports import claim as claim_for
from .test_command import claim
from .test_hostile import CLAIM

HELD = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "held", "namespace": "default"},
    "spec": {},
    "status": {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-1"}]}
        }
    },
}
COMMANDS = ["fit", "capacity", "cel", "gpus", "lint", "snapshot"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_every_variable_once(command: str, dryrun: DryRun) -> None:
    code, out, _ = dryrun(command, "-h")
    assert code == 0
    assert out == dryrun(command, "--help")[1]
    assert f"dra-dryrun {command if command != 'fit' else 'pod.yaml'}" in out.partition("Examples:")[2]
    variables = [line.split()[0] for line in out.partition("Environment:")[2].splitlines() if line.strip()]
    assert len(variables) == len(set(variables))
    assert all(one.startswith("DRA_DRYRUN_") for one in variables)
    assert "env var" not in out


@pytest.mark.parametrize("command", [Subcommand("x"), dryrun_group], ids=["a subcommand", "the program"])
def test_the_short_flag_for_help_does_not_depend_on_who_described_the_command_before(command: click.Command) -> None:
    """As the generator of manual pages does: click keeps the flag that it made first."""
    assert command.get_help_option_names(click.Context(command)) == ["-h", "--help"]


def test_summaries_of_subcommands_are_not_cut(dryrun: DryRun) -> None:
    out = dryrun("--help")[1]
    assert "..." not in out.partition("Commands:")[2]


def test_files_can_be_given_as_for_kubectl(dryrun: DryRun, write: Write) -> None:
    path = write("claim.yaml", claim())
    assert dryrun("-f", path)[1] == dryrun(path)[1]
    assert dryrun()[0] == 2
    assert "empty.yaml: there is no object in it" in dryrun(write("empty.yaml", ""))[2]


@pytest.mark.node
def test_version_and_completion(dryrun: DryRun) -> None:
    assert dryrun("version")[1] == f"dra-dryrun {__version__}\n"
    for shell in ("bash", "zsh", "fish"):
        assert "_DRA_DRYRUN_COMPLETE" in dryrun("completion", shell)[1]


@pytest.mark.node
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", {"plain,fit", "plain,lint", "plain,completion", "file,"}),
        ("li", {"plain,lint", "file,li"}),
        ("--fi", {"plain,--filename"}),
        ("capacity --out", {"plain,--output"}),
        ("pod.yaml --all-p", {"plain,--all-pending"}),
        ("lint ma", {"file,ma"}),
        ("pod.yaml --slices cl", {"file,cl"}),
        ("fit -f cl", {"file,cl"}),
        ("lint -o j", {"plain,json"}),
        ("completion z", {"plain,zsh"}),
        ("fti cl", {"file,cl"}),
    ],
)
def test_bash_completes_commands_options_and_files(typed: str, offered: set[str], tmp_path: Path) -> None:
    words = f"dra-dryrun {typed}".split(" ")
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    environment = {**os.environ, "HOME": str(tmp_path), **asked, "_DRA_DRYRUN_COMPLETE": "bash_complete"}
    program = [sys.executable, "-c", "from dra_driver.dryrun.main import main; main()"]
    found = run(program, env=environment)
    assert offered <= set(found.stdout.splitlines())
    assert found.stderr == ""


@pytest.mark.parametrize(
    ("words", "offered", "directive"),
    [
        ([""], {"lint"}, ":0"),
        (["li"], {"lint"}, ":0"),
        (["completion", "z"], {"zsh"}, ":4"),
        (["fit", "-f", "cl"], set(), ":0"),
        (["gpus", "--out"], {"--output"}, ":4"),
        ([], {"fit"}, ":0"),
    ],
)
def test_kubectl_completes_as_cobra_wants_it(
    words: list[str],
    offered: set[str],
    directive: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    complete(words)
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == directive
    assert offered <= {line.partition("\t")[0] for line in lines}
    assert all(line.startswith(words[-1]) for line in lines if words)


@pytest.mark.parametrize(("color", "colored"), [("always", True), ("never", False), ("auto", False)])
def test_colors_are_a_choice(color: str, colored: bool, dryrun: DryRun, write: Write) -> None:
    out = dryrun(write("claim.yaml", claim()), "--color", color)[1]
    assert ("\x1b[" in out) == colored


def test_control_characters_of_manifests_are_not_printed(dryrun: DryRun, write: Write) -> None:
    device = gpu("gpu-0", "\x1b[31mH100\x07")
    cluster = write("slices.json", slice_of("a", device))
    code, out, _ = dryrun(write("claim.yaml", claim()), "--slices", cluster)
    assert code == 0
    assert not any(ord(one) < 32 and one != "\n" for one in out)
    assert "H100" in out


def interrupt(*_: int) -> None:
    """Ctrl-C when the first of several things is done."""
    raise KeyboardInterrupt


def test_an_interrupted_answer_has_what_is_known() -> None:
    wanted = claim_for("wanted", "true", device_class="gpu.nvidia.com")
    demands = [Demand(name, (replace(wanted, metadata=ObjectMeta(name=name)),)) for name in ("first", "second")]
    objects = with_defaults([decode(slice_of("a", gpu("gpu-0")))])
    found = answered(Question(demands, Features()), Source(objects, "a file"), interrupt)
    assert [(one.demand.name, one.node) for one in found.verdicts] == [("first", "a")]
    assert found.interrupted == "1 of 2 are answered"


def test_an_interrupted_lint_has_what_is_found(write: Write) -> None:
    wrong = claim().replace("requests", "requets")
    reading = read_all([str(write("claims.yaml", f"{wrong}\n---{wrong}"))], lenient=True)
    found = check(reading, LintBasis("1.36", KnownObjects(()), "nowhere"), interrupt)
    assert (found.checked, found.left) == (1, 1)
    assert {one.rule for one in found.findings} >= {"unknown-field"}


@pytest.mark.node
@pytest.mark.parametrize("command", ["fit", "lint", "capacity --slices", "cel true --slices"])
def test_ctrl_c_before_there_is_an_answer_says_so(command: str, tmp_path: Path) -> None:
    fifo = tmp_path / "claim.yaml"
    os.mkfifo(fifo)
    words = [sys.executable, "-c", "from dra_driver.dryrun.start import main; main()", *command.split(), str(fifo)]
    pipe = subprocess.PIPE
    with start(words, stdout=pipe, stderr=pipe, text=True) as asked, fifo.open("w"):  # when it opens the file
        wait_for(lambda: _sleeps(asked.pid), "the command to read the file")
        asked.send_signal(signal.SIGINT)
        out, err = asked.communicate(timeout=60)
    assert (asked.returncode, out, err) == (130, "", "interrupted: there is no answer yet\n")


def _sleeps(pid: int) -> bool:
    """Whether a process waits, and not only for a moment. A signal just before it begins to read would not end that."""

    def state() -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]

    first = state()
    time.sleep(0.05)
    return first == state() == "S"


@pytest.mark.node
@pytest.mark.parametrize("module", ["click", "dra_driver.dryrun.fit", "yaml"])
def test_ctrl_c_while_modules_load_is_quiet(module: str) -> None:
    """The signal arrives before the modules of the command, or of its subcommand, are there."""
    script = "import os, signal, sys\nfrom dra_driver.dryrun import start\n"
    script += "class Finder:\n    def find_spec(self, name, *more):\n"
    script += f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
    script += "sys.meta_path.insert(0, Finder())\nstart.main()\n"
    words = [sys.executable, "-c", script, "fit", "--help"]
    ended = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stderr.strip() == b""


def test_progress_has_a_bar_and_a_count() -> None:
    assert bar(50, 100) == "[##########          ] 50 of 100"
    assert bar(0, 0) == "[                    ] 0 of 0"


def test_the_page_names_date_command_files_and_cluster(
    dryrun: DryRun, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("claim.yaml", claim())
    monkeypatch.setattr(sys, "argv", ["dra-dryrun", "fit"])
    monkeypatch.setenv("DRA_DRYRUN_FIT_OUTPUT", "html")
    page = dryrun("-f", path)[1]
    told = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page))
    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} .+", told["Date"])
    assert told["Command"] == "dra-dryrun fit"
    assert told["Files"] == str(path)
    assert told["Devices from"] == "built-in example nodes (no cluster is configured)"


@pytest.mark.parametrize("name", ["virtual-function.nvidia.com", "imex"])
def test_classes_of_other_drivers_are_no_misspelling_of_ours(name: str, dryrun: DryRun, write: Write) -> None:
    wanted = claim().replace("deviceClassName: gpu.nvidia.com", f"deviceClassName: {name}")
    out = dryrun("lint", write("claim.yaml", wanted))[1]
    assert "there is no DeviceClass" in out
    assert "did you mean" not in out
    typo = claim().replace("deviceClassName: gpu.nvidia.com", "deviceClassName: gpu.nvdia.com")
    assert "did you mean 'gpu.nvidia.com'?" in dryrun("lint", write("typo.yaml", typo))[1]


WIDE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: a-claim-with-quite-a-long-name-which-takes-half-a-line}
spec:
  devices:
    requests:
    - name: mig
      exactly: {deviceClassName: mig.nvidia.com, count: 2, selectors: [{cel: {expression: "SELECTOR"}}]}
"""
PRODUCT = "device.attributes['gpu.nvidia.com'].productName"


@pytest.mark.parametrize(
    "arguments",
    [
        ["{file}"],
        ["{file}", "-o", "wide"],
        ["{file}", "--replicas", "max"],
        ["{refused}"],
        ["capacity", "-o", "wide"],
        ["cel", f"{PRODUCT} == 'NVIDIA H100'"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("columns", [60, 100])
def test_everything_fits_a_narrow_terminal_and_nothing_is_lost(
    arguments: list[str], columns: int, dryrun: DryRun, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("c", WIDE.replace("SELECTOR", "true"))
    refused = write("r", WIDE.replace("SELECTOR", f"{PRODUCT} == 'NVIDIA H100' && {PRODUCT} != 'NVIDIA A100'"))
    words = [word.format(file=file, refused=refused) for word in arguments]
    words += ["--with-node", "h100x8-mig=2"]
    wide = dryrun(*words)[1]
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = dryrun(*words)[1]
    assert max(map(len, narrow.splitlines())) <= columns
    if "|" not in wide:  # in a picture, narrow boxes have no room for profiles
        assert Counter("".join(narrow.split())) == Counter("".join(wide.split()))


@pytest.mark.node
def test_the_width_is_that_of_the_terminal_and_a_pipe_has_none(write: Write, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "dra_driver.dryrun.main", "capacity", "-o", "wide", "--built-in"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    piped = run(words, env=environment).stdout
    assert max(map(len, piped.splitlines())) > 60
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with start([*words, "--color", "never"], stdout=slave, env=environment) as shown:
        os.close(slave)
        written = b""
        with contextlib.suppress(OSError):  # Linux's way to say that nobody can write any more
            while chunk := os.read(master, 65536):
                written += chunk
        assert shown.wait(60) == 0
    os.close(master)
    lines = written.decode().splitlines()
    assert len(lines) > len(piped.splitlines())
    assert max(map(len, lines)) <= 60


NASTY = "\x1b[2J\x07\x9b31m\u202eevil"


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "{claim}"],
        ["fit", "{claim}", "-o", "json"],
        ["fit", "{claim}", "-o", "yaml"],
        ["fit", "{claim}", "-o", "html"],
        ["fit", "{unknown}"],
        ["fit", "{folder}"],
        ["fit", NASTY],
        ["cel", "{nasty}"],
        ["cel", f"device.driver == '{NASTY}' && (device.attributes['a.b'].c == 'd' || true)"],
        ["cel", f"device.driver == '{NASTY}'", "-o", "json"],
        ["lint", "{claim}"],
        ["lint", "{claim}", "-o", "json"],
        ["lint", "{claim}", "-o", "github"],
        ["lint", "{folder}"],
        ["devices", "--slices", "{slices}"],
        ["devices", "--slices", "{slices}", "-o", "json"],
        ["capacity", "--slices", "{slices}", "-o", "wide"],
        ["capacity", "--slices", "{claim}"],
        ["snapshot", "--slices", "{slices}"],
    ],
    ids=str,
)
def test_nothing_that_is_printed_changes_the_terminal(
    arguments: list[str], dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    selector = {"cel": {"expression": f"device.driver == '{NASTY}' && device.nosuch == '{NASTY}'"}}
    exactly = {"deviceClassName": f"gpu{NASTY}", "selectors": [selector]}
    request = {"name": f"gpu{NASTY}", "exactly": exactly, f"field{NASTY}": 1}
    wanted = json.loads(json.dumps({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}))
    wanted |= {"metadata": {"name": f"a{NASTY}"}, "spec": {"devices": {"requests": [request]}}}
    folder = tmp_path / f"folder{NASTY}"
    folder.mkdir()
    (folder / "values.yaml").write_text("replicas: 1\n", encoding="utf-8")
    (folder / "claim.yaml").write_text(claim(), encoding="utf-8")
    given = {
        "claim": write("claim.json", wanted),
        "unknown": write("unknown.json", {**wanted, "kind": f"Kind{NASTY}"}),
        "slices": write("slices.json", slice_of("a", gpu("gpu-0", NASTY))),
        "folder": folder,
        "nasty": f"device.driver = '{NASTY}'",
    }
    code, out, err = dryrun(*(word.format(**given) if word.startswith("{") else word for word in arguments))
    assert code in (0, 1, 2)
    assert out + err
    printed = set(out + err) - {"\n"}
    assert not {one for one in printed if ord(one) < 32 or 127 <= ord(one) < 160 or one == "\u202e"}


LINES = """device.attributes['gpu.nvidia.com'].productName == 'H100' ||
(
  device.attributes['gpu.nvidia.com'].productName == 'H200'
)"""


def test_cel_of_several_lines_is_indented(dryrun: DryRun, write: Write) -> None:
    wanted = json.loads(json.dumps(CLAIM))
    wanted["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": LINES}}]
    path = write("claim.json", wanted)
    out = dryrun("fit", path, "--with-node", "h100x8")[1].splitlines()
    at = next(number for number, line in enumerate(out) if "not matched by its selector" in line)
    assert out[at].endswith("'H100' ||")
    first = out[at].index("not matched")
    assert [line.index(line.strip()) - first for line in out[at + 1 : at + 4]] == [2, 4, 2]
    assert out[at + 4].index("found") == first
    findings = dryrun("lint", path, "--built-in")[1].splitlines()
    assert findings[0].startswith(f"{path}:")
    assert all(line.startswith("    ") for line in findings[1:])
    assert len(findings) == 4


@pytest.mark.parametrize("command", ["fit", "capacity", "cel", "lint"])
def test_variable_for_the_release_applies_to_every_subcommand(
    command: str, dryrun: DryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_DRYRUN_KUBERNETES_VERSION", "1.12")
    code, _, err = dryrun(command, *(["x"] if command != "capacity" else []))
    assert code == 2
    assert "'1.12' is not one of" in err
