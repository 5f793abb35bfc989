# SPDX-License-Identifier: Apache-2.0
"""Sockets that appear whole, come back when they are removed, and never take another's place; and their names."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.names import DRIVER_NAME
from kubeletplugin.errors import AnotherInstanceError, SocketError
from kubeletplugin.kubelet.instance import (
    is_instance_uid,
    nobody_running,
    running,
    socket_paths,
    sockets_of_all,
    sweep_sockets,
)
from kubeletplugin.kubelet.sockets import LONGEST_PATH, SocketKeeper, SocketServer, is_served
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

UID = "5e0f7c1e-9a0e-4a63-8a55-0c7b6d8f9e10"


class Echo:
    """Answers with its name."""

    def __init__(self, name: str) -> None:
        self.name = name.encode()

    def add_to(self, server: grpc.Server) -> None:
        handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.name)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", {"Ask": handler}),))


def ask(path: Path) -> str:
    """Who answers on the socket."""
    with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        return ask_over(channel)


def ask_over(channel: grpc.Channel) -> str:
    method: grpc.UnaryUnaryMultiCallable[str, str] = channel.unary_unary("/Test/Ask", str.encode, bytes.decode)
    return method("", timeout=30, wait_for_ready=True)


@contextmanager
def serving(path: Path, name: str = "one") -> Iterator[SocketServer]:
    server = SocketServer(path, [Echo(name)])
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def listening(path: Path) -> Iterator[None]:
    """A socket of another process, as far as the code can tell."""
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(str(path))
        other.listen()
        yield


def stale(path: Path) -> Path:
    """The socket of a process that was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    return path


