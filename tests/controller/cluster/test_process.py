# SPDX-License-Identifier: Apache-2.0
"""dra-cluster-controller as a process, alone and with another that stands by."""

import contextlib
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import urllib3

from controller.cluster.main import main
from dra_driver.domains.names import daemon_name
from dra_driver.kube.api import ApiClient, NotFoundError
from dra_driver.kube.kinds import DAEMON_SETS, LEASES
from dra_driver.kube.resource.codec import V1
from dra_driver.names import DRIVER_NAME
from dra_driver.process.command import DurationParameter
from tests.controller.cluster.domains.cluster import NAMESPACE, Cluster
from tests.support.apiserver import SLICES, embedded
from tests.support.preloaded import start
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster

ELECTION = (
    *("--leader-election-enabled", "--leader-election-lease-duration", "6s"),
    *("--leader-election-renew-deadline", "4500ms", "--leader-election-retry-period", "0.2s"),
)


class Process:
    """One of them: its log, and its endpoint."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def ask(self, path: str) -> str:
        """The body of a GET, whatever its status."""
        (port, *_) = wait_for(lambda: re.findall(r"serving .* port=(\d+)", self.log), "the endpoint")
        return urllib3.request("GET", f"http://127.0.0.1:{port}{path}", timeout=60).data.decode()

    @property
    def leads(self) -> bool:
        return "nvidia_dra_cluster_leader 1.0" in self.ask("/metrics")


@contextlib.contextmanager
def running(folder: Path, name: str, kubeconfig: Path, *arguments: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "controller.cluster.main", "--kubeconfig", str(kubeconfig), "--pod-name", name]
    command += ["--http-endpoint", "127.0.0.1:0", "--cleanup-grace-period", "0s", *arguments]
    path = folder / f"{name}.log"
    with path.open("wb") as log, start(command, stdout=log, stderr=log) as process:
        try:
            yield Process(process, path)
        finally:
            process.kill()


def make_leftover(client: ApiClient) -> str:
    name = f"slice-{uuid.uuid4().hex[:8]}"
    pool = {"name": "node-gone", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER_NAME, "pool": pool, "nodeName": "node-gone", "devices": []}
    value = {"apiVersion": V1.api_version, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
    client.create(SLICES, value)
    return name


def is_gone(client: ApiClient, name: str) -> bool:
    try:
        client.get(SLICES, name)
    except NotFoundError:
        return True
    return False


def test_single_controller_works_at_once_and_ends_on_sigterm(
    client: ApiClient, kubeconfig: Path, tmp_path: Path
) -> None:
    name = make_leftover(client)
    with running(tmp_path, "alone", kubeconfig) as one:
        wait_for(lambda: is_gone(client, name), "the leftover to go")
        wait_for(lambda: one.ask("/readyz") == "ok\n", "it to be ready")
        wait_for(lambda: one.leads, "it to lead")
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(60) == 0
    assert "stopping signal=SIGTERM" in one.log
    assert "stopped" in one.log


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_one_that_stands_by_takes_over(
    client: ApiClient, kubeconfig: Path, tmp_path: Path, end: signal.Signals
) -> None:
    flags = (*ELECTION, "--leader-election-lease-lock-name", f"lease-{uuid.uuid4().hex[:8]}")
    with running(tmp_path, "a", kubeconfig, *flags) as a:
        wait_for(lambda: a.leads, "a to lead")
        with running(tmp_path, "b", kubeconfig, *flags) as b:
            wait_for(lambda: "is held by a_" in b.log, "b to see a")
            assert not b.leads
            wait_for(lambda: b.ask("/readyz") == "ok\n", "who stands by to be ready")
            a.process.send_signal(end)
            name = make_leftover(client)
            wait_for(lambda: b.leads, "b to lead")
            wait_for(lambda: is_gone(client, name), "the leftover to go")


def test_a_holder_that_was_frozen_stops_when_it_wakes(client: ApiClient, kubeconfig: Path, tmp_path: Path) -> None:
    lease = f"lease-{uuid.uuid4().hex[:8]}"
    flags = (*ELECTION, "--leader-election-lease-lock-name", lease)
    with running(tmp_path, "a", kubeconfig, *flags) as a:
        wait_for(lambda: a.leads, "a to lead")
        with running(tmp_path, "b", kubeconfig, *flags) as b:
            a.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: b.leads, "b to lead")
            a.process.send_signal(signal.SIGCONT)
            wait_for(lambda: re.search("could not be renewed in time|is held by b_", a.log), "a to see that")
            assert client.get(LEASES, lease, "default")["spec"]["holderIdentity"].startswith("b_")


def test_the_leader_also_manages_compute_domains(tmp_path: Path) -> None:
    with embedded(tmp_path) as (_, kubeconfig, admin):
        cluster = Cluster(admin).install()
        flags = (*ELECTION, "--compute-domains", "--daemon-image", "example.com/dra:1", "--namespace", NAMESPACE)
        with (
            running(tmp_path, "a", kubeconfig, *flags) as a,
            running(tmp_path, "b", kubeconfig, *flags, "--leader-election-lease-lock-namespace", NAMESPACE) as b,
        ):
            wait_for(lambda: a.leads or b.leads, "a leader")
            first, second = (a, b) if a.leads else (b, a)
            uid, leftover = cluster.domain(), make_leftover(admin)
            wait_for(lambda: cluster.get(DAEMON_SETS, daemon_name(uid)), "the DaemonSet")
            wait_for(lambda: is_gone(admin, leftover), "the leftover to go")
            wait_for(lambda: 'compute_domain_info{status="NotReady"} 1.0' in first.ask("/metrics"), "the metric")
            wait_for(lambda: first.ask("/readyz") == "ok\n", "the leader to be ready")
            first.process.kill()
            uid = cluster.domain("second")
            wait_for(lambda: cluster.get(DAEMON_SETS, daemon_name(uid)), "the other process to take over")
            second.process.send_signal(signal.SIGTERM)
            assert second.process.wait(60) == 0


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--compute-domains"], "--compute-domains needs --daemon-image"),
        (["--imex-mode", "hostManaged", "--imex-tls-issuer", "Issuer/a"], "--imex-tls-issuer is for daemons"),
        (["--daemon-image", "a", "--imex-tls-issuer", "Secret/a"], "must be Issuer/NAME or ClusterIssuer/NAME"),
        (["--daemon-image", "a", "--daemon-resources", "{"], "--daemon-resources: not JSON"),
        (["--daemon-image", "a", "--daemon-resources", '{"cpu": "1"}'], "must be the requests and limits"),
        (["--daemon-image", "a", "--daemon-resources", '{"limits": {"cpu": "x"}}'], "--daemon-resources: "),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--compute-domains", *flags])
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15.0), ("1m30s", 90.0), ("500ms", 0.5), ("1.5h", 5400.0), ("0s", 0.0)]
)
def test_durations_are_written_as_in_go(text: str, seconds: float) -> None:
    assert DurationParameter("15s").convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "15", "s", "15 s", "-1s", "1d", "1s2"])
def test_text_without_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="such as 15s"):
        DurationParameter("15s").convert(text, None, None)
