# SPDX-License-Identifier: Apache-2.0
"""The simulated nvidia-imex, a program in the driver root of a simulated node. `imex_control` is its nvidia-imex-ctl.

They import nothing from this driver. As with the real daemon, configuration and node list are read at the start only,
a daemon's node ID is the first line of the node list that resolves to an own address, daemons with different node lists
refuse each other, SIGUSR1 resolves all names again and is dropped within five seconds after the last one (here also
after the start), and the pauses before an unreachable peer is tried again grow from 15 seconds on. A second daemon
on the node ends at once. A peer is also refused if it wants another name than that of the daemon that it reached.

Keys, states and output are from https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/ and public scripts that
parse it ([3P]). The protocol between daemons is not that of the real one: lines of JSON over TCP, with TLS if enabled.

Nodes that share a machine have no /etc/hosts and no network of their own. Variables of the environment stand for them:

DRA_SIMULATED_HOSTS_FILE     names are looked up in this file only, instead of with the system's resolver
DRA_SIMULATED_ADDRESS        the only address of the node, instead of those of the machine outside of 127.0.0.0/8
DRA_SIMULATED_IMEX_WINDOW    the seconds after a SIGUSR1 in which others are dropped, instead of 5
DRA_SIMULATED_IMEX_PAUSE     the first pause in seconds before a peer is tried again, instead of 15

Files in `state/imex` beside the driver root, or in /var/run/nvidia-imex/state of a container, cause faults:

start-fails    the daemon prints the text of this file at its start and exits with code 1
state          while it exists, the daemon stays in the state that the file names
end-hangs      while it exists, the daemon ignores SIGTERM
control-hangs  while it exists, the command service does not answer
nodes-hangs    while it exists, nvidia-imex-ctl -N hangs, and -q does not
partition      connections to and from the node IDs in this file end
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .imex_common import ANSWER_SECONDS, LOOK_SECONDS, STATE, Config, ImexRefusedError, family, fault, log, resolve

JSON = dict[str, Any]

_LOCK = Path(STATE).with_name("imex.lock")
_LONGEST_PAUSE = 1000.0
_VERSION = "570.158.01"
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1}
_IN_USE = "Failed to allocate Imex session object: NV_ERR_IN_USE"
_NO_INTERFACE = "No matching network interface found for any IP addresses in the node configuration file"


def _is_own(address: str) -> bool:
    only = os.environ.get("DRA_SIMULATED_ADDRESS")
    if only or address.startswith("127."):
        return address == only
    with contextlib.suppress(OSError), socket.socket(family(address)) as probe:
        probe.bind((address, 0))
        return True
    return False


def _listen(address: str, port: int) -> socket.socket:
    try:
        return socket.create_server((address, port), family=family(address), backlog=64)
    except OSError as error:
        raise ImexRefusedError(f"Failed to bind {address}:{port}: {error.strerror}") from None


class Stream:
    """Lines of JSON over a connection. `close` may be called while another thread waits in `receive`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, message: JSON) -> None:
        """Send a message. Raises OSError."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float | None = ANSWER_SECONDS) -> JSON:
        """The next message, empty at the end. Raises OSError."""
        self._connection.settimeout(seconds)
        try:
            message = json.loads(self._lines.readline() or b"{}")
        except ValueError:
            return {}
        return message if isinstance(message, dict) else {}

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.close()


class Security:
    """Plain connections, or TLS with the files of the configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._contexts: tuple[Any, Any] | None = None
        self.load()

    def load(self) -> None:
        """Read the files. Raises ImexRefusedError."""
        if self._config.get("IMEX_ENABLE_AUTH_ENCRYPTION", "0") != "1":
            return
        import ssl

        if (mode := self._config.get("IMEX_AUTH_ENCRYPTION_MODE", "SSL_TLS")) != "SSL_TLS":
            raise ImexRefusedError(f"Unsupported IMEX_AUTH_ENCRYPTION_MODE {mode}")
        contexts = []
        for side, protocol in (("SERVER", ssl.PROTOCOL_TLS_SERVER), ("CLIENT", ssl.PROTOCOL_TLS_CLIENT)):
            context = ssl.SSLContext(protocol)
            context.verify_mode = ssl.CERT_REQUIRED
            names = [self._config.get(f"IMEX_{side}_{name}") for name in ("CERT", "KEY", "CERT_AUTH")]
            try:
                context.load_cert_chain(names[0], names[1])
                context.load_verify_locations(names[2])
            except OSError as error:  # ssl.SSLError is one
                raise ImexRefusedError(f"Failed to load SSL/TLS credentials from {', '.join(names)}: {error}") from None
            contexts.append(context)
        self._contexts = contexts[0], contexts[1]

    def server(self, connection: socket.socket) -> socket.socket:
        """The server's side. Raises OSError."""
        connection.settimeout(ANSWER_SECONDS)
        if self._contexts is None:
            return connection
        return self._contexts[0].wrap_socket(connection, server_side=True)  # type: ignore[no-any-return]

    def client(self, connection: socket.socket, name: str) -> socket.socket:
        """The client's side, to the daemon `name`. Raises OSError."""
        if self._contexts is None:
            return connection
        wanted = self._config.get("IMEX_SECURITY_TARGET_OVERRIDE", name)
        return self._contexts[1].wrap_socket(connection, server_hostname=wanted)  # type: ignore[no-any-return]


