# SPDX-License-Identifier: Apache-2.0
"""The registration with kubelet: a socket in kubelet's registry folder, on which kubelet asks for the plugin's
identity and reports the result.

kubelet asks again whenever it starts, or finds the socket again.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from dra_driver import DRIVER_NAME

from ..protocol import registration_pb2 as messages

log = logging.getLogger(__name__)


class RegistrationService:
    """Answers kubelet's GetInfo with the service's socket and versions.

    `notified(registered)` is called with each outcome that kubelet tells.
    """

    def __init__(self, endpoint: Path, versions: Sequence[str], notified: Callable[[bool], None]) -> None:
        self._info = messages.PluginInfo(
            type="DRAPlugin", name=DRIVER_NAME, endpoint=str(endpoint), supported_versions=list(versions)
        )
        self._tell = notified
        self._lock = threading.Lock()
        self._problem = "kubelet has not asked for it yet"

    def problem(self) -> str | None:
        """Why the plugin is not registered; None when kubelet said last that it is."""
        with self._lock:
            return self._problem or None

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`."""
        methods = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: self._info,
                request_deserializer=messages.InfoRequest.FromString,
                response_serializer=messages.PluginInfo.SerializeToString,
            ),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                self._notified,
                request_deserializer=messages.RegistrationStatus.FromString,
                response_serializer=messages.RegistrationStatusResponse.SerializeToString,
            ),
        }
        handler = grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)
        server.add_generic_rpc_handlers((handler,))

    def _notified(self, status: Any, _context: grpc.ServicerContext) -> Any:
        if status.plugin_registered:
            log.info("registered with kubelet")
        else:
            log.error("kubelet refused the registration: %s; kubelet will try again", status.error)
        with self._lock:
            self._problem = "" if status.plugin_registered else f"kubelet refused it: {status.error}"
        self._tell(bool(status.plugin_registered))
        return messages.RegistrationStatusResponse()
