# SPDX-License-Identifier: Apache-2.0
"""Container runtimes on sockets, with the answers that real ones have given.

`recorded` has the answers of containerd's Version and Status with its default configuration, and those of CRI-O, whose
configuration is the JSON of its RuntimeConfig (pkg/config) with all defaults. Listings of the network plugins are left
out.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import grpc

from kubeletplugin.kubelet.sockets import unary
from kubeletplugin.protocol import cri_pb2

RECORDED: Final = Path(__file__).parent / "recorded"
SOCKET: Final = "/run/containerd/containerd.sock"
CRIO_SOCKET: Final = "/run/crio/crio.sock"


@dataclass(frozen=True)
class RecordedAnswer:
    """The answer of a runtime: its name, its release, and the map `info` of its Status."""

    name: str
    version: str
    info: Mapping[str, str]

    def with_config(self, **settings: object) -> "RecordedAnswer":
        """The same answer with other settings, which the recorded configuration must have."""
        config: dict[str, Any] = json.loads(self.info["config"])
        table = config["crio"] if self.name == "cri-o" else config
        assert set(settings) <= set(table)
        table.update(settings)
        return replace(self, info={**self.info, "config": json.dumps(config)})


def recorded(name: str) -> RecordedAnswer:
    """A recorded answer, such as `containerd-2.3.4`."""
    return RecordedAnswer(**json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")))


CONTAINERD_1: Final = recorded("containerd-1.7.34")
CONTAINERD_2: Final = recorded("containerd-2.3.4")
CRIO: Final = recorded("cri-o-1.34.11")


@contextlib.contextmanager
def serve_runtime(root: Path, answer: RecordedAnswer, path: str = SOCKET) -> Iterator[None]:
    """Serve the CRI with these answers on a socket of the host at `root`."""

    def version(_request: Any, _context: grpc.ServicerContext) -> Any:
        return cri_pb2.VersionResponse(runtime_name=answer.name, runtime_version=answer.version)

    def status(request: Any, _context: grpc.ServicerContext) -> Any:
        return cri_pb2.StatusResponse(info=answer.info if request.verbose else {})

    with serve_methods(root, {"Version": version, "Status": status}, path):
        yield


@contextlib.contextmanager
def serve_methods(root: Path, methods: Mapping[str, Callable[..., Any]], path: str = SOCKET) -> Iterator[None]:
    """Serve methods of the CRI on a socket of the host at `root`."""
    types: dict[str, tuple[Any, Any]] = {
        "Version": (cri_pb2.VersionRequest, cri_pb2.VersionResponse),
        "Status": (cri_pb2.StatusRequest, cri_pb2.StatusResponse),
    }
    handlers = {name: unary(method, *types[name]) for name, method in methods.items()}
    with ThreadPoolExecutor() as threads, bound_at(root, path) as address:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers),))
        server.add_insecure_port(f"unix:{address}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()


@contextlib.contextmanager
def bound_at(root: Path, path: str) -> Iterator[str]:
    """An address for a socket of the host at `root`. It is short, whatever the length of the path is."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(file.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{file.name}"
    finally:
        os.close(folder)
