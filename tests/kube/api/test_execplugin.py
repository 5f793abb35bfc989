# SPDX-License-Identifier: Apache-2.0
"""Kubeconfigs whose user is a program: real scripts, run as kubectl runs them."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.api import Connection, ConnectionConfigError, Credentials, UnreachableError, load_credentials
from dra_driver.kube.api.kubeconfig import ExecPlugin
from tests.support.scripted import Reply, scripted
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

V1 = "client.authentication.k8s.io/v1"


class Plugin:
    """A program beside a kubeconfig; it notes each run and prints what `answer` holds."""

    def __init__(self, folder: Path, server: str = "https://10.0.0.1:6443") -> None:
        self.folder = folder
        self.server = server
        self.runs = folder / "runs"
        self.program = folder / "login"
        self.answer({"token": "from-program"})
        self.program.write_text(
            f"#!{sys.executable}\n"
            "import os, sys, pathlib\n"
            f"folder = pathlib.Path({str(folder)!r})\n"
            "with (folder / 'runs').open('a') as file:\n"
            "    print(os.environ['KUBERNETES_EXEC_INFO'], os.environ.get('EXTRA'), sys.argv[1:], sep='|', file=file)\n"
            "print((folder / 'answer').read_text(), end='')\n"
            "sys.exit((folder / 'failure').exists() and (folder / 'failure').read_text())\n"
        )
        self.program.chmod(0o700)

    def answer(self, status: dict[str, Any], version: str = V1) -> None:
        """Print this credential from now on."""
        credential = {"apiVersion": version, "kind": "ExecCredential", "status": status}
        (self.folder / "answer").write_text(json.dumps(credential))

    def load(self, **spec: Any) -> Credentials:
        """The credentials of a kubeconfig with this program."""
        user = {"exec": {"apiVersion": V1, "command": "./login", "interactiveMode": "Never", **spec}}
        document = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
            "clusters": [{"name": "one", "cluster": {"server": self.server, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "me", "user": user}],
        }
        file = self.folder / "kubeconfig"
        file.write_text(yaml.safe_dump(document))
        return load_credentials(str(file))

    def refusal(self, **spec: Any) -> str:
        """What is said instead of giving credentials."""
        with pytest.raises(ConnectionConfigError) as raised:
            self.load(**spec)
        text = str(raised.value)
        assert "\n" not in text
        return text


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def credential(**status: str) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


def expiring(after: timedelta) -> str:
    return (datetime.now(UTC) + after).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_the_program_is_told_what_it_needs(plugin: Plugin) -> None:
    found = plugin.load(args=["get", 1], env=[{"name": "EXTRA", "value": "more"}], provideClusterInfo=True)
    assert found.token() == "from-program"
    info, extra, arguments = plugin.runs.read_text().splitlines()[0].split("|")
    assert (extra, arguments) == ("more", "['get', '1']")
    assert json.loads(info) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": plugin.server, "insecure-skip-tls-verify": True}},
    }


@pytest.mark.parametrize(("valid", "runs"), [(timedelta(hours=1), 1), (timedelta(hours=-1), 4)])
def test_plugin_runs_again_after_the_token_has_expired(plugin: Plugin, valid: timedelta, runs: int) -> None:
    plugin.answer({"token": "short", "expirationTimestamp": expiring(valid)})
    found = plugin.load()
    assert [found.token() for _ in range(3)] == ["short"] * 3
    assert len(plugin.runs.read_text().splitlines()) == runs


def test_plugin_may_return_a_certificate(plugin: Plugin) -> None:
    plugin.answer({"clientCertificateData": "CERTIFICATE", "clientKeyData": "KEY"})
    found = plugin.load()
    assert (found.client_certificate, found.token()) == (("CERTIFICATE", "KEY"), None)


def test_plugin_is_found_on_the_path(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(plugin.folder), prepend=":")
    assert plugin.load(command="login").token() == "from-program"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"command": "./gone"}, "gone: No such file or directory (is it installed?)"),
        ({"command": "./gone", "installHint": "brew install login"}, "(brew install login)"),
        ({"args": 5}, "args of exec must be a list of texts"),
        ({"args": ["\0"]}, "embedded null byte"),
        ({"env": [{"name": "EXTRA"}]}, "env of exec must be a list of pairs of a name and a value, both texts"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "exec has apiVersion 'client.auth"),
        ({"apiVersion": "client.authentication.k8s.io/v1beta1"}, "not an ExecCredential of client.auth"),
    ],
)
def test_a_program_that_cannot_be_run_is_said(plugin: Plugin, spec: dict[str, Any], said: str) -> None:
    assert said in plugin.refusal(**spec)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "did not print an ExecCredential"),
        ("[]", "did not print an ExecCredential"),
        pytest.param("[" * 100_000, "did not print an ExecCredential: RecursionError", id="open sequences"),
        (credential(token="two\nlines"), "the token has blanks, line breaks or characters"),
        (credential(token="x", expirationTimestamp="2020-01-01T00:00:00"), "has no time zone"),
        (json.dumps({"apiVersion": V1, "kind": "ExecCredential"}), "did not print an ExecCredential: KeyError"),
        (json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {}}), "returned neither a token nor a"),
    ],
)
def test_an_answer_that_is_none_is_said(plugin: Plugin, answer: str, said: str) -> None:
    (plugin.folder / "answer").write_text(answer)
    assert said in plugin.refusal()


def test_plugin_that_never_ends_is_killed_with_its_children(tmp_path: Path) -> None:
    started = tmp_path / "started"
    args = ["-c", f"sleep 1000 & echo $! > {started}; wait"]
    spec = {"apiVersion": V1, "command": "sh", "args": args, "interactiveMode": "Never"}
    with pytest.raises(ConnectionConfigError, match=r"me: sh returned no credential within 1 s and was stopped"):
        ExecPlugin(spec, "me", Path(), {}, seconds=1.0).token()
    wait_for(lambda: not _command_of(int(started.read_text())), "the end of what the program started")


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a process that nobody has waited for yet
    except OSError:
        return b""


def test_output_of_a_failing_plugin_is_in_the_error(plugin: Plugin) -> None:
    (plugin.folder / "failure").write_text("session\n has expired")
    assert plugin.refusal().endswith("/login failed with exit status 1: session has expired")


def test_plugin_that_fails_later_fails_the_request(tmp_path: Path) -> None:
    with scripted([Reply()]) as server:
        plugin = Plugin(tmp_path, server.url)
        plugin.answer({"token": "short", "expirationTimestamp": expiring(timedelta(hours=-1))})
        with Connection(plugin.load(), "tests") as connection:
            assert connection.request("GET", "/").status == 200
            (tmp_path / "failure").write_text("logged out")
            with pytest.raises(UnreachableError, match="logged out"):
                connection.request("GET", "/")
    assert [one.headers["Authorization"] for one in server.asked] == ["Bearer short"]
