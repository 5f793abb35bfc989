# SPDX-License-Identifier: Apache-2.0
"""dra-imex-daemon with nvidia-imex: domains of several daemons, whose members, programs and API server change."""

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dra_driver.domains.daemon.hosts import FREE, MARK
from dra_driver.domains.names import host_name
from dra_driver.domains.objects import DaemonReport
from dra_driver.kube.api import ApiClient
from tests.support.apiserver import embedded
from tests.support.faultyserver import RequestFault
from tests.support.imex import CLIQUE, UP, Daemon, Domain, Network, network, serve_cliques, simulated_only
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.node]

NewDomain = Callable[[], Domain]


@pytest.fixture
def addresses() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture
def new_domain(tmp_path: Path, client: ApiClient, kubeconfig: Path, addresses: Network) -> Iterator[NewDomain]:
    made: list[Domain] = []

    def make() -> Domain:
        made.append(Domain(tmp_path, client, kubeconfig, addresses))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def domain(new_domain: NewDomain) -> Domain:
    return new_domain()


def started(domain: Domain, number: int, **environment: str) -> list[Daemon]:
    """So many daemons that are members, and up."""
    daemons = [domain.daemon(index) for index in range(number)]
    domain.set_members(*daemons)
    for one in daemons:
        one.start(**environment)
    domain.wait_up(*daemons)
    return daemons


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def page(daemon: Daemon, path: str) -> str:
    """A page of the daemon's endpoint."""
    try:
        with urllib.request.urlopen(f"http://{daemon.endpoint}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""


def test_daemons_find_each_other_and_one_that_returns_with_another_address(domain: Domain, addresses: Network) -> None:
    daemons = [domain.daemon(index) for index in range(4)]
    for one in daemons:
        one.start()
    wait_for(lambda: all(one.says("waits for its place in the domain") for one in daemons), "reports")
    wait_for(lambda: "waits for its place" in page(daemons[0], "/readyz"), "the probe")
    domain.set_members(*(daemons[index] for index in (2, 0, 3, 1)))
    domain.wait_up(*daemons)
    wait_for(lambda: set(domain.rows().values()) == {UP}, "their rows")
    names = [host_name(domain.uid, index) for index in range(domain.slots)]
    for one in daemons:
        assert (one.folder / "nodes.cfg").read_text().splitlines() == names
    for path in ("/readyz", "/healthz"):
        wait_for(lambda path=path: page(daemons[0], path) == "ok\n", path)  # type: ignore[misc]
    wait_for(lambda: "nvidia_dra_imex_peers_connected 3.0" in page(daemons[0], "/metrics"), "the metric")

    lost, imex = daemons[3], daemons[3].imex_pid()
    assert imex is not None
    lost.kill()
    assert lost.report() is None
    wait_for(lambda: not is_alive(imex), "the end of its nvidia-imex")
    wait_for(lambda: all(one.says("not connected to node-3") for one in daemons[:3]), "its loss")
    domain.set_members(*daemons[:3])
    domain.wait_up(*daemons[:3])
    assert f"{FREE}\t{names[3]}\t{MARK}" in daemons[0].hosts.read_text().splitlines()
    again = domain.daemon(3, addresses.address()).start()
    domain.set_members(*daemons[:3], again)
    domain.wait_up(*daemons[:3], again)  # long before nvidia-imex would try it again by itself
    assert again.stop() == 0
    assert again.report() is None
    assert domain.rows()["node-3"] == DaemonReport(message="the daemon ends")


@simulated_only
def test_changes_that_follow_each_other_at_once_are_all_signalled(domain: Domain, addresses: Network) -> None:
    (first,) = started(domain, 1)
    others = [domain.daemon(index).start() for index in (1, 2, 3)]
    wrong = [replace(one.member, address=addresses.address()) for one in others]
    for members in ([wrong[0]], wrong[:2], wrong, [others[0], *wrong[1:]], [*others[:2], wrong[2]], others):
        domain.set_members(first, *members)
    domain.wait_up(first, *others)
    assert "SIGUSR1 is dropped" not in first.log


def test_an_address_that_belongs_to_another_domain_now_is_no_peer(new_domain: NewDomain) -> None:
    domain, other = new_domain(), new_domain()
    first, second = started(domain, 2)
    second.kill()
    stranger = other.daemon(1, second.address).start()
    other.set_members(stranger)
    other.wait_up(stranger)
    wait_for(lambda: first.report() == DaemonReport(True, "READY", "DEGRADED", "not connected to node-1"), "its loss")
    extra = domain.daemon(2).start()
    domain.set_members(first, second, extra)  # and the address of the second is still that of the stranger
    domain.wait_up(stranger)
    wait_for(lambda: extra.report() == DaemonReport(True, "READY", "DEGRADED", "not connected to node-1"), "the third")
    wait_for(lambda: first.says("not connected to node-1"), "the first")
    domain.wait_up(stranger)


@simulated_only
def test_a_partition_degrades_the_domain_until_it_ends(domain: Domain) -> None:
    daemons = started(domain, 3, DRA_SIMULATED_IMEX_PAUSE="0.2")
    daemons[2].imex.partition(0, 1)
    wait_for(lambda: daemons[2].says("not connected to node-0, node-1"), "the partition")
    apart = DaemonReport(True, "READY", "DEGRADED", "not connected to node-2")
    wait_for(lambda: daemons[0].report() == apart, "the partition")
    daemons[2].imex.mend()
    domain.wait_up(*daemons)


@simulated_only
def test_a_start_that_fails_is_repeated_and_explained(domain: Domain) -> None:
    daemon = domain.daemon(0)
    daemon.imex.fail_start("Failed to allocate Imex session object: NV_ERR_IN_USE")
    domain.set_members(daemon)
    daemon.start()
    wait_for(lambda: daemon.says("systemctl disable --now nvidia-imex"), "the explanation")
    wait_for(lambda: "systemctl disable" in domain.rows()["node-0"].message, "the row")
    wait_for(lambda: daemon.log.count("NV_ERR_IN_USE") > 3, "more attempts")
    daemon.imex.mend()
    domain.wait_up(daemon)
    pid = daemon.imex_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "nvidia-imex was ended by signal 9" in daemon.log, "its end")
    domain.wait_up(daemon)
    assert daemon.imex_pid() != pid


