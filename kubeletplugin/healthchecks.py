# SPDX-License-Identifier: Apache-2.0
"""What /healthz and /readyz mean for this process.

Healthy: its own sockets answer as kubelet would find them; when they do not for long, a restart helps. Calls that wait
do not delay the answer, since each call has a thread of its own. Ready: it can do its work, that is, kubelet has
registered it, there are GPUs that are looked at, the CDI spec that every container needs is right, and the API server
answers. A driver that hangs is no reason to restart: it would hang the next process too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from .contact import ApiContact
from .containers.common import CommonSpec
from .hardware.gpus import GpuAccess, NoDriverError
from .kubelet.healthsource import HealthWatch
from .kubelet.registration import RegistrationService
from .kubelet.sockets import SocketServer
from .protocol import dra_v1_pb2, registration_pb2

_SECONDS: Final = 2.0

Check = Callable[[], str | None]


def live_checks(service: SocketServer, registration: SocketServer) -> dict[str, Check]:
    """Whether the process works at all."""

    def answers() -> str | None:
        try:
            _prepare_nothing(service.path)
            if registration.is_started:
                _get_info(registration.path)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.Call) else str(error)
            return f"the plugin does not answer on its own sockets: {details}"
        return None

    return {"sockets": answers}


def ready_checks(
    registration: RegistrationService, access: GpuAccess, common: CommonSpec, health: HealthWatch, contact: ApiContact
) -> dict[str, Check]:
    """Whether the process can do its work."""
    return {
        "kubelet": registration.problem,
        "gpus": lambda: _gpus(access),
        "cdi": common.problem,
        "health": health.problem,
        "api-server": contact.problem,
    }


def _gpus(access: GpuAccess) -> str | None:
    hanging = access.calls.problem()
    if hanging is not None:
        return hanging
    try:
        access.current()
    except NoDriverError as error:
        return str(error)
    return None


def _prepare_nothing(socket: Path) -> None:
    """Ask as kubelet does, without a claim to prepare."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        prepare = channel.unary_unary(
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            dra_v1_pb2.NodePrepareResourcesRequest.SerializeToString,
            dra_v1_pb2.NodePrepareResourcesResponse.FromString,
        )
        prepare(dra_v1_pb2.NodePrepareResourcesRequest(), timeout=_SECONDS)


def _get_info(socket: Path) -> None:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        get_info = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            registration_pb2.InfoRequest.SerializeToString,
            registration_pb2.PluginInfo.FromString,
        )
        get_info(registration_pb2.InfoRequest(), timeout=_SECONDS)
