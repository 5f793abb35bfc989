# SPDX-License-Identifier: Apache-2.0
"""Registration: the dialogue over a plugin's registration socket, and what kubelet decides in it."""

import threading
import time
from collections.abc import Callable, Sequence

import grpc

from .options import Periods
from .plugin import Registration, registration_channel
from .state import rpc_text
from .wire import (
    GET_INFO,
    NOTIFY_REGISTRATION_STATUS,
    PluginInfo,
    decode_info,
    encode_info_request,
    encode_status,
    message_class,
)

_LOOK_AGAIN = 0.1

PLUGIN_TYPE = "DRAPlugin"


class RegistrationError(Exception):
    """Why a plugin could not be registered, in kubelet's words."""


def choose_service(advertised: Sequence[str], known: Sequence[str]) -> str:
    """The first advertised service that kubelet knows: the plugin's order counts. Raises RegistrationError."""
    if not advertised:
        raise RegistrationError("empty list of supported gRPC services (aka supported versions)")
    for service in advertised:
        if service in known:
            return service
    raise RegistrationError(
        f"none of services supported by the plugin ({_quoted(advertised)}) "
        f"are supported by the kubelet ({_quoted(known)})"
    )


def choose_health_service(advertised: Sequence[str], known: Sequence[str]) -> str | None:
    """The health service that kubelet likes best of the advertised ones: here kubelet's order counts."""
    return next((service for service in known if service in advertised), None)


def _quoted(names: Sequence[str]) -> str:
    return "[" + " ".join(f'"{name}"' for name in names) + "]"


def decide(info: PluginInfo, socket: str, services: Sequence[str], health_services: Sequence[str]) -> Registration:
    """What to register for a plugin that answered GetInfo on `socket`. Raises RegistrationError."""
    if info.type != PLUGIN_TYPE:
        raise RegistrationError(
            f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at socket {socket}"
        )
    endpoint = info.endpoint or socket
    try:
        service = choose_service(info.supported_versions, services)
    except RegistrationError as error:
        raise RegistrationError(
            "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of "
            f"DRA driver plugin {info.name} at endpoint {endpoint}: {error}"
        ) from None
    health_service = choose_health_service(info.supported_versions, health_services)
    return Registration(info.name, endpoint, service, health_service)


class Dialogue:
    """The calls on one registration socket. Use as a context manager."""

    def __init__(self, socket: str, periods: Periods, stop: threading.Event) -> None:
        """`stop` ends the wait for a connection early."""
        self._stop = stop
        self._socket = socket
        self._periods = periods
        self._channel = registration_channel(socket)

    def __enter__(self) -> "Dialogue":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def get_info(self) -> PluginInfo:
        """Connect and ask the plugin what it is. Raises RegistrationError."""
        self._dial()
        call: grpc.UnaryUnaryMultiCallable[None, PluginInfo] = self._channel.unary_unary(
            GET_INFO, encode_info_request, decode_info
        )
        try:
            return call(None, timeout=self._periods.get_info)
        except grpc.RpcError as error:
            raise RegistrationError(
                "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket "
                f"{self._socket}, err: {rpc_text(error)}"
            ) from error

    def _dial(self) -> None:
        deadline = time.monotonic() + self._periods.dial
        ready = grpc.channel_ready_future(self._channel)
        while True:
            try:
                ready.result(timeout=_LOOK_AGAIN)
                return
            except grpc.FutureTimeoutError:
                if self._stop.is_set() or time.monotonic() > deadline:
                    ready.cancel()
                    raise RegistrationError(
                        f"RegisterPlugin error -- dial failed at socket {self._socket}, err: "
                        f"failed to dial socket {self._socket}, err: context deadline exceeded"
                    ) from None

    def notify(self, error: str = "") -> None:
        """Tell the plugin that it is registered, or why not. Raises RegistrationError when it does not take it."""
        response = message_class("pluginregistration", "RegistrationStatusResponse")
        call = self._channel.unary_unary(NOTIFY_REGISTRATION_STATUS, encode_status, response.FromString)
        try:
            call(error, timeout=self._periods.notify)
        except grpc.RpcError as failure:
            raise RegistrationError(
                f"RegisterPlugin error -- failed to send registration status at socket {self._socket}, "
                f"err: {error}: {rpc_text(failure)}"
            ) from failure


def register(
    socket: str,
    periods: Periods,
    stop: threading.Event,
    decide_on: Callable[[PluginInfo], Registration],
    add: Callable[[Registration], None],
    remove: Callable[[Registration], None],
) -> Registration:
    """Carry out one registration: `add` it when it is sound and tell the plugin; `remove` it if the plugin objects.

    Raises RegistrationError, after telling the plugin where that is possible.
    """
    with Dialogue(socket, periods, stop) as dialogue:
        info = dialogue.get_info()
        try:
            registration = decide_on(info)
            add(registration)
        except RegistrationError as error:
            dialogue.notify(str(error))
            raise
        try:
            dialogue.notify()
        except RegistrationError:
            remove(registration)
            raise
    return registration
