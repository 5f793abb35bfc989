# SPDX-License-Identifier: Apache-2.0
"""One plugin instance: its registration, its connection, and kubelet's calls to it.

As in kubelet's gRPC library, the connection is plain text over a unix socket, calls fail at once without a connection,
and a lost connection is restored automatically.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import grpc

from .options import KubeletOptions, Periods
from .state import ClaimError, rpc_text
from .wire import (
    GET_INFO,
    HEALTH_SERVICES,
    NOTIFY_REGISTRATION_STATUS,
    PLUGIN_SERVICES,
    REGISTRATION,
    ClaimAnswer,
    ClaimRef,
    DeviceHealth,
    PluginInfo,
    decode_answers,
    decode_health,
    decode_info,
    encode_claims,
    encode_nothing,
    encode_status,
    message_class,
)

_UNESCAPED = "-_.~!$&'()*+,;=:[]@"
"""The characters that kubelet's library does not escape in an authority. A slash is escaped."""

# grpcio reacts to a new subscription within 0.2 s. Its thread prints an error if the channel is closed before.
_NUDGE_HEARD = 0.3

# Every channel has its own connection. A shared connection would keep the reconnect delay of an old registration.
_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)

HealthReport = Mapping[tuple[str, str], DeviceHealth]
"""The health of devices by pool and name."""

PLUGIN_TYPE = "DRAPlugin"


def registration_channel(socket: str) -> grpc.Channel:
    """Return a channel to a registration socket. Kubelet's authority is the percent-encoded path."""
    options = [_OWN_CONNECTION, ("grpc.default_authority", quote(socket, safe=_UNESCAPED))]
    return grpc.insecure_channel(f"unix:{socket}", options=options)


