# SPDX-License-Identifier: Apache-2.0
"""What becomes of claims on the wire: answers, errors, share IDs, calls that nobody waits for any more."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.kube.api.events import EventRecorder
from dra_driver.process.endpoints import new_registry
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from kubeletplugin.claims.answers import PreparedDevice, prepared_devices
from kubeletplugin.claims.call import Call
from kubeletplugin.claims.model import ClaimRef, Device, Plan
from kubeletplugin.claims.specs import cdi_names
from kubeletplugin.containers.cdi import BASE_DEVICE, claim_device
from kubeletplugin.containers.metadata import MetadataFiles, metadata_names
from kubeletplugin.errors import NoDriverError, PrepareError, StoppedError
from kubeletplugin.kinds.gpu import GpuKind
from kubeletplugin.kubelet.service import DraService
from kubeletplugin.kubelet.sockets import SocketServer
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.protocol import dra_v1_pb2
from kubeletplugin.reports.reporter import ClaimReports
from tests.support.claims import allocated_claim
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

VERSIONS = ("v1", "v1beta1")
SHARE = "0aa5f1c6-7a3c-4f83-9f0e-5b7a2f3c4d5e"


class Claims:
    """Claims as a test wants them: devices, or an error, by UID."""

    def __init__(self, files: MetadataFiles) -> None:
        self.files = files
        self.plans: dict[str, tuple[Device, ...]] = {}
        self.errors: dict[str, Exception] = {}
        self.waiting: dict[str, Call] = {}
        self.proceed = threading.Event()

    def prepare(self, ref: ClaimRef, call: Call) -> list[PreparedDevice]:
        self.unprepare(ref, call)
        return prepared_devices(Plan(ref, "node-a", self.plans.get(ref.uid, ())), self.files)

    def unprepare(self, ref: ClaimRef, call: Call) -> None:
        if ref.uid == "slow":
            self.waiting[ref.uid] = call
            self.proceed.wait()
        if ref.uid in self.errors:
            raise self.errors[ref.uid]


class Served:
    """The service on a socket, and kubelet's side of it."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.files = MetadataFiles(folder / "metadata")
        self.claims = Claims(self.files)
        self.registry = new_registry()
        connection = Connection(load_credentials(str(kubeconfig)), "tests")
        self.reports = ClaimReports(
            connection, "node-a", lambda _: {}, events=EventRecorder(ApiClient(connection), "x")
        )
        self.service = DraService(
            self.claims.prepare, self.claims.unprepare, PluginMetrics(self.registry, "node-a"), self.reports
        )
        self.server = SocketServer(folder / "dra.sock", [self.service])
        self.server.start()
        self.channel = grpc.insecure_channel(f"unix:{self.server.path}", [("grpc.use_local_subchannel_pool", 1)])

    def call(self, verb: str, *uids: str, version: str = "v1", begin: bool = False) -> Any:
        method = self.channel.unary_unary(
            f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/Node{verb}Resources",
            lambda request: request.SerializeToString(),
            getattr(dra_v1_pb2, f"Node{verb}ResourcesResponse").FromString,
        )
        claims = [dra_v1_pb2.Claim(namespace="team", name=f"claim-{uid}", uid=uid) for uid in uids]
        request = getattr(dra_v1_pb2, f"Node{verb}ResourcesRequest")(claims=claims)
        return method.future(request) if begin else method(request, timeout=60).claims


@pytest.fixture(scope="module")
def quiet_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An API server that nothing is sent to here: the reports' thread is not started."""
    with ApiServer(ApiServerOptions(tls=False)) as server:
        yield server.write_kubeconfig(tmp_path_factory.mktemp("server") / "config")


@pytest.fixture
def served(short_path: Path, quiet_server: Path) -> Iterator[Served]:
    one = Served(short_path, quiet_server)
    yield one
    one.claims.proceed.set()
    one.channel.close()
    one.server.stop()


def gpu(index: int, request: str = "r", share_id: str | None = None) -> Device:
    return Device(f"gpu-{index}", request, GpuKind(f"GPU-{index}", index, ""), share_id=share_id)


