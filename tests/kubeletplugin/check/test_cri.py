# SPDX-License-Identifier: Apache-2.0
"""Asking a container runtime over its socket."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubeletplugin.check.cri import ask_runtime
from kubeletplugin.check.host import Host
from kubeletplugin.errors import RuntimeAnswerError
from kubeletplugin.protocol import cri_pb2

from .runtimes import CONTAINERD_1, CONTAINERD_2, CRIO, SOCKET, RecordedAnswer, bound_at, serve_methods, serve_runtime
from .support import make_host

pytestmark = pytest.mark.node


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return make_host(tmp_path / "host", {})


def version(_request: Any, _context: grpc.ServicerContext) -> Any:
    return cri_pb2.VersionResponse(runtime_name="containerd", runtime_version="2.1.4")


@contextlib.contextmanager
def listening(root: Path, answer: bytes) -> Iterator[None]:
    """A program that is no gRPC server: it sends these bytes to each caller, and keeps the connection."""
    with contextlib.ExitStack() as connections, socket.socket(socket.AF_UNIX) as listener:
        with bound_at(root, SOCKET) as address:
            listener.bind(address)
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = connections.enter_context(listener.accept()[0])
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("answer", [CONTAINERD_1, CONTAINERD_2, CRIO], ids=lambda answer: answer.version)
def test_recorded_answer_is_read(tmp_path: Path, host: Host, answer: RecordedAnswer) -> None:
    with serve_runtime(tmp_path / "host", answer):
        told = ask_runtime(host, SOCKET)
    assert told.reported == f"{answer.name}://{answer.version}"
    assert json.loads(told.config)


def test_socket_below_a_linked_folder_is_asked(tmp_path: Path, host: Host) -> None:
    with serve_runtime(tmp_path / "host", CONTAINERD_2):
        assert ask_runtime(host, f"/var{SOCKET}").version == "2.3.4"


def test_socket_with_a_long_path_is_asked(tmp_path: Path, host: Host) -> None:
    path = f"/run/{'long/' * 30}containerd.sock"
    with serve_runtime(tmp_path / "host", CONTAINERD_2, path):
        assert ask_runtime(host, path).version == "2.3.4"


def test_link_to_a_socket_is_refused(tmp_path: Path, host: Host) -> None:
    with serve_runtime(tmp_path / "host", CONTAINERD_2, "/run/other.sock"):
        (tmp_path / "host/run/containerd").mkdir()
        (tmp_path / "host/run/containerd/containerd.sock").symlink_to("/run/other.sock")
        with pytest.raises(RuntimeAnswerError, match="is a symbolic link, which is not followed"):
            ask_runtime(host, SOCKET)


def test_file_that_is_no_socket_is_refused(tmp_path: Path, host: Host) -> None:
    (tmp_path / "host/run/containerd").mkdir()
    (tmp_path / "host/run/containerd/containerd.sock").touch()
    with pytest.raises(RuntimeAnswerError, match=f"{SOCKET} is not a socket"):
        ask_runtime(host, SOCKET)


def test_absent_socket_is_named(host: Host) -> None:
    with pytest.raises(RuntimeAnswerError, match=f"{SOCKET} cannot be opened: No such file or directory"):
        ask_runtime(host, SOCKET)


def test_socket_of_a_runtime_that_ended_does_not_answer(tmp_path: Path, host: Host) -> None:
    with bound_at(tmp_path / "host", SOCKET) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
    with pytest.raises(RuntimeAnswerError, match=r"does not answer: UNAVAILABLE \(.*Connection refused"):
        ask_runtime(host, SOCKET)


def test_runtime_that_hangs_is_given_up(tmp_path: Path, host: Host) -> None:
    ended = threading.Event()

    def hang(_request: Any, _context: grpc.ServicerContext) -> Any:
        ended.wait()
        return cri_pb2.StatusResponse()

    with serve_methods(tmp_path / "host", {"Version": version, "Status": hang}):
        try:
            with pytest.raises(RuntimeAnswerError, match="does not answer: DEADLINE_EXCEEDED"):
                ask_runtime(host, SOCKET, seconds=0.2)
        finally:
            ended.set()


def test_listener_that_says_nothing_is_given_up(tmp_path: Path, host: Host) -> None:
    with listening(tmp_path / "host", b""), pytest.raises(RuntimeAnswerError, match="does not answer: "):
        ask_runtime(host, SOCKET, seconds=0.2)


def test_listener_without_grpc_is_refused(tmp_path: Path, host: Host) -> None:
    garbage = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with listening(tmp_path / "host", garbage), pytest.raises(RuntimeAnswerError, match="does not answer: UNAVAILABLE"):
        ask_runtime(host, SOCKET)


@pytest.mark.parametrize("methods", [{}, {"Version": version}], ids=["no CRI", "no Status"])
def test_runtime_without_the_cri_cannot_be_used_by_kubelet(tmp_path: Path, host: Host, methods: dict[str, Any]) -> None:
    with (
        serve_methods(tmp_path / "host", methods),
        pytest.raises(RuntimeAnswerError, match="it does not serve the CRI, so kubelet cannot use it"),
    ):
        ask_runtime(host, SOCKET)


def test_answer_that_is_too_large_is_refused(tmp_path: Path, host: Host) -> None:
    large = RecordedAnswer("containerd", "2.1.4", {"config": " " * (2 << 20)})
    with (
        serve_runtime(tmp_path / "host", large),
        pytest.raises(RuntimeAnswerError, match="does not answer: RESOURCE_EXHAUSTED"),
    ):
        ask_runtime(host, SOCKET)


def test_escapes_in_the_name_of_a_runtime_are_not_shown(tmp_path: Path, host: Host) -> None:
    with serve_runtime(tmp_path / "host", RecordedAnswer("containerd\x1b[2J", "2.1.4", {})):
        assert ask_runtime(host, SOCKET).name == "containerd\\x1b[2J"


def test_descriptor_of_the_socket_is_closed(tmp_path: Path, host: Host) -> None:
    with serve_runtime(tmp_path / "host", CONTAINERD_2):
        ask_runtime(host, SOCKET)
        socket_path = tmp_path / "host" / SOCKET.lstrip("/")
        assert not [
            one for one in Path("/proc/self/fd").iterdir() if one.is_symlink() and one.readlink() == socket_path
        ]
