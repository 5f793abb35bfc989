# SPDX-License-Identifier: Apache-2.0
"""dra-imex-daemon as processes of a test, with an address and a hosts file for each, and the clique that they are in.

NVIDIA_IMEX_BIN names a folder with NVIDIA's nvidia-imex and nvidia-imex-ctl, which are then used instead of the
simulated ones, without GPUs. This takes root and iproute2: each nvidia-imex gets a network namespace, with an address
and an /etc/hosts of its own.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest

from dra_driver.domains.daemon.report import read_report
from dra_driver.domains.daemon.times import DaemonTimes
from dra_driver.domains.names import clique_name
from dra_driver.domains.objects import (
    CLIQUES,
    SLOTS_ANNOTATION,
    Clique,
    DaemonReport,
    Member,
    decode_clique,
    encode_member,
)
from dra_driver.gpu.simulated.files import install_programs
from dra_driver.kube.api import ApiClient, ConflictError, NotFoundError
from dra_driver.kube.kinds import DEFINITIONS

from . import preloaded
from .hardware import ImexFaults
from .waiting import wait_for

REAL: Final = os.environ.get("NVIDIA_IMEX_BIN", "")
simulated_only: Final = pytest.mark.skipif(bool(REAL), reason="needs what only the simulated nvidia-imex does")
CLIQUE: Final = "9f410827-489f-46fd-8203-51266ca08eb7.1"
NAMESPACE: Final = "default"
UP: Final = DaemonReport(True, "READY", "UP", "")
_networks: Final = itertools.count()
_WINDOW: Final = 5.0 if REAL else 0.3
_TIMES: Final = DaemonTimes(
    settle=0.2,
    look=1.0,
    nodes=3.0,
    signal=_WINDOW + 1.0,  # nvidia-imex takes signals late on a busy machine
    grace=2.0,
    first_pause=0.1,
    longest_pause=0.5,
)
_JOIN: Final = """
ip netns add $2
ip link add $3 type veth peer name eth0 netns $2
ip link set $3 master $1 up
ip -n $2 address add $4/24 dev eth0
ip -n $2 link set lo up
ip -n $2 link set eth0 up
"""
"""A script that makes a network namespace ($2) with an address ($4), on a bridge ($1), by a link ($3)."""
_INSIDE: Final = """#!/bin/sh
exec ip netns exec imex-{address} sh -c '
mkdir -p /run/nvidia-imex
mount -t tmpfs imex /run/nvidia-imex
exec "$0" "$@"' {program} "$@"
"""


def serve_cliques(admin: ApiClient) -> None:
    """Install the kind ComputeDomainClique, without its schema."""
    group, _, version = CLIQUES.api_version.partition("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {
        "group": group,
        "names": {
            "kind": "ComputeDomainClique",
            "listKind": "ComputeDomainCliqueList",
            "plural": CLIQUES.plural,
            "singular": "computedomainclique",
        },
        "scope": "Namespaced",
        "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
    }
    value = {
        "apiVersion": DEFINITIONS.api_version,
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{CLIQUES.plural}.{group}"},
        "spec": spec,
    }
    admin.create(DEFINITIONS, value)
    wait_for(lambda: _is_served(admin), "the kind")


def _is_served(admin: ApiClient) -> bool:
    try:
        admin.list(CLIQUES, namespace=NAMESPACE)
    except NotFoundError:
        return False
    return True


class Network:
    """Addresses that no other test uses. For the real nvidia-imex, each one is in a network namespace of its own.

    The process ID tells the workers of a test run apart, which start one after the other, and a count the tests of a
    worker: two tests with one address fail, because the second daemon cannot serve its endpoint.
    """

    def __init__(self) -> None:
        first, second = next(_networks) % 200, os.getpid() % 256
        self._prefix = f"10.{200 + first % 50}.{second}" if REAL else f"127.{10 + first % 200}.{second}"
        self._bridge = f"imex{first:02x}{second:02x}"
        self._next = 0

    def address(self) -> str:
        """A new address."""
        self._next += 1
        address = f"{self._prefix}.{self._next}"
        if REAL:
            script = _JOIN if self._next > 1 else f"ip link add $1 type bridge; ip link set $1 up; {_JOIN}"
            link = f"{self._bridge}-{self._next}"
            if _shell(script, self._bridge, f"imex-{address}", link, address):
                pytest.skip("network namespaces cannot be made here")
            (Path("/etc/netns") / f"imex-{address}").mkdir(parents=True, exist_ok=True)
        return address

    def close(self) -> None:
        """Remove everything."""
        for number in range(1, self._next + 1 if REAL else 1):
            _shell('ip netns del "$1"; rm -r "/etc/netns/$1"', f"imex-{self._prefix}.{number}")
        if REAL:
            _shell('ip link del "$1"', self._bridge)


def _shell(script: str, *arguments: str) -> int:
    return subprocess.run(["sh", "-c", f"set -e; {script}", "imex", *arguments], check=False).returncode


class Daemon:
    """The daemon of a node. Its process is started with `start`."""

    def __init__(self, folder: Path, domain: "Domain", node: str, index: int, address: str) -> None:
        self.node = node
        self.index = index
        self.address = address
        self.folder = folder / node / "imexd"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.hosts = Path(f"/etc/netns/imex-{address}/hosts") if REAL else folder / node / "hosts"
        self.hosts.write_text("127.0.0.1\tlocalhost\n")
        self.imex = ImexFaults(folder / node / "state/imex")
        self._domain = domain
        self._log = folder / node / "log"
        self._bin = folder / node / "driver/usr/bin"
        self._process: subprocess.Popen[bytes] | None = None
        install_programs(folder / node / "driver")
        for name in ("nvidia-imex --nogpu", "nvidia-imex-ctl") if REAL else ():
            (self._bin / name.split()[0]).write_text(_INSIDE.format(address=address, program=f"{REAL}/{name}"))

    @property
    def member(self) -> Member:
        """Its row, as the cluster controller makes it."""
        return Member(self.node, self.address, CLIQUE, self.index)

    @property
    def endpoint(self) -> str:
        """Where its probes and metrics are."""
        return f"127.{self.address.partition('.')[2]}:8080"

    def start(self, **environment: str) -> "Daemon":
        """Start the process."""
        assert not self.runs()
        flags = [
            *(f"--node-name={self.node}", f"--pod-ip={self.address}", f"--namespace={NAMESPACE}"),
            *(f"--folder={self.folder}", f"--hosts-file={self.hosts}"),
            *(f"--imex-program={self._bin}/nvidia-imex", f"--imex-control-program={self._bin}/nvidia-imex-ctl"),
            f"--kubeconfig={self._domain.kubeconfig}",
        ]
        flags.append(f"--http-endpoint={self.endpoint}")
        variables = {"COMPUTE_DOMAIN_UUID": self._domain.uid, "CLIQUE_ID": CLIQUE, **environment}
        if not REAL:
            variables |= {"DRA_SIMULATED_HOSTS_FILE": str(self.hosts), "DRA_SIMULATED_ADDRESS": self.address}
        with self._log.open("ab") as output:
            self._process = preloaded.start(
                [sys.executable, "-m", "tests.support.imexdaemon", json.dumps(asdict(_TIMES)), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "DRA_SIMULATED_IMEX_WINDOW": str(_WINDOW), **variables},
            )
        return self

    def runs(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the process at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask the process to end; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def report(self) -> DaemonReport | None:
        """What the plugin of its node reads."""
        return read_report(self.folder)

    def says(self, text: str) -> bool:
        """Whether its report has this text."""
        report = self.report()
        return report is not None and text in report.message

    def imex_pid(self) -> int | None:
        """The process of its nvidia-imex."""
        config = str(self.folder / "imexd.cfg").encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if config in words and b"-q" not in words and b"-N" not in words and b"setpriv" not in words[0]:
                    return int(path.parent.name)
        return None

    @property
    def log(self) -> str:
        """What it and its nvidia-imex logged."""
        return self._log.read_text()


class Domain:
    """A ComputeDomain in one clique. Tests change its members as the cluster controller does."""

    def __init__(self, folder: Path, client: ApiClient, kubeconfig: Path, network: Network, slots: int = 6) -> None:
        self.uid = str(uuid.uuid4())
        self.name = clique_name(self.uid, CLIQUE)
        self.kubeconfig = kubeconfig
        self.slots = slots
        self._folder = folder / self.uid
        self._client = client
        self._network = network
        self.daemons: list[Daemon] = []

    def daemon(self, index: int, address: str = "") -> Daemon:
        """A daemon, which is not started and no member yet."""
        made = Daemon(self._folder, self, f"node-{index}", index, address or self._network.address())
        self.daemons.append(made)
        return made

    def set_members(self, *members: Daemon | Member) -> None:
        """Let exactly these be members. Rows that exist are not changed."""
        rows = [encode_member(one.member if isinstance(one, Daemon) else one) for one in members]
        while True:
            value: dict[str, Any] = {
                "apiVersion": CLIQUES.api_version,
                "kind": "ComputeDomainClique",
                "metadata": {
                    "name": self.name,
                    "namespace": NAMESPACE,
                    "annotations": {SLOTS_ANNOTATION: str(self.slots)},
                },
            }
            with contextlib.suppress(ConflictError):
                try:
                    value = self._client.get(CLIQUES, self.name, NAMESPACE)
                except NotFoundError:
                    self._client.create(CLIQUES, {**value, "daemons": rows}, NAMESPACE)
                    return
                value["daemons"] = [self._kept(row, value["daemons"]) for row in rows]
                self._client.update(CLIQUES, value)
                return

    def _kept(self, row: Mapping[str, Any], before: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        same = ("nodeName", "ipAddress", "index")
        return next((one for one in before if all(one[key] == row[key] for key in same)), row)

    def clique(self) -> Clique:
        """The object."""
        return decode_clique(self._client.get(CLIQUES, self.name, NAMESPACE))

    def rows(self) -> dict[str, DaemonReport]:
        """What the daemons reported in the object, by node."""
        return {one.node: one.report for one in self.clique().members}

    def wait_up(self, *daemons: Daemon) -> None:
        """Wait until these daemons are connected to all members."""
        for one in daemons:
            wait_for(lambda one=one: one.report() == UP, f"{one.node} to be connected")  # type: ignore[misc]

    def close(self) -> None:
        """End all processes."""
        for one in self.daemons:
            one.imex.mend()
            if one.runs():
                one.kill()


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Addresses for a test."""
    made = Network()
    try:
        yield made
    finally:
        made.close()