class TestServer:
    def test_the_folder_is_made_and_nothing_but_the_socket_is_in_it(self, short_path: Path) -> None:
        path = short_path / "registry" / "a.sock"
        with serving(path) as server:
            assert ask(path) == "one"
            assert [one.name for one in path.parent.iterdir()] == ["a.sock"]
            assert server.missing() == []
        assert list(path.parent.iterdir()) == []

    @pytest.mark.parametrize("leave", [stale, Path.touch], ids=["socket", "file"])
    def test_socket_of_a_killed_process_is_replaced(self, short_path: Path, leave: Any) -> None:
        path = short_path / "a.sock"
        leave(path)
        with serving(path):
            assert ask(path) == "one"

    def test_the_end_of_a_server_spares_the_socket_of_its_successor(self, short_path: Path) -> None:
        path = short_path / "a.sock"
        with serving(path, "old") as old:
            successor = SocketServer(path, [Echo("new")])
            successor.start()
            assert old.missing() == [path]
        assert ask(path) == "new"
        successor.stop()
        assert not path.exists()

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("x" * LONGEST_PATH, "is longer than 107 bytes: choose a shorter folder"),
            ("file/a.sock", "cannot listen on"),
        ],
    )
    def test_a_path_that_cannot_be_is_said(self, short_path: Path, name: str, said: str) -> None:
        (short_path / "file").touch()
        with pytest.raises(SocketError, match=said), serving(short_path / name):
            pass

    def test_both_sockets_are_served_and_the_registration_can_go_first(self, short_path: Path) -> None:
        path, registration = short_path / "a.sock", short_path / "registry" / "reg.sock"
        server = SocketServer(path, [Echo("one")], registration)
        server.start()
        assert ask(path) == "one"
        assert ask(registration) == "one"
        server.unregister()
        assert not registration.exists()
        assert ask(path) == "one"
        server.stop()
        assert not path.exists()

    def test_a_call_outlives_the_restoring_of_its_socket(self, short_path: Path) -> None:
        path = short_path / "a.sock"
        with serving(path) as server, grpc.insecure_channel(f"unix:{path}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            path.unlink()
            server.restore([path])
            assert ask(path) == "one"
            assert ask_over(channel) == "one"


class TestKeeper:
    @pytest.fixture
    def kept(self, short_path: Path) -> Iterator[SocketServer]:
        with serving(short_path / "registry" / "a.sock") as server:
            keeper = SocketKeeper([server], interval=0.05)
            keeper.start()
            yield server
            keeper.stop()

    def test_a_removed_socket_is_served_again(self, kept: SocketServer) -> None:
        kept.path.unlink()
        wait_for(kept.path.exists, "the socket")
        assert ask(kept.path) == "one"

    def test_socket_is_restored_in_a_new_folder(self, kept: SocketServer) -> None:
        kept.path.parent.rename(kept.path.parent.with_name("away"))  # at once, before the socket comes back
        kept.path.parent.mkdir(exist_ok=True)
        wait_for(kept.path.exists, "the socket")
        assert ask(kept.path) == "one"

    def test_socket_that_another_process_took_over_stays(
        self, kept: SocketServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        other = kept.path.with_name("other.sock")
        with listening(other):
            other.replace(kept.path)  # at once, before the socket comes back
            before = kept.path.stat().st_ino
            wait_for(lambda: f"another process took {kept.path} over" in caplog.text, "the log line")
            assert kept.path.stat().st_ino == before
        wait_for(lambda: not kept.missing(), "the socket, once the other process is gone")

    @pytest.mark.parametrize("removed", ["a.sock", "reg.sock"])
    def test_only_the_removed_socket_is_replaced(self, short_path: Path, removed: str) -> None:
        path, registration = short_path / "a.sock", short_path / "reg.sock"
        server = SocketServer(path, [Echo("one")], registration)
        keeper = SocketKeeper([server], interval=0.05)
        server.start()
        keeper.start()
        try:
            (kept,) = {path, registration} - {short_path / removed}
            before = kept.stat().st_ino
            for _ in range(2):
                (short_path / removed).unlink()
                wait_for(lambda: not server.missing(), "the socket")
                assert ask(path) == "one"
                assert ask(registration) == "one"
            assert kept.stat().st_ino == before
        finally:
            keeper.stop()
            server.stop()

    def test_trouble_is_told_once_and_tried_again(self, short_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with serving(short_path / "registry" / "a.sock") as server:
            folder = server.path.parent
            server.path.unlink()
            folder.rmdir()
            folder.write_text("in the way")
            keeper = SocketKeeper([server], interval=0.05)
            keeper.start()
            wait_for(lambda: "a socket cannot be restored" in caplog.text, "the log line")
            folder.unlink()
            wait_for(lambda: not server.missing(), "the socket")
            keeper.stop()
        assert caplog.text.count("cannot be restored") == 1


class TestNames:
    def test_without_a_uid_they_are_fixed(self) -> None:
        paths = socket_paths(Path("/data"), Path("/registry"))
        assert (str(paths.registration), str(paths.service)) == (f"/registry/{DRIVER_NAME}-reg.sock", "/data/dra.sock")

    def test_uid_is_part_of_the_socket_names(self) -> None:
        paths = socket_paths(Path("/data"), Path("/registry"), UID)
        assert paths.registration.name == f"{DRIVER_NAME}-{UID}-reg.sock"
        assert paths.service.name == f"dra-{UID}.sock"

    def test_paths_with_a_uid_fit_into_the_usual_folders_of_kubelet(self) -> None:
        kubelet = Path("/var/lib/kubelet")
        paths = socket_paths(kubelet / "plugins" / DRIVER_NAME, kubelet / "plugins_registry", UID)
        assert UID in paths.registration.name
        assert UID in paths.service.name

    @pytest.mark.parametrize("length", [30, 50, 69])
    def test_long_folder_gets_socket_names_with_a_hash_of_the_uid(self, length: int) -> None:
        folder = Path("/" + "f" * length)
        paths = socket_paths(folder, folder, UID)
        others = socket_paths(folder, folder, UID.replace("5e0f", "5e0e"))
        for one, other in ((paths.registration, others.registration), (paths.service, others.service)):
            assert len(os.fsencode(one)) <= LONGEST_PATH
            assert one != other
        assert socket_paths(folder, folder, UID) == paths

    @pytest.mark.parametrize(("uid", "fits"), [(UID, True), ("p-1", True), ("", False), ("../x", False), ("-", False)])
    def test_uids_for_names_are_checked(self, uid: str, fits: bool) -> None:
        assert is_instance_uid(uid) is fits


class TestSweep:
    def test_only_sockets_that_nobody_listens_on_go(self, short_path: Path) -> None:
        folder, registry = short_path / "data", short_path / "registry"
        dead = [
            stale(registry / f"{DRIVER_NAME}-reg.sock"),
            stale(registry / f"{DRIVER_NAME}-{UID}-reg.sock"),
            stale(folder / "dra.sock"),
            stale(folder / f"dra-{UID}.sock"),
        ]
        foreign = stale(registry / "other.example.com-reg.sock")
        (folder / "dra-notes.sock").write_text("no socket at all")
        with listening(registry / f"{DRIVER_NAME}-alive-reg.sock"), serving(folder / "dra-alive.sock"):
            sweep_sockets(folder, registry)
            assert not any(path.exists() for path in dead)
            kept = {path.name for path in sockets_of_all(folder, registry)}
            assert kept == {f"{DRIVER_NAME}-alive-reg.sock", "dra-alive.sock", "dra-notes.sock"}
        assert foreign.exists()

    def test_listening_process_is_found_by_connecting(self, short_path: Path) -> None:
        path = short_path / "a.sock"
        assert not is_served(path)
        stale(path)
        assert not is_served(path)
        path.unlink()
        with listening(path):
            assert is_served(path)


class TestInstances:
    """Processes that hold locks for as long as they live."""

    @contextmanager
    def another(self, folder: Path, uid: str) -> Iterator[None]:
        code = (
            "import sys; from pathlib import Path; from kubeletplugin.kubelet.instance import running\n"
            "with running(Path(sys.argv[1]), sys.argv[2]): print('runs', flush=True); sys.stdin.read()"
        )
        command = [sys.executable, "-c", code, str(folder), uid]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"runs\n"
                yield
            finally:
                process.kill()

    @pytest.mark.parametrize(("first", "second"), [("old", "new"), ("", "new"), ("old", "")])
    def test_instance_with_a_uid_runs_beside_any(self, tmp_path: Path, first: str, second: str) -> None:
        with self.another(tmp_path, first), running(tmp_path, second):
            pass

    def test_instance_without_a_uid_runs_once(self, tmp_path: Path) -> None:
        with (
            self.another(tmp_path, ""),
            pytest.raises(AnotherInstanceError, match=f"another dra-kubeletplugin .* holds {tmp_path / 'lock'}"),
            running(tmp_path),
        ):
            pass
        with running(tmp_path):  # the lock went with the process
            pass

    @pytest.mark.parametrize("uid", ["", "pod-1"])
    def test_a_cleanup_and_an_instance_keep_each_other_away(self, tmp_path: Path, uid: str) -> None:
        with (
            self.another(tmp_path, uid),
            pytest.raises(AnotherInstanceError, match="runs on this node"),
            nobody_running(tmp_path),
        ):
            pass
        with nobody_running(tmp_path), pytest.raises(AnotherInstanceError, match="cleanup"), running(tmp_path, uid):
            pass
