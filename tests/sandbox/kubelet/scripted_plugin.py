# SPDX-License-Identifier: Apache-2.0
"""A DRA plugin that does what a test tells it to, over real sockets."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from dra_driver.sandbox.kubelet import ClaimRef
from dra_driver.sandbox.kubelet.wire import HEALTH_SERVICES, PLUGIN_SERVICES, REGISTRATION, message_class

DRIVER = "gpu.example.com"
ALL_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

Method = Any
Handler = Any
"""grpc.RpcMethodHandler and grpc.GenericRpcHandler, which take type arguments in their stubs only."""

Answer = Mapping[str, Any]
"""A response as keyword arguments of its message: {"claims": {uid: {...}}}."""


def one_device_each(claims: Sequence[ClaimRef]) -> Answer:
    """Every claim gets one device, for its request `gpu`, whose CDI id carries the claim's uid."""
    return {
        "claims": {
            claim.uid: {
                "devices": [
                    {
                        "request_names": ["gpu"],
                        "pool_name": "node-1",
                        "device_name": f"dev-{claim.name}",
                        "cdi_device_ids": [f"example.com/claim={claim.uid}"],
                    }
                ]
            }
            for claim in claims
        }
    }


def nothing_to_say(claims: Sequence[ClaimRef]) -> Answer:
    """Every claim is in the answer, with an empty entry."""
    return {"claims": {claim.uid: {} for claim in claims}}


