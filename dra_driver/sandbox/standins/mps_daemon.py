# SPDX-License-Identifier: Apache-2.0
"""The simulated control daemon of MPS: `nvidia-cuda-mps-control -f` in the driver root of a simulated node.

It imports nothing from this driver. It supports the commands of both protocols that this driver uses, and refuses
everything else: a second daemon for a pipe directory, unknown commands, wrong arguments, invalid limits, commands
without a daemon, and commands of the other protocol. As with the real program, new defaults apply only to servers that
start later, devices are checked only when a server starts, and the servers and files of a killed daemon remain.

Commands, states and variables are from https://docs.nvidia.com/deploy/mps/. Files and texts are from logs in public
issues ([3P]).

A server is a process of its own (`mps_server`). Tests connect as clients with `connect` of `tests.support.mps`. Files
in `state/mps` beside the driver root cause faults:

start-fails    the daemon prints the text of this file at its start and exits with code 1
hang-COMMAND   while it exists, this command (quit, server, namespace, get_..., set_...) hangs
fail-COMMAND   this command prints the text of this file and exits with code 1
"""

import fcntl
import json
import os
import re
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from .mps_common import BUFFER, CONTROL, PIPE, SEPARATOR, STATE, MpsRefusedError, WorkingFolder, fault

JSON = dict[str, Any]

_LIMIT = re.compile(r"[1-9][0-9]*[MG]", re.ASCII)
_NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)
_HOURS = 3600.0

_LIMITS_3 = ("active-thread-percentage", "pinned-memory-limit", "client-priority")

_PIPE, _STATE = Path(PIPE), Path(STATE)

_NAMESPACE = "6c1d2c1e-6c0f-5b43-9d4c-0a1b5f3c7e21"  # the same as in `gpu.simulated.nvml`


class MpsServer:
    """A server process (`pid`), and the limits of its clients."""

    def __init__(self, uid: int, limits: JSON) -> None:
        program = Path(sys.argv[0]).with_name("nvidia-cuda-mps-server")
        self.pid = os.posix_spawn(program, [str(program)], os.environ, setsid=True)
        self.uid = uid
        self.limits = limits
        self.clients: set[int] = set()

    def end(self) -> None:
        """Kill the process."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class ControlDaemonStandIn:
    """The common part of the daemons of both protocols: the pipe directory and its sockets."""

    def __init__(self, pipe: Path, multi_user: bool) -> None:
        self.pipe = pipe
        self.multi_user = multi_user
        self.ended = False
        self.selector = selectors.DefaultSelector()

    def listen(self, folder: Path, key: object) -> socket.socket:
        """Create a control socket in `folder`. Its requests are handled with `key`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "control").unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with WorkingFolder(str(folder)):
            listener.bind(CONTROL)
        (folder / "control").chmod(0o666)
        listener.listen(64)
        self.selector.register(listener, selectors.EVENT_READ, key)
        return listener

    def run(self) -> None:
        """Answer requests until the daemon is told to quit."""
        while not self.ended:
            for found, _ in self.selector.select():
                if isinstance(found.fileobj, socket.socket):
                    self._answer(found.fileobj, found.data)

    def _answer(self, listener: socket.socket, key: object) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5.0)
            try:
                connection.send(self._handled(connection.recv(BUFFER).decode(), key).encode())
            except OSError:  # the client has disconnected
                return

    def _handled(self, asked: str, key: object) -> str:
        """The answer to a CUDA program, which asks with JSON, or to the control program."""
        if asked.startswith("{"):
            try:
                return json.dumps({"code": 0, **self.connect(json.loads(asked), key)})
            except MpsRefusedError as error:
                return json.dumps({"code": 1, "text": str(error)})
        try:
            protocol, *words = asked.split(SEPARATOR)
            if protocol != str(self.protocol):
                raise MpsRefusedError(f"This daemon speaks protocol {self.protocol}")
            return f"0{self.command(words)}"
        except MpsRefusedError as error:
            return f"1{error}"

    protocol = 0

    def connect(self, asked: JSON, key: object) -> JSON:
        """Serve a CUDA program."""
        raise NotImplementedError

    def command(self, words: list[str]) -> str:
        """Execute a command and return its output."""
        raise NotImplementedError


