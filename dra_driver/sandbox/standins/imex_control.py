# SPDX-License-Identifier: Apache-2.0
"""The simulated nvidia-imex-ctl, which asks the command service of daemons (see `imex_daemon`)."""

import _socket
import sys
import time

from .imex_common import (
    ANSWER_SECONDS,
    LOOK_SECONDS,
    STATUS_REQUEST,
    Config,
    ImexRefusedError,
    family,
    fault,
    log,
    resolve,
)

_ASK_SECONDS = 1.0


def _ask(address: str | tuple[str, int]) -> list[str]:
    """The fields that the command service at an address answers, empty if there is no answer. Raises OSError."""
    remote = isinstance(address, tuple)
    connection = _socket.socket(family(address[0]) if remote else _socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_ASK_SECONDS if remote else ANSWER_SECONDS)
        connection.connect(address)
        connection.settimeout(ANSWER_SECONDS)
        connection.sendall(STATUS_REQUEST)
        answer = b""
        while not answer.endswith(b"\n"):
            part = connection.recv(1 << 16)
            if not part:
                return []
            answer += part
    finally:
        connection.close()
    return answer.decode().rstrip("\n").split("\t", 3)


def _quoted(text: str) -> str:
    """The text as JSON."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{escaped}"'


def _unavailable(name: str, host: str) -> str:
    """The entry of a node that does not answer."""
    names = f'"host": {_quoted(host)}, "hostName": {_quoted(name)}'
    return f'{{"status": "UNAVAILABLE", {names}, "version": "", "connections": {{}}}}'


def _node(config: Config, name: str) -> tuple[str, str, str]:
    """The state of a node, the letters of its connections, and its entry."""
    host = resolve(name) or ""
    try:
        answer = _ask((host, config.control_port)) if host else []
    except OSError:
        answer = []
    if not answer or answer[1] != name:
        return "UNAVAILABLE", "", _unavailable(name, host)
    return answer[0], answer[2], answer[3]


def _domain(config: Config) -> str:
    """The output of -N -j."""
    nodes = [_node(config, name) for name in config.nodes]
    entries = ", ".join(f'"{number}": {entry}' for number, (_, _, entry) in enumerate(nodes))
    ready = [letters for state, letters, _ in nodes if state == "READY"]
    up = len(ready) == len(nodes) and set("".join(ready)) <= {"C"}
    status = "UP" if up else "DEGRADED" if ready else "DOWN"
    stamp = time.strftime("%m/%d/%Y %H:%M:%S")
    return f'{{"nodes": {{{entries}}}, "timestamp": "{stamp}", "status": "{status}"}}'


def _control(arguments: list[str]) -> None:
    match arguments:
        case ["-c", path, "-N", "-j"]:
            while fault("nodes-hangs") is not None:
                time.sleep(LOOK_SECONDS)
            print(_domain(Config(path)))  # noqa: T201
        case ["-c", path, "-q"]:
            config = Config(path)
            address = config.get("IMEX_CMD_BIND_INTERFACE_IP", "127.0.0.1"), config.control_port
            _print_state(config.get("IMEX_CMD_UNIX_DOMAIN_PATH") or address)
        case ["-q", word] if word.startswith("--u="):
            _print_state(word.removeprefix("--u="))
        case _:
            raise ImexRefusedError(f"Invalid arguments: {' '.join(arguments)}")


def _print_state(address: str | tuple[str, int]) -> None:
    try:
        print((_ask(address) or ["UNAVAILABLE"])[0])  # noqa: T201
    except OSError as error:
        raise ImexRefusedError(f"Failed to connect to the IMEX daemon: {error}") from None


def main() -> None:
    """Entry point."""
    try:
        _control(sys.argv[1:])
    except ImexRefusedError as error:
        log("ERROR", str(error))
        sys.exit(1)
