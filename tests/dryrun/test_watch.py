# SPDX-License-Identifier: Apache-2.0
"""Answers that follow a cluster as it changes."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES, PODS
from tests.support.apiserver import SLICES
from tests.support.preloaded import start
from tests.support.waiting import wait_for

from .conftest import DryRun, Write, gpu, slice_of
from .test_command import claim
from .test_whole_pod import node, pod
from .test_whole_pod import running as running_pod

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
TIME = re.compile(r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}$", re.MULTILINE)


class Running:
    """A dra-dryrun that runs, and what it has printed."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.process = process
        self._output = output

    def printed(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        wait_for(lambda: text in self.printed() or self.process.poll() is not None, f"{text!r} in the output")
        assert text in self.printed()


@contextmanager
def running(folder: Path, *arguments: object) -> Iterator[Running]:
    output = folder / "output"
    with (
        output.open("wb") as file,
        start([str(BIN / "dra-dryrun"), *map(str, arguments)], stdout=file, stderr=file) as process,
    ):
        try:
            yield Running(process, output)
        finally:
            process.kill()


@pytest.fixture
def wanted(write: Write) -> Callable[[str], Path]:
    """A claim for a GPU of a model."""
    return lambda model: write("claim.yaml", claim(f"device.attributes['gpu.nvidia.com'].productName == '{model}'"))


def test_a_new_verdict_is_printed_when_there_is_one(
    wanted: Callable[[str], Path], client: ApiClient, kubeconfig: Path, tmp_path: Path
) -> None:
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "watched"}})
    with running(tmp_path, wanted("watched"), "--kubeconfig", kubeconfig, "--watch") as one:
        one.wait_for("fits nowhere")
        client.patch(NODES, "watched", {"metadata": {"annotations": {"beat": "1"}}})
        client.create(SLICES, slice_of("watched", gpu("gpu-0", "watched")))
        one.wait_for("fits  ResourceClaim wanted: on node watched")
        client.patch(NODES, "watched", {"metadata": {"annotations": {"beat": "2"}}})
        client.delete(SLICES, "watched-slice")
        wait_for(lambda: one.printed().count("fits nowhere") == 2, "the third verdict")
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(60) == 130
        assert len(TIME.findall(one.printed())) == 3
        assert "Traceback" not in one.printed()


def test_watch_ends_when_everything_fits_with_until_fits(
    wanted: Callable[[str], Path], client: ApiClient, kubeconfig: Path, tmp_path: Path
) -> None:
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "awaited"}})
    with running(tmp_path, wanted("awaited"), "--kubeconfig", kubeconfig, "--until-fits", "-o", "json") as one:
        one.wait_for('"fits": false')
        client.create(SLICES, slice_of("awaited", gpu("gpu-0", "awaited")))
        assert one.process.wait(60) == 0
        decoder = json.JSONDecoder()
        first, end = decoder.raw_decode(one.printed())
        second, _ = decoder.raw_decode(one.printed()[end:].lstrip())
        assert [first["fits"], second["fits"]] == [False, True]


def test_waiting_ends_after_its_time_limit_with_the_last_verdict(
    wanted: Callable[[str], Path], dryrun: DryRun, kubeconfig: Path
) -> None:
    code, out, err = dryrun(wanted("nowhere"), "--kubeconfig", kubeconfig, "--until-fits", "--timeout", "0s")
    assert code == 1
    assert out.count("fits nowhere") == 1
    assert "timed out: not everything fits after 0 s (--timeout)" in err


def test_a_time_limit_is_only_for_waiting(wanted: Callable[[str], Path], dryrun: DryRun, kubeconfig: Path) -> None:
    code, _, err = dryrun(wanted("any"), "--kubeconfig", kubeconfig, "--timeout", "5s")
    assert code == 2
    assert "--timeout is the time limit of --until-fits: give both" in err


def test_a_pod_that_ends_makes_room_for_another(
    write: Write, client: ApiClient, kubeconfig: Path, tmp_path: Path
) -> None:
    made = node("roomy", "2", labels={"roomy": "yes"})
    client.create(NODES, made)
    client.update(NODES, {**client.get(NODES, "roomy"), "status": made["status"]}, subresource="status")
    client.create(PODS, running_pod("ending", "roomy", "1500m"), "default")
    wanted = write("pod.json", pod("waiting", "1", nodeSelector={"roomy": "yes"}))
    with running(tmp_path, wanted, "--kubeconfig", kubeconfig, "--until-fits") as one:
        one.wait_for("1 lacks cpu (needs 1, has 0.5 free)")
        ended = {**client.get(PODS, "ending", "default"), "status": {"phase": "Succeeded"}}
        client.update(PODS, ended, subresource="status")
        assert one.process.wait(60) == 0
        assert "fits  Pod waiting: on node roomy" in one.printed()


def test_only_a_cluster_can_be_watched(dryrun: DryRun, wanted: Callable[[str], Path]) -> None:
    code, out, err = dryrun(wanted("any"), "-w")
    assert (code, out) == (2, "")
    assert "--watch needs a cluster to watch" in err


def test_a_cluster_that_is_away_is_an_error_at_once(
    dryrun: DryRun, wanted: Callable[[str], Path], write: Write
) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    }
    code, out, err = dryrun(wanted("any"), "--watch", "--kubeconfig", write("config", config))
    assert (code, out) == (2, "")
    assert "127.0.0.1:1" in err
    assert len(err.splitlines()) == 1


def test_outside_of_a_pod_there_is_no_cluster_that_this_runs_in(
    dryrun: DryRun, wanted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    code, out, err = dryrun(wanted("any"), "--in-cluster")
    assert (code, out) == (2, "")
    assert "not in a pod" in err