class Peer:
    """Another line of the node list, and the outgoing connection to its daemon."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.host = ""
        self.status = "N"
        self.changed = time.time()
        self.again = threading.Event()
        self.stream: Stream | None = None

    def note(self, status: str) -> None:
        """Set the letter of its connection."""
        if status != self.status:
            self.status, self.changed = status, time.time()


class ImexDaemon:
    """The daemon."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.state = "INITIALIZING"
        self._window = float(os.environ.get("DRA_SIMULATED_IMEX_WINDOW", "5"))
        self._pause = float(os.environ.get("DRA_SIMULATED_IMEX_PAUSE", "15"))
        found = ((number, resolve(name) or "") for number, name in enumerate(config.nodes))
        self._number, self._address = next((node for node in found if node[1] and _is_own(node[1])), (-1, ""))
        if not self._address:
            raise ImexRefusedError(_NO_INTERFACE)
        self._name = config.nodes[self._number]
        self._security = Security(config)
        self._peers = {at: Peer(at, name) for at, name in enumerate(config.nodes) if at != self._number}
        self._incoming: dict[Stream, int] = {}
        self._signalled = time.monotonic()

    def run(self) -> None:
        """Work until SIGTERM."""
        log("INFO", f"Identified this node as ID {self._number}, using bind IP of '{self._address}'")
        address = self._config.get("BIND_INTERFACE_IP", self._address)
        listener = _listen(address, int(self._config.get("SERVER_PORT", "50000")))
        self._start(self._accept, self._control_listener(), self._answer)
        while (state := fault("state")) is not None:
            self.state = state.strip()
            if self._signal() is not None:
                return
        self._start(self._accept, listener, self._welcome)
        for peer in self._peers.values():
            self._start(self._keep_connected, peer)
        self.state = "READY"
        log("INFO", "IMEX is ready")
        while (number := self._signal()) is None:
            self._drop_partitioned()
        log("INFO", f"received signal {number}, shutting down")
        self.state = "SHUTTING_DOWN"
        for stream in (*self._incoming, *(peer.stream for peer in self._peers.values())):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.send({"shutdown": self._number})

    def _start(self, target: Any, *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    # Signals and faults

    def _signal(self) -> int | None:
        """Wait a moment for a signal, and handle SIGUSR1. Returns the number of a signal that ends the daemon."""
        info = signal.sigtimedwait(_SIGNALS, LOOK_SECONDS)
        if info is None:
            return None
        if info.si_signo != signal.SIGUSR1:
            return None if fault("end-hangs") is not None else info.si_signo
        now = time.monotonic()
        if now - self._signalled < self._window:
            log("WARNING", "SIGUSR1 is dropped: the last one was processed a moment ago")
            return None
        self._signalled = now
        log("INFO", "SIGUSR1: restarting all outgoing connections")
        try:
            self._security.load()
        except ImexRefusedError as error:
            log("ERROR", str(error))
        for peer in self._peers.values():
            peer.again.set()
            if peer.stream is not None:
                peer.stream.close()
        return None

    def _partitioned(self) -> set[int]:
        return {int(word) for word in (fault("partition") or "").split()}

    def _drop_partitioned(self) -> None:
        if cut := self._partitioned():
            for stream, number in list(self._incoming.items()):
                if number in cut:
                    stream.close()
            for peer in self._peers.values():
                if peer.number in cut and peer.stream is not None:
                    peer.stream.close()

    # Peers

    def _keep_connected(self, peer: Peer) -> None:
        pause = self._pause
        while True:
            if self._connect(peer):
                pause = self._pause
            if peer.again.wait(pause):
                peer.again.clear()
                pause = self._pause
            else:
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _connect(self, peer: Peer) -> bool:
        """Connect to a peer, and wait for the end of the connection. Returns whether there was one."""
        peer.host = resolve(peer.name) or ""
        hello = {"nodes": self._config.nodes, "id": self._number, "name": self._name, "to": peer.name}
        try:
            if not peer.host or peer.number in self._partitioned():
                return False
            port = int(self._config.get("SERVER_PORT", "50000"))
            raw = socket.create_connection((peer.host, port), ANSWER_SECONDS)
            with self._security.client(raw, peer.name) as connection:
                peer.stream = stream = Stream(connection)
                stream.send(hello)
                answer = stream.receive()
                if answer.get("id") != peer.number:
                    log("ERROR", f"node {peer.number} at {peer.host}: {answer.get('refused', 'no answer')}")
                    return False
                peer.note("C")
                log("INFO", f"Connected to node {peer.number}")
                if "shutdown" in stream.receive(None):
                    log("INFO", f"node {peer.number} is shutting down")
            return True
        except OSError as error:
            log("WARNING", f"Connection to node {peer.number} at {peer.host}: {error}")
            return False
        finally:
            peer.stream = None
            if peer.status == "C":
                peer.note("D")
                log("ERROR", f"Node disconnect event detected for node {peer.number}")

    def _accept(self, listener: socket.socket, serve: Any) -> None:
        while True:
            connection, _ = listener.accept()
            self._start(serve, connection)

    def _welcome(self, raw: socket.socket) -> None:
        """Serve an incoming connection of a peer."""
        with contextlib.suppress(OSError), self._security.server(raw) as connection:
            stream = Stream(connection)
            hello = stream.receive()
            number = hello.get("id", -1)
            if number in self._partitioned():
                return
            if problem := self._problem(hello):
                log("ERROR", f"Refused a connection of {hello.get('name')}: {problem}")
                stream.send({"refused": problem})
                return
            self._incoming[stream] = number
            try:
                stream.send({"id": self._number})
                stream.receive(None)
            finally:
                del self._incoming[stream]

    def _problem(self, hello: JSON) -> str | None:
        if hello.get("nodes") != self._config.nodes:
            return "the node configuration files differ"
        if hello.get("to") != self._name:
            return f"this is {self._name}, not {hello.get('to')}"
        nodes, number = self._config.nodes, hello.get("id")
        if number not in self._peers or nodes[number] != hello.get("name"):
            return f"{hello.get('name')} is not node {number}"
        return None

    # The command service

    def _control_listener(self) -> socket.socket:
        path = self._config.get("IMEX_CMD_UNIX_DOMAIN_PATH")
        if not path:
            address = self._config.get("IMEX_CMD_BIND_INTERFACE_IP", self._address)
            return _listen(address, self._config.control_port)
        Path(path).unlink(missing_ok=True)
        return socket.create_server(path, family=socket.AF_UNIX)

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            stream = Stream(connection)
            if not stream.receive():
                return
            while fault("control-hangs") is not None:
                time.sleep(LOOK_SECONDS)
            peers = {
                str(at): {"host": peer.host, "status": peer.status, "changed": _stamp(peer.changed)}
                for at, peer in self._peers.items()
            }
            me = {
                "status": self.state,
                "host": self._address,
                "hostName": self._name,
                "version": _VERSION,
                "connections": peers,
            }
            entry = json.dumps({**me, "changed": _stamp(time.time())})
            letters = "".join(sorted({peer["status"] for peer in peers.values()}))
            connection.sendall(f"{me['status']}\t{self._name}\t{letters}\t{entry}\n".encode())


def _stamp(seconds: float) -> str:
    return time.strftime("%m/%d/%Y %H:%M:%S", time.localtime(seconds))


def _imex(arguments: list[str]) -> None:
    """Run the daemon."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    threading.stack_size(1 << 18)
    if len(arguments) != 2 or arguments[0] != "-c":
        raise ImexRefusedError(f"Invalid arguments: {' '.join(arguments)}")
    if (text := fault("start-fails")) is not None:
        raise ImexRefusedError(text)
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ImexRefusedError(_IN_USE) from None
    ImexDaemon(Config(arguments[1])).run()
    os._exit(0)  # threads wait for connections


def main() -> None:
    """Entry point."""
    try:
        _imex(sys.argv[1:])
    except ImexRefusedError as error:
        log("ERROR", str(error))
        os._exit(1)