@simulated_only
def test_states_before_ready_are_reported(domain: Domain) -> None:
    daemon = domain.daemon(0)
    daemon.imex.stay("WAITING_FOR_RECOVERY")
    domain.set_members(daemon)
    daemon.start()
    waiting = DaemonReport(False, "WAITING_FOR_RECOVERY", "DOWN", "nvidia-imex is WAITING_FOR_RECOVERY")
    wait_for(lambda: daemon.report() == waiting, "the state")
    wait_for(lambda: domain.rows()["node-0"] == waiting, "the row")
    domain.set_members(daemon, domain.daemon(1).start())  # before nvidia-imex is ready: it must survive the signal
    daemon.imex.mend()
    domain.wait_up(*domain.daemons)


@simulated_only
def test_a_daemon_is_not_ready_while_the_command_for_its_peers_hangs(domain: Domain) -> None:
    daemon, peer = started(domain, 2)
    pid = daemon.imex_pid()
    daemon.imex.hang("nodes")
    wait_for(lambda: daemon.says("nvidia-imex does not answer: "), "the hanging command to be reported")
    report = daemon.report()
    assert report is not None
    assert not report.ready
    assert "nvidia-imex-ctl" in report.message
    wait_for(lambda: not domain.rows()["node-0"].ready, "the row")
    daemon.imex.mend()
    domain.wait_up(daemon, peer)
    assert daemon.imex_pid() == pid


@simulated_only
def test_a_daemon_ends_in_time_if_nvidia_imex_does_not(domain: Domain) -> None:
    (daemon,) = started(domain, 1)
    pid = daemon.imex_pid()
    assert pid is not None
    daemon.imex.hang("end")
    assert daemon.stop() == 0
    assert not is_alive(pid)
    assert "does not end within" in daemon.log
    assert domain.rows()["node-0"] == DaemonReport(message="the daemon ends")