class Daemon2(ControlDaemonStandIn):
    """The daemon of protocol 2. It has one server at a time, which starts with the first client of a user."""

    protocol = 2

    def __init__(self, pipe: Path, multi_user: bool) -> None:
        super().__init__(pipe, multi_user)
        self.percentage = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
        self.memory: dict[str, str] = {}
        self.server: MpsServer | None = None
        self.listen(pipe, None)

    def connect(self, asked: JSON, key: object) -> JSON:
        """Serve a CUDA program. The first one starts the server."""
        uid = 0 if self.multi_user else int(asked.get("uid", 0))
        server = self.server
        if server is not None and server.uid != uid and server.clients:
            raise MpsRefusedError("CUDA_ERROR_MPS_SERVER_NOT_READY")  # the real one waits for the other clients
        if server is None or server.uid != uid:
            server = self._start(uid)
        server.clients.add(int(asked["client"]))
        return {"server": server.pid, **server.limits}

    def command(self, words: list[str]) -> str:
        """Execute one line of the control shell."""
        match words:
            case ["get_default_active_thread_percentage"]:
                return f"{self.percentage:.1f}"
            case ["set_default_active_thread_percentage", value]:
                self.percentage = _percentage(value)
                return f"{self.percentage:.1f}"
            case ["set_default_device_pinned_mem_limit", device, value]:
                self.memory[device] = _limit(value)
                return ""
            case ["quit"]:
                self._quit()
                return ""
        raise MpsRefusedError(f"Unknown command or wrong arguments: {' '.join(words)}")

    def _quit(self) -> None:
        if self.server is not None:
            if self.server.clients:
                time.sleep(_HOURS)  # the real one waits for its clients
            self.server.end()
        self.ended = True

    def _start(self, uid: int) -> MpsServer:
        if self.server is not None:
            self.server.end()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if visible != [""] and not set(visible) <= set(_devices()):
            raise MpsRefusedError("CUDA_ERROR_NO_DEVICE")
        self.server = MpsServer(uid, {"percentage": self.percentage, "memory": dict(self.memory)})
        return self.server


