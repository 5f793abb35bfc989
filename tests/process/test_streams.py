# SPDX-License-Identifier: Apache-2.0
"""Commands whose output nobody reads, that cannot be written, or whose characters the locale lacks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.preloaded import FOLDER_VARIABLE, SANDBOX, start
from .test_command import BIN, COMMANDS, clean

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]
GONE, SHUT, FULL = "", ">&-", ">/dev/full"
"""What becomes of standard output: its reader has gone, or a redirection of the shell."""

LOST = {
    GONE: (141, ""),
    SHUT: (2, r"[a-z_ -]+: standard output cannot be written: Bad file descriptor\n"),
    FULL: (2, r"[a-z_ -]+: standard output cannot be written: No space left on device\n"),
}
"""The exit status and standard error of a command then."""

FITS_NOWHERE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "none"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": "gpu.nvidia.com",
                        "selectors": [{"cel": {"expression": "device.driver == '\N{BLACK HEART SUIT}\\ud800'"}}],
                    },
                }
            ]
        }
    },
}


def redirected(how: str, command: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in the checkout with the shell's redirection `how`; nobody reads what is not redirected.

    What Python does about its streams when it starts is part of the test where one is closed or the locale says more.
    """
    reader, writer = os.pipe()
    os.close(reader)
    try:
        if how in (GONE, FULL) and not environment:
            with open(how.removeprefix(">") or writer, "wb", closefd=how == FULL) as output:
                order = [*(SANDBOX if command == "dra-sandbox" else (str(BIN / command),)), *arguments]
                pipe = subprocess.PIPE
                env = clean(**{FOLDER_VARIABLE: os.environ[FOLDER_VARIABLE]})
                with start(
                    order, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=pipe, text=True
                ) as process:
                    _, errors = process.communicate(timeout=120)
            return subprocess.CompletedProcess(order, process.returncode, None, errors)
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {how}', "sh", str(BIN / command), *arguments],
            cwd=ROOT,
            env=clean(**environment),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)


def assert_lost(how: str, command: str, *arguments: str) -> None:
    done = redirected(how, command, *arguments)
    status, says = LOST[how]
    assert done.returncode == status, done.stderr
    assert re.fullmatch(rf"(checked with .*\n)?{says}", done.stderr)


@pytest.mark.parametrize("how", [GONE, FULL])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_that_cannot_be_written_is_no_success(command: str, how: str) -> None:
    assert_lost(how, command, "--help")


ANSWERS = (
    "dra-dryrun fit examples/mig-slices.yaml --with-node h100x8-mig",
    "dra-dryrun capacity",
    "dra-dryrun cel true --output json",
    "dra-dryrun snapshot --built-in",
    "dra-dryrun lint no-such-file.yaml",
    "dra-kubeletplugin status --kubelet-plugins-directory-path no-such-folder",
    "dra-kubeletplugin check --host-root tests",
)


@pytest.mark.parametrize(("line", "how"), [*((line, GONE) for line in ANSWERS), (ANSWERS[1], SHUT), (ANSWERS[1], FULL)])
def test_an_answer_that_cannot_be_written_is_none(line: str, how: str) -> None:
    assert_lost(how, *line.split())


def test_a_demo_that_nobody_looks_at_ends() -> None:
    assert_lost(GONE, "dra-sandbox", "demo")


def test_messages_whose_stream_is_closed_change_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "object.json"
    file.write_text(json.dumps({**FITS_NOWHERE, "spec": 5}), encoding="utf-8")
    assert redirected(">/dev/null 2>&-", "dra-dryrun", "lint", str(file)).returncode == 1


@pytest.mark.parametrize(("content", "status"), [({**FITS_NOWHERE, "spec": 5}, 1), ({}, 0)])
def test_messages_that_cannot_be_written_change_no_answer(tmp_path: Path, content: object, status: int) -> None:
    file = tmp_path / "object.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    order = [str(BIN / "dra-dryrun"), "lint", str(file)]
    nothing = subprocess.DEVNULL
    with (
        Path("/dev/full").open("wb") as full,
        start(order, cwd=ROOT, env=clean(), stdin=nothing, stdout=nothing, stderr=full) as process,
    ):
        assert process.wait(120) == status


def test_a_standard_input_that_is_closed_is_told(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    done = redirected(f"<&- >{answer}", "dra-dryrun", "fit", "-")
    assert (done.returncode, answer.read_bytes()) == (2, b"")
    (line,) = done.stderr.splitlines()
    assert "standard input" in line
    assert "it is closed" in line


LATIN, PLAIN = {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("locale", "printed"),
    [
        (LATIN, b"\xe4 \\u2665 \\ud800"),
        (PLAIN, rb"\xe4 \u2665 \ud800"),
        ({"PYTHONUTF8": "1"}, b"\xc3\xa4 \xe2\x99\xa5 \\ud800"),
    ],
    ids=str,
)
def test_a_character_that_cannot_be_encoded_is_printed_as_its_number(locale: dict[str, str], printed: bytes) -> None:
    program = "from dra_driver.process.streams import adopt_streams; adopt_streams(); print('\\xe4 \\u2665 \\ud800')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=clean(**locale), capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", printed + b"\n")


@pytest.mark.parametrize(("output", "locale"), [("table", PLAIN), ("html", LATIN)], ids=str)
def test_a_character_that_cannot_be_encoded_is_no_reason_to_fail(
    tmp_path: Path, output: str, locale: dict[str, str]
) -> None:
    claim, answer = tmp_path / "claim.json", tmp_path / "answer"
    claim.write_text(json.dumps(FITS_NOWHERE), encoding="utf-8")
    one_node = ("--with-node", "h100x8")
    done = redirected(f">{answer}", "dra-dryrun", "fit", str(claim), *one_node, "--output", output, **locale)
    assert (done.returncode, done.stderr) == (1, "")
    assert b"none" in answer.read_bytes()


def test_an_expression_that_is_no_text_is_refused() -> None:
    done = redirected("", "dra-dryrun", "cel", os.fsdecode(b"device.driver == '\xff'"))
    assert done.returncode == 2
    assert "EXPRESSION is not UTF-8 text" in done.stderr