def test_another_index_restarts_nvidia_imex(domain: Domain) -> None:
    daemons = started(domain, 2)
    daemons[0].index = 4
    domain.set_members(*daemons)
    wait_for(lambda: "Identified this node as ID 4" in daemons[0].log, "the new index")
    domain.wait_up(*daemons)


def test_an_outage_of_the_api_server_ends_nothing(tmp_path: Path, addresses: Network) -> None:
    with embedded(tmp_path) as (server, kubeconfig, admin):
        serve_cliques(admin)
        domain = Domain(tmp_path, admin, kubeconfig, addresses)
        try:
            daemon = domain.daemon(0)
            domain.set_members(daemon)
            refusal = server.faults.add(RequestFault(verb="patch", error=403, times=1))
            daemon.start()
            wait_for(lambda: refusal.hits and daemon.report() == UP, "the refusal")
            domain.set_members(daemon, replace(daemon.member, node="node-1", index=1, address=""))
            wait_for(lambda: domain.rows()["node-0"].ready, "the row, after the next event")
            server.faults.add(RequestFault(delay=60.0))
            server.drop_watches()
            pid = daemon.imex_pid()
            assert pid is not None
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: daemon.says("nvidia-imex ended"), "its end")
            wait_for(lambda: (report := daemon.report()) is not None and report.ready, "its return")
            assert daemon.stop() == 0
        finally:
            domain.close()


def make_certificate(hosts: list[str]) -> tuple[bytes, bytes]:
    """A certificate for these hosts, which is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "imex")])
    begin = datetime.now(UTC) - timedelta(hours=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + timedelta(days=2))
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return made.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)


def write_certificates(folder: Path, domain: Domain) -> None:
    """A new certificate for the domain, as kubelet shows a Secret: links to a folder that is replaced."""
    certificate, key = make_certificate([host_name(domain.uid, index) for index in range(domain.slots)])
    data = folder / f"data-{len(list(folder.iterdir()))}"
    data.mkdir()
    for name, content in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", certificate)):
        (data / name).write_bytes(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..new").symlink_to(data.name)
    (folder / "..new").replace(folder / "..data")


def _signalled_again(daemon: Daemon, before: int) -> bool:
    return daemon.log.count("connects to its peers again") > before


def test_certificates_of_the_domain_are_required_and_renewed(tmp_path: Path, domain: Domain) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    daemons = [domain.daemon(index) for index in range(3)]
    domain.set_members(*daemons[:2])
    secure = {
        "IMEX_ENABLE_AUTH_ENCRYPTION": "1",
        "TLS_DIRECTORY": str(folder),
        "DRA_SIMULATED_IMEX_PAUSE": "0.5",  # a daemon whose peer has still the old certificate tries again
    }
    for one in daemons[:2]:
        one.start(**secure)
    wait_for(lambda: daemons[0].says("certificate cannot be read"), "the missing certificate")
    write_certificates(folder, domain)
    domain.wait_up(*daemons[:2])
    before = [one.log.count("connects to its peers again") for one in daemons[:2]]
    write_certificates(folder, domain)
    for one, signals in zip(daemons[:2], before, strict=True):
        wait_for(partial(_signalled_again, one, signals), "the renewal")
    domain.wait_up(*daemons[:2])
    plain = daemons[2].start()
    domain.set_members(*daemons)
    wait_for(lambda: plain.says("not connected to node-0, node-1"), "the refusal")
    wait_for(lambda: daemons[0].says("not connected to node-2"), "the refusal")


def test_daemon_needs_the_variables_of_the_claim(domain: Domain) -> None:
    daemon = domain.daemon(0).start(COMPUTE_DOMAIN_UUID="")
    wait_for(lambda: not daemon.runs(), "its end")
    assert "is CDI enabled in the container runtime of the node?" in daemon.log
    daemon.start(CLIQUE_ID="")
    wait_for(lambda: daemon.report() == DaemonReport(True), "the report")
    assert daemon.stop() == 0
    assert daemon.report() is None
    assert CLIQUE not in daemon.log