class Daemon3(ControlDaemonStandIn):
    """The daemon of protocol 3. It has named servers, which have named namespaces with limits."""

    protocol = 3

    def __init__(self, pipe: Path, multi_user: bool) -> None:
        super().__init__(pipe, multi_user)
        self.servers: dict[str, MpsServer] = {}
        self.namespaces: dict[tuple[str, str], tuple[JSON, socket.socket]] = {}
        self.listen(pipe, None)

    def connect(self, asked: JSON, key: object) -> JSON:
        """Serve a CUDA program that connects to the socket of a namespace."""
        if not isinstance(key, tuple) or key not in self.namespaces:
            raise MpsRefusedError("CUDA_ERROR_MPS_CONNECTION_FAILED")
        server = self.servers[key[0]]
        server.clients.add(int(asked["client"]))
        return {"server": server.pid, **self.namespaces[key][0]}

    def command(self, words: list[str]) -> str:
        """Execute a command: an object type, a verb, and names."""
        options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
        match [word for word in words if not word.startswith("--")]:
            case ["server", "list"] if options == {"format": "csv,noheader"}:
                return "\n".join(f"{name}, {one.pid}, ACTIVE" for name, one in self.servers.items())
            case ["server", "create", name] if set(options) <= {"uid", "allowed-devices"}:
                self._create_server(name, options)
                return ""
            case ["server", "delete", name] if set(options) <= {"force"}:
                self._delete_server(name, "force" in options)
                return ""
            case ["namespace", "create", name] if set(options) <= {*_LIMITS_3, "server"}:
                self._create_namespace(name, options)
                return ""
            case ["namespace", "delete", name] if set(options) == {"server"}:
                self._delete_namespace(options["server"], name)
                return ""
            case ["quit"]:
                for server in list(self.servers):
                    self._delete_server(server, True)
                self.ended = True
                return ""
        raise MpsRefusedError(f"Unknown command or wrong arguments: {' '.join(words)}")

    def _create_server(self, name: str, options: dict[str, str]) -> None:
        if not _NAME.fullmatch(name) or name in self.servers:
            raise MpsRefusedError(f"Server {name} exists or has no valid name")
        if self.multi_user and options.get("uid", "0") != "0":
            raise MpsRefusedError("Only user 0 has servers in multiuser mode")
        (self.pipe / name).mkdir(exist_ok=True)
        wanted = [device_id for device_id in options.get("allowed-devices", "").split(",") if device_id]
        if set(wanted) <= set(_devices()):  # otherwise the real server ends at once, without an error
            self.servers[name] = MpsServer(int(options.get("uid", "0")), {})

    def _delete_server(self, name: str, force: bool) -> None:
        server = self._server(name)
        if server.clients and not force:
            raise MpsRefusedError(f"Server {name} has clients")
        for of, namespace in list(self.namespaces):
            if of == name:
                self._delete_namespace(of, namespace)
        server.end()
        del self.servers[name]

    def _create_namespace(self, name: str, options: dict[str, str]) -> None:
        server = options.get("server", "")
        self._server(server)
        if not _NAME.fullmatch(name) or (server, name) in self.namespaces:
            raise MpsRefusedError(f"Namespace {name} exists or has no valid name")
        limits: JSON = {"percentage": 100.0, "memory": "0"}
        if "active-thread-percentage" in options:
            limits["percentage"] = _percentage(options["active-thread-percentage"])
        if "pinned-memory-limit" in options:
            limits["memory"] = _limit(options["pinned-memory-limit"])
        listener = self.listen(self.pipe / server / name, (server, name))
        self.namespaces[server, name] = limits, listener

    def _delete_namespace(self, server: str, name: str) -> None:
        if (server, name) not in self.namespaces:
            raise MpsRefusedError(f"Namespace {name} not found")
        _, listener = self.namespaces.pop((server, name))
        self.selector.unregister(listener)
        listener.close()
        (self.pipe / server / name / "control").unlink(missing_ok=True)

    def _server(self, name: str) -> MpsServer:
        server = self.servers.get(name)
        if server is None:
            raise MpsRefusedError(f"Server {name} not found")
        return server


def _percentage(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 100:
        raise MpsRefusedError(f"Invalid percentage: {text}")
    return value


def _limit(text: str) -> str:
    if not _LIMIT.fullmatch(text):
        raise MpsRefusedError(f"Invalid memory limit: {text}")
    return text


# The program


def _devices() -> list[str]:
    """The UUIDs of all GPUs and MIG devices."""
    import uuid  # takes time, which only the first server needs

    namespace = uuid.UUID(_NAMESPACE)
    gpus = [line.split()[0] for line in (_STATE / "nvidia-smi/gpus").read_text("ascii").splitlines()]
    found = list(gpus)
    for index, gpu in enumerate(gpus):
        board = json.loads((_STATE / f"gpu-{index}.json").read_bytes())
        for instance in board["gpu_instances"]:
            made = (f"{gpu}/{instance['id']}/{compute['id']}" for compute in instance["compute_instances"])
            found += [f"MIG-{uuid.uuid5(namespace, name)}" for name in made]
    return found


def _serve(protocol: type[Daemon2 | Daemon3], multi_user: bool) -> None:
    """Run the daemon."""
    if (text := fault("start-fails")) is not None:
        raise MpsRefusedError(text)
    _PIPE.mkdir(parents=True, exist_ok=True)
    lock = os.open(_PIPE / "control_lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MpsRefusedError("An instance of this daemon is already running") from None
    daemon = protocol(_PIPE, multi_user)
    (_PIPE / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n", encoding="ascii")
    daemon.run()
    for name in ("control", "control_lock", "nvidia-cuda-mps-control.pid"):
        (_PIPE / name).unlink(missing_ok=True)


def serve(arguments: list[str]) -> None:
    """Run the daemon with the arguments of the program."""
    match arguments:
        case ["-f", *options] if options in ([], ["-multiuser-server"]):
            _serve(Daemon2, bool(options))
        case ["-f", "-p", "3", *options] if options in ([], ["-m"]):
            _serve(Daemon3, bool(options))
        case _:
            raise MpsRefusedError(f"Invalid arguments: {' '.join(arguments)}")
