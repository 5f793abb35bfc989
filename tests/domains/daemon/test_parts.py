# SPDX-License-Identifier: Apache-2.0
"""The parts of dra-imex-daemon that need no process: its files, the place in a domain, states, explanations."""

import os
from pathlib import Path

import pytest

from dra_driver.domains.daemon.config import render_config, render_nodes
from dra_driver.domains.daemon.control import connected_peers, state_of
from dra_driver.domains.daemon.hosts import FREE, MARK, host_lines, merge_hosts, write_hosts
from dra_driver.domains.daemon.peers import DomainPlace, place_in
from dra_driver.domains.daemon.process import explain
from dra_driver.domains.names import host_name
from dra_driver.domains.objects import Clique, DaemonReport, Member
from dra_driver.errors import NotPlacedError

UID = "b2c1f1a0-0000-4000-8000-000000000001"
OWN = "10.0.0.1"


def test_the_configuration_names_files_ports_and_with_tls_the_certificate() -> None:
    plain = render_config(Path("/imexd"), UID, OWN, None).splitlines()
    assert {"IMEX_NODE_CONFIG_FILE=/imexd/nodes.cfg", f"IMEX_CMD_BIND_INTERFACE_IP={OWN}", "DAEMONIZE=0"} <= set(plain)
    assert {"SERVER_PORT=50000", "IMEX_CMD_PORT=50005", "LOG_FILE_NAME=", "BIND_INTERFACE_IP="} <= set(plain)
    assert not any("AUTH" in line for line in plain)
    secure = render_config(Path("/imexd"), UID, OWN, Path("/imexd-tls")).splitlines()
    assert secure[: len(plain)] == plain
    assert secure[len(plain) :] == [
        "IMEX_ENABLE_AUTH_ENCRYPTION=1",
        "IMEX_AUTH_ENCRYPTION_MODE=SSL_TLS",
        "IMEX_AUTH_SOURCE=FILE",
        "IMEX_SERVER_KEY=/imexd-tls/tls.key",
        "IMEX_SERVER_CERT=/imexd-tls/tls.crt",
        "IMEX_SERVER_CERT_AUTH=/imexd-tls/ca.crt",
        "IMEX_CLIENT_KEY=/imexd-tls/tls.key",
        "IMEX_CLIENT_CERT=/imexd-tls/tls.crt",
        "IMEX_CLIENT_CERT_AUTH=/imexd-tls/ca.crt",
        f"IMEX_SECURITY_TARGET_OVERRIDE={host_name(UID, 0)}",
    ]
    assert render_nodes(UID, 2) == f"{host_name(UID, 0)}\n{host_name(UID, 1)}\n"


LINES = host_lines(UID, 3, {0: OWN, 2: "fd00::2"})


def test_every_slot_has_an_address() -> None:
    names = [host_name(UID, index) for index in range(3)]
    addresses = [OWN, FREE, "fd00::2"]
    assert [f"{address}\t{name}\t{MARK}\n" for address, name in zip(addresses, names, strict=True)] == LINES


@pytest.mark.parametrize(
    ("before", "others"),
    [
        ("", ""),
        ("127.0.0.1 localhost\n", "127.0.0.1 localhost\n"),
        ("127.0.0.1 localhost", "127.0.0.1 localhost\n"),
        (f"1.1.1.1 old {MARK}\n127.0.0.1 localhost\n2.2.2.2 old2 {MARK}  \n", "127.0.0.1 localhost\n"),
        ("# dra-imex-daemon is here\n\n::1 a\n", "# dra-imex-daemon is here\n\n::1 a\n"),
        ("".join(LINES) + "9.9.9.9 late\n", "9.9.9.9 late\n"),
    ],
    ids=["empty", "other lines", "no newline", "old lines", "a comment with the same words", "lines after ours"],
)
def test_other_lines_of_the_hosts_file_are_kept(tmp_path: Path, before: str, others: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(before)
    inode = path.stat().st_ino
    for _ in range(2):
        write_hosts(path, LINES)
        assert path.read_text() == others + "".join(LINES) == merge_hosts(before, LINES)
    write_hosts(path, LINES[:1])
    assert path.read_text() == others + LINES[0]
    assert path.stat().st_ino == inode  # a mounted file cannot be replaced


def test_a_hosts_file_that_is_right_is_not_written_and_bytes_that_are_no_text_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"# \xff\n")
    write_hosts(path, LINES)
    assert path.read_bytes() == b"# \xff\n" + "".join(LINES).encode()
    os.utime(path, (1, 1))
    write_hosts(path, LINES)
    assert path.stat().st_mtime == 1


def clique(*members: Member, slots: int = 4) -> Clique:
    return Clique("name", "namespace", UID, "c", slots, members)