class ScriptedPlugin:
    """One instance of a driver's plugin. Set `prepare`, `unprepare`, `info` or `on_notify` to change its ways."""

    def __init__(
        self, root: Path, driver: str = DRIVER, *, suffix: str = "", services: Sequence[str] = ALL_SERVICES[:2]
    ) -> None:
        self.driver = driver
        self.services = services
        self.registration_socket = root / "plugins_registry" / f"{driver}{suffix}-reg.sock"
        self.service_socket = root / "plugins" / driver / f"dra{suffix}.sock"
        self.info: Callable[[], Mapping[str, Any]] = lambda: {
            "type": "DRAPlugin",
            "name": driver,
            "endpoint": str(self.service_socket),
            "supported_versions": list(services),
        }
        self.prepare: Callable[[Sequence[ClaimRef]], Answer] = one_device_each
        self.unprepare: Callable[[Sequence[ClaimRef]], Answer] = nothing_to_say
        self.on_notify: Callable[[str], None] = lambda error: None
        self.statuses: list[str | None] = []
        """What kubelet said of the registration: None for success, else the error."""
        self.calls: list[tuple[str, str, tuple[ClaimRef, ...]]] = []
        """Package, method and claims of every DRAPlugin call."""
        self.health_streams: list[str] = []
        """The package of every NodeWatchResources call."""
        self._report: Sequence[Mapping[str, Any]] | None = None
        self._reports = 0
        self._ends = 0
        self._news = threading.Condition()
        self._servers: dict[str, grpc.Server] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "ScriptedPlugin":
        self.serve()
        self.register()
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()
        self.stop_serving()

    def serve(self) -> None:
        """Listen on the service socket."""
        handlers = [
            _handler(f"{package}.DRAPlugin", {m: self._dra(package, m) for m in ("Prepare", "Unprepare")})
            for package in PLUGIN_SERVICES.values()
        ]
        self._listen(self.service_socket, handlers + self._health_handlers())

    def register(self) -> None:
        """Listen on the registration socket, which is how kubelet finds the plugin."""
        self._listen(self.registration_socket, [self._registration_handler()])

    def serve_on_one_socket(self) -> None:
        """Have registration and service on the registration socket."""
        handlers = [
            _handler(f"{package}.DRAPlugin", {m: self._dra(package, m) for m in ("Prepare", "Unprepare")})
            for package in PLUGIN_SERVICES.values()
        ]
        self._listen(self.registration_socket, [self._registration_handler(), *handlers])

    def unregister(self) -> None:
        """Take the registration socket away."""
        self._close(self.registration_socket)

    def stop_serving(self) -> None:
        """Take the service socket away, without a word to kubelet."""
        self.end_streams()
        self._close(self.service_socket)

    def report(self, *devices: Mapping[str, Any]) -> None:
        """Send a health report on every stream, and first of all on those to come."""
        with self._news:
            self._report = devices
            self._reports += 1
            self._news.notify_all()

    def end_streams(self) -> None:
        """End the health streams that are open; those to come have nothing to say at first."""
        with self._news:
            self._report = None
            self._ends += 1
            self._news.notify_all()

    def called(self, method: str) -> list[tuple[str, ...]]:
        """The claim names of each call of Node`method`Resources."""
        with self._lock:
            return [tuple(claim.name for claim in claims) for _, name, claims in self.calls if name == method]

    def _listen(self, socket: Path, handlers: Sequence[Handler]) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers(tuple(handlers))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers[str(socket)] = server

    def _close(self, socket: Path) -> None:
        server = self._servers.pop(str(socket), None)
        socket.unlink(missing_ok=True)
        if server is not None:
            server.stop(0).wait()

    def _registration_handler(self) -> Handler:
        return _handler(
            f"{REGISTRATION}.Registration",
            {
                "GetInfo": _unary(REGISTRATION, "InfoRequest", "PluginInfo", lambda request, context: self.info()),
                "NotifyRegistrationStatus": _unary(
                    REGISTRATION, "RegistrationStatus", "RegistrationStatusResponse", self._notified
                ),
            },
            suffix="",
        )

    def _notified(self, status: Any, context: grpc.ServicerContext) -> Answer:
        error = None if status.plugin_registered else status.error
        self.statuses.append(error)
        try:
            self.on_notify(error or "")
        except RuntimeError as refusal:
            context.abort(grpc.StatusCode.INTERNAL, str(refusal))
        return {}

    def _dra(self, package: str, method: str) -> Method:
        def answer(request: Any, context: grpc.ServicerContext) -> Answer:
            claims = tuple(ClaimRef(claim.namespace, claim.name, claim.uid) for claim in request.claims)
            with self._lock:
                self.calls.append((package, method, claims))
            try:
                return (self.prepare if method == "Prepare" else self.unprepare)(claims)
            except RuntimeError as error:
                context.abort(grpc.StatusCode.INTERNAL, str(error))
                raise

        return _unary(package, f"Node{method}ResourcesRequest", f"Node{method}ResourcesResponse", answer)

    def _health_handlers(self) -> list[Handler]:
        return [
            grpc.method_handlers_generic_handler(
                service,
                {
                    "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                        self._stream(package),
                        message_class(package, "NodeWatchResourcesRequest").FromString,
                        lambda message: message.SerializeToString(),
                    )
                },
            )
            for service, package in HEALTH_SERVICES.items()
            if service in self.services
        ]

    def _stream(self, package: str) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._news:
                self.health_streams.append(package)
                seen, ends = 0, self._ends
            while context.is_active():
                with self._news:
                    if self._ends > ends:
                        return
                    if self._report is None or self._reports == seen:
                        self._news.wait(0.05)
                        continue
                    seen, devices = self._reports, self._report
                yield message_class(package, "NodeWatchResourcesResponse")(devices=devices)

        return stream


def _handler(service: str, methods: Mapping[str, Method], suffix: str = "Resources") -> Handler:
    named = {f"Node{name}{suffix}" if suffix else name: method for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(service, named)


def _unary(package: str, request: str, response: str, answer: Callable[[Any, grpc.ServicerContext], Answer]) -> Method:
    make = message_class(package, response)
    return grpc.unary_unary_rpc_method_handler(
        lambda message, context: make(**answer(message, context)),
        message_class(package, request).FromString,
        lambda message: message.SerializeToString(),
    )