def service_channel(endpoint: str, periods: Periods) -> grpc.Channel:
    """Return a channel to a DRAPlugin service, with authority `localhost`."""
    options = [
        _OWN_CONNECTION,
        ("grpc.default_authority", "localhost"),
        ("grpc.initial_reconnect_backoff_ms", int(periods.reconnect.first * 1000)),
        ("grpc.min_reconnect_backoff_ms", int(periods.reconnect.first * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(periods.reconnect.longest * 1000)),
    ]
    return grpc.insecure_channel(f"unix:{endpoint}", options=options)


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration: the driver, the endpoint of its service, and the chosen gRPC services."""

    driver: str
    endpoint: str
    service: str
    health_service: str | None = None


class Plugin:
    """A plugin instance. `on_connection(connected)` is called on another thread after each change."""

    def __init__(
        self, registration: Registration, periods: Periods, on_connection: Callable[["Plugin", bool], None]
    ) -> None:
        self.registration = registration
        self._periods = periods
        self._on_connection = partial(on_connection, self)
        self._channel = service_channel(registration.endpoint, periods)
        self._connected = False
        self._nudged = -math.inf

    def connect(self) -> None:
        """Connect, and report changes of the connection."""
        self._channel.subscribe(self._connectivity_changed, try_to_connect=True)

    def close(self) -> None:
        """Close the connection. This cancels all calls."""
        self._channel.unsubscribe(self._connectivity_changed)
        time.sleep(max(0.0, self._nudged + _NUDGE_HEARD - time.monotonic()))
        self._channel.close()

    def watch_health(self) -> "grpc.CallIterator[HealthReport]":
        """Call NodeWatchResources of the plugin's health service, which must exist. Iteration raises grpc.RpcError."""
        assert self.registration.health_service is not None
        package = HEALTH_SERVICES[self.registration.health_service]
        method: grpc.UnaryStreamMultiCallable[None, HealthReport] = self._channel.unary_stream(
            f"/{self.registration.health_service}/NodeWatchResources",
            request_serializer=encode_nothing,
            response_deserializer=partial(decode_health, package),
        )
        return method(None)

    def call(self, method: str, claims: Iterable[ClaimRef]) -> Mapping[str, ClaimAnswer]:
        """Call `method`, PREPARE or UNPREPARE, and return unchecked answers by UID. Raises ClaimError if it fails."""
        package = PLUGIN_SERVICES[self.registration.service]
        call: grpc.UnaryUnaryMultiCallable[Iterable[ClaimRef], Mapping[str, ClaimAnswer]] = self._channel.unary_unary(
            f"/{package}.DRAPlugin/{method}",
            request_serializer=partial(encode_claims, package, method),
            response_deserializer=partial(decode_answers, package, method),
        )
        try:
            return call(claims, timeout=self._periods.call)
        except grpc.RpcError as error:
            raise ClaimError(f"{method}: {rpc_text(error)}") from error
        except ValueError as error:  # the channel was closed in the meantime
            text = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise ClaimError(f"{method}: {text}") from error

    def _connectivity_changed(self, state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.IDLE:
            # An idle channel waits for a call. A new subscription makes it connect without a call.
            self._nudged = time.monotonic()
            self._channel.subscribe(_nothing, try_to_connect=True)
            self._channel.unsubscribe(_nothing)
        connected = state is grpc.ChannelConnectivity.READY
        if connected != self._connected:
            self._connected = connected
            self._on_connection(connected)


def _nothing(_: grpc.ChannelConnectivity) -> None:
    return None


class RegistrationError(Exception):
    """A plugin could not be registered. The text is kubelet's."""


def decide(info: PluginInfo, socket: str, services: Sequence[str], health_services: Sequence[str]) -> Registration:
    """Return the registration of a plugin that answered GetInfo on `socket`. Raises RegistrationError.

    The service is the first advertised one that kubelet knows. The optional health service is the first one, in
    kubelet's order, that the plugin advertises.
    """
    if info.type != PLUGIN_TYPE:
        raise RegistrationError(
            f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at socket {socket}"
        )
    endpoint, advertised = info.endpoint or socket, info.supported_versions
    service = next((service_name for service_name in advertised if service_name in services), None)
    if service is None:
        problem = (
            f"none of services supported by the plugin ({_quoted(advertised)}) "
            f"are supported by the kubelet ({_quoted(services)})"
        )
        raise RegistrationError(
            "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of "
            f"DRA driver plugin {info.name} at endpoint {endpoint}: "
            + (problem if advertised else "empty list of supported gRPC services (aka supported versions)")
        )
    health_service = next((health_service for health_service in health_services if health_service in advertised), None)
    return Registration(info.name, endpoint, service, health_service)


def _quoted(names: Sequence[str]) -> str:
    return "[" + " ".join(f'"{name}"' for name in names) + "]"


def register(
    socket: str, options: KubeletOptions, add: Callable[[Registration], None], remove: Callable[[Registration], None]
) -> Registration:
    """Register one plugin: call `add` and tell the plugin, or call `remove` if the plugin objects.

    Raises RegistrationError, and tells the plugin if possible.
    """
    with registration_channel(socket) as channel:
        get_info: grpc.UnaryUnaryMultiCallable[None, PluginInfo] = channel.unary_unary(
            GET_INFO, encode_nothing, decode_info
        )
        try:
            info = get_info(None, timeout=options.periods.get_info)
        except grpc.RpcError as error:
            raise RegistrationError(
                "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket "
                f"{socket}, err: {rpc_text(error)}"
            ) from error
        try:
            registration = decide(info, socket, options.services, options.health_services)
            add(registration)
        except RegistrationError as error:
            _notify(channel, socket, options.periods.notify, str(error))
            raise
        try:
            _notify(channel, socket, options.periods.notify)
        except RegistrationError:
            remove(registration)
            raise
    return registration


def _notify(channel: grpc.Channel, socket: str, timeout: float, error: str = "") -> None:
    """Tell the plugin that it is registered, or why not. Raises RegistrationError if the call fails."""
    response = message_class(REGISTRATION, "RegistrationStatusResponse")
    call = channel.unary_unary(NOTIFY_REGISTRATION_STATUS, encode_status, response.FromString)
    try:
        call(error, timeout=timeout)
    except grpc.RpcError as failure:
        raise RegistrationError(
            f"RegisterPlugin error -- failed to send registration status at socket {socket}, "
            f"err: {error}: {rpc_text(failure)}"
        ) from failure
