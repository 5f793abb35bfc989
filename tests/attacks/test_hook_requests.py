# SPDX-License-Identifier: Apache-2.0
"""Containers attack the limits of GPU memory: by requests, by annotations, and by many starts at the same time."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.features.memory_limits.server import HookServer
from tests.support.isolated import require_namespaces
from tests.support.limits import LimitNode, compile_program, limit_node
from tests.support.waiting import wait_for

from .containers import container, said, tell

CLAIM = "6f0e4d6a-9c7e-4b7d-8a9f-1e0f3c1a5200"
ROUNDS = 40

ASK = """
import socket, sys

def ask(line):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(sys.argv[1])
        try:
            client.sendall(line)
            return client.makefile("rb").read()
        except OSError:
            return b"error of the connection"

pod = sys.argv[3].rsplit("/", 1)[0]
for number in range(int(sys.argv[4])):
    for claim, device, cgroup in (
        (sys.argv[2], "gpu-0", f"/../{number}{sys.argv[3]}"),
        (sys.argv[2], "gpu-0", f"{pod}/../{number}/x"),
        (sys.argv[2], "gpu-0", pod),
        (sys.argv[2], "gpu-0", "/"),
        (sys.argv[2], "gpu-0", f"{sys.argv[3]}-{number}"),
        (sys.argv[2], f"gpu-{number + 1}", sys.argv[3]),
        (sys.argv[2], "../gpu-0", sys.argv[3]),
        (f"../../{number}", "gpu-0", sys.argv[3]),
        (f"{number}-claim", "gpu-0", sys.argv[3]),
        ("", "", ""),
    ):
        answer = ask(f"1 {claim} {device} {cgroup}\\n".encode())
        if not answer.startswith(b"error "):
            print("answered", claim, device, cgroup, answer)
    for line in (b"\\n", b"2 a b c\\n", b"1\\n", b"\\xff" * 9000, b"1 " * 4000 + b"\\n"):
        ask(line)
print("asked")
"""

FLOOD = """
import socket, sys
kept = []
while True:
    while len(kept) < 100:
        client = socket.socket(socket.AF_UNIX)
        client.connect(sys.argv[1])
        try:
            client.send(b"1 ")
        except OSError:
            pass
        kept.append(client)
    print("flooded")
    if sys.stdin.readline() != "again\\n":
        break
    for client in kept[:50]:
        client.close()
    del kept[:50]
"""


@pytest.fixture
def node() -> Iterator[LimitNode]:
    require_namespaces()
    with limit_node() as made:
        yield made


@pytest.fixture
def server(node: LimitNode) -> Iterator[HookServer]:
    made = HookServer(node.files.claims.parent / "hook.sock", node.limiter.apply)
    made.start()
    yield made
    made.stop()


def ask(server: HookServer, line: bytes) -> bytes:
    """The answer to a request."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        try:
            client.connect(str(server.path))
            client.sendall(line)
            return client.makefile("rb").read()
        except OSError:  # no place in the queue, or it was answered before it was read
            return b"later"


def test_requests_limit_no_cgroup_that_they_are_not_about(node: LimitNode, server: HookServer, tmp_path: Path) -> None:
    assert node.tree is not None
    node.claim(CLAIM)
    main = node.tree.container("main")
    with container(tmp_path, ASK, str(server.path), CLAIM, main, str(ROUNDS)) as attacker:
        assert said(attacker) == "asked"
    assert node.limits() == {}
    wait_for(lambda: ask(server, f"1 {CLAIM} gpu-0 {main}\n".encode()) == b"ok\n", "an answer to the hook program")
    assert node.limits()


def test_starts_of_containers_are_answered_during_a_flood(node: LimitNode, server: HookServer, tmp_path: Path) -> None:
    assert node.tree is not None
    node.claim(CLAIM)
    line = f"1 {CLAIM} gpu-0 {node.tree.container('main')}\n".encode()
    with container(tmp_path, FLOOD, str(server.path)) as attacker:
        for _ in range(2):
            assert said(attacker) == "flooded"
            wait_for(lambda: ask(server, line) == b"ok\n", "an answer, which the hook program asks for again and again")
            tell(attacker, "again")


def test_annotations_of_a_container_name_no_other_process(tmp_path: Path, short_path: Path) -> None:
    program = compile_program(tmp_path / "hook", seconds=2)
    asked: list[tuple[str, str, str]] = []
    server = HookServer(short_path / "hook.sock", lambda *request: asked.append(request))
    server.start()
    try:
        for number in range(ROUNDS):
            texts = ('"pid": 1', f'", "pid": {os.getpid()}, "', '\\", "pid": 1', "}" * number, f'{{"pid": {number}}}')
            annotations = {text: text for text in (*texts, "pid", 'pid"', "\x00", "x" * number)}
            for state in ({"annotations": annotations}, {"annotations": {"pid": 1}}, {"pid": annotations}):
                given = json.dumps({"ociVersion": "1.2.0", **state, "id": "x", "bundle": '/"pid": 1'})
                done = subprocess.run(
                    [str(program), str(server.path), CLAIM, "gpu-0"],
                    input=given.encode(),
                    capture_output=True,
                    timeout=60,
                )
                assert done.returncode == 1
                assert b"has no pid" in done.stderr
    finally:
        server.stop()
    assert not asked