def member(node: str, address: str, index: int, *, ready: bool = False) -> Member:
    return Member(node, address, "c", index, DaemonReport(ready))


ME = member("me", OWN, 1)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "waits for its place in the domain, which the cluster controller gives it"),
        (clique(), "waits for its place in the domain, which"),
        (clique(member("other", OWN, 1)), "waits for its place in the domain, which"),
        (clique(member("me", "10.0.0.9", 1)), "this node is a member with address 10.0.0.9, not 10.0.0.1"),
        (clique(ME, member("b", "10.0.0.2", 1)), "not different numbers below 4 (me=1, b=1)"),
        (clique(ME, member("b", "10.0.0.2", 4)), "not different numbers below 4 (me=1, b=4)"),
        (clique(ME, slots=0), "not different numbers below 0"),
    ],
    ids=["no object", "no row", "the row of another node", "an earlier pod", "an index twice", "too large", "no slots"],
)
def test_a_daemon_without_a_place_says_what_it_waits_for(found: Clique | None, text: str) -> None:
    with pytest.raises(NotPlacedError) as caught:
        place_in(found, "me", OWN)
    assert text in str(caught.value)


def test_the_problem_of_the_watch_is_what_a_daemon_waits_for() -> None:
    with pytest.raises(NotPlacedError, match=r"place in the domain: the API server is away$"):
        place_in(None, "me", OWN, "the API server is away")


def test_the_place_in_a_domain_has_no_peer_with_the_own_address() -> None:
    members = (member("c", "", 3), member("b", "10.0.0.2", 0, ready=True), ME, member("gone", OWN, 2))
    nodes = {0: "b", 1: "me", 2: "gone", 3: "c"}
    place = place_in(clique(*members), "me", OWN)
    assert place == DomainPlace(4, 1, {0: "10.0.0.2", 1: OWN}, nodes, frozenset({0}))
    assert place.peers == {0, 2, 3}


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ("READY\n", "READY"),
        ("  READY  ", "READY"),
        ("warning: something\nREADY\n", "READY"),
        ("NOT_READY\n", ""),
        ("not READY\n", ""),
        ("READY\nSHUTTING_DOWN\n", "SHUTTING_DOWN"),
        ("INITIALIZING\n", "INITIALIZING"),
        ("ready\n", ""),
        ("", ""),
    ],
)
def test_a_state_is_a_whole_line(output: str, state: str) -> None:
    assert state_of(output) == state


NODES = """{"status": "DEGRADED", "nodes": {
 "0": {"status": "READY", "connections": {"2": {"status": "C"}}},
 "1": {"status": "READY", "connections": {"0": {"status": "C"}, "2": {"status": "D"},
  "3": {"status": "CONNECTED"}}}}}"""


@pytest.mark.parametrize(
    ("output", "index", "connected"),
    [
        (NODES, 1, {0, 3}),
        (NODES, 0, {2}),
        (f"a warning\n{NODES}\n", 1, {0, 3}),
        (NODES, 2, None),
        ("", 1, None),
        ("{}", 1, None),
        ('{"nodes": []}', 1, None),
        ('{"nodes": {"1": {"connections": {"x": {"status": "C"}}}}}', 1, None),
        ("} {", 1, None),
    ],
)
def test_only_connections_of_the_own_node_count(output: str, index: int, connected: set[int] | None) -> None:
    assert connected_peers(output, index) == connected


STAMP = "[Nov 23 2026 09:21:49] [ERROR] [tid 32527]"


@pytest.mark.parametrize(
    ("lines", "code", "text"),
    [
        ([f"{STAMP} Failed to allocate Imex session object: NV_ERR_IN_USE"], 1, "systemctl disable --now nvidia-imex"),
        (
            [f"{STAMP} NvGpu Library version 595 is not matching with current GPU driver version 570"],
            1,
            "nvidia-imex has another version than the loaded NVIDIA driver",
        ),
        (
            [f"{STAMP} No matching network interface found for any IP addresses in the node configuration file"],
            1,
            "no host name of the domain resolves to an address of this pod",
        ),
        ([f"{STAMP} Failed to bind 10.0.0.1:50000: Address already in use"], 1, "another nvidia-imex runs"),
        ([f"{STAMP} Failed to load SSL/TLS credentials from /x"], 1, "see the domain's Certificate"),
        (["[INFO] TLS is off", f"{STAMP} out of memory"], 2, "nvidia-imex ended with code 2: out of memory"),
        (["one", "", "two"], -9, "nvidia-imex was ended by signal 9: one; two"),
        ([], 0, "nvidia-imex ended with code 0: it did not say why"),
    ],
)
def test_the_end_of_nvidia_imex_is_explained(lines: list[str], code: int, text: str) -> None:
    assert text in explain(lines, code)
    assert "tid" not in explain(lines, code)