@pytest.mark.parametrize("version", VERSIONS)
def test_devices_come_with_their_request_pool_and_cdi_names(served: Served, version: str) -> None:
    served.claims.plans["u1"] = (gpu(0, "a"), gpu(1, "b"))
    (answer,) = served.call("Prepare", "u1", version=version).values()
    assert [(one.pool_name, one.device_name, list(one.request_names)) for one in answer.devices] == [
        ("node-a", "gpu-0", ["a"]),
        ("node-a", "gpu-1", ["b"]),
    ]
    assert [list(one.cdi_device_ids) for one in answer.devices] == [cdi_names("u1", gpu(0)), cdi_names("u1", gpu(1))]


def test_a_share_is_named(served: Served) -> None:
    served.claims.plans["u1"] = (gpu(0, share_id=SHARE), gpu(1))
    shared, whole = served.call("Prepare", "u1")["u1"].devices
    assert shared.share_id == SHARE
    assert shared.HasField("share_id")
    assert not whole.HasField("share_id")


def test_the_metadata_file_of_a_request_comes_with_its_first_device(served: Served) -> None:
    served.claims.plans["u1"] = (gpu(0, "r0"), gpu(1, "r1"), gpu(2, "r1"))
    served.files.write(allocated_claim("training", ["gpu-0", "gpu-1"], uid="u1"), lambda _: {})
    found = [list(one.cdi_device_ids) for one in served.call("Prepare", "u1")["u1"].devices]
    files = metadata_names("u1", ["r0", "r1"])
    assert found == [
        [claim_device("u1", "gpu-0"), BASE_DEVICE, *files["r0"]],
        [claim_device("u1", "gpu-1"), BASE_DEVICE, *files["r1"]],
        [claim_device("u1", "gpu-2"), BASE_DEVICE],
    ]


@pytest.mark.parametrize("verb", ["Prepare", "Unprepare"])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_is_its_claims_alone(served: Served, verb: str, version: str) -> None:
    served.claims.errors = {"bad": PrepareError("no such device"), "worse": NoDriverError("not ready")}
    answers = served.call(verb, "bad", "good", "worse", version=version)
    assert {uid: one.error for uid, one in answers.items()} == {
        "bad": "no such device",
        "good": "",
        "worse": "not ready",
    }


@pytest.mark.parametrize("verb", ["Prepare", "Unprepare"])
def test_a_bug_is_answered_and_logged(served: Served, verb: str, caplog: pytest.LogCaptureFixture) -> None:
    served.claims.errors["bad"] = ZeroDivisionError("oops")
    assert served.call(verb, "bad")["bad"].error == "internal error: ZeroDivisionError('oops')"
    assert "Traceback" in caplog.text
    labels = {"driver": "gpu.nvidia.com", "error_type": "internal"}
    assert served.registry.get_sample_value(f"nvidia_dra_node_{verb.lower()}_errors_total", labels) == 1.0


def test_results_of_claims_wait_to_be_reported(served: Served) -> None:
    served.claims.errors["bad"] = PrepareError("no such device")
    served.call("Prepare", "good", "bad")
    assert served.reports.waiting() == 2


def test_work_knows_whether_somebody_still_waits(served: Served) -> None:
    call = served.call("Prepare", "slow", begin=True)
    wait_for(lambda: "slow" in served.claims.waiting, "the work to begin")
    work = served.claims.waiting["slow"]
    work.check()
    call.cancel()

    def is_stopped() -> bool:
        try:
            work.check()
        except StoppedError:
            return True
        return False

    wait_for(is_stopped, "the work to hear of it")
    assert not served.service.drain(0)
    served.claims.proceed.set()
    assert served.service.drain(60)


def test_the_end_waits_for_answers_to_be_sent(served: Served) -> None:
    call = served.call("Unprepare", "slow", begin=True)
    wait_for(lambda: "slow" in served.claims.waiting, "the work to begin")
    assert not served.service.drain(0)
    served.claims.proceed.set()
    assert served.service.drain(60)
    assert call.result(timeout=60).claims["slow"].error == ""
