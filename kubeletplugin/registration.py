# SPDX-License-Identifier: Apache-2.0
"""How kubelet finds the plugin: a socket in its registry folder, where it asks who is there and tells how that went."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from dra_driver import DRIVER_NAME

from .protocol import registration_pb2 as messages

log = logging.getLogger(__name__)


class RegistrationService:
    """Answers kubelet's GetInfo with the service's socket and versions."""

    def __init__(self, endpoint: Path, versions: Sequence[str]) -> None:
        self._info = messages.PluginInfo(
            type="DRAPlugin", name=DRIVER_NAME, endpoint=str(endpoint), supported_versions=list(versions)
        )

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
            log.error("kubelet refused the registration: %s", status.error)
        return messages.RegistrationStatusResponse()
