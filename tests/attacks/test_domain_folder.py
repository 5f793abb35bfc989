# SPDX-License-Identifier: Apache-2.0
"""The container of an IMEX daemon attacks the plugin through the folder that they share."""

import contextlib
import itertools
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.domains.daemon.report import read_report
from dra_driver.domains.objects import LONGEST, DaemonReport
from dra_driver.process.exposed import remove_tree
from kubeletplugin.features.domain.folder import DomainFolder
from tests.support.isolated import require_namespaces
from tests.support.listing import paths_in

from .containers import container, said, tell

DOMAIN = "6a1b1f34-0000-4000-8000-000000000001"
SECRET = '{"ready": true, "state": "READY", "domain_state": "UP", "message": "secret of the host"}'


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[DomainFolder]:
    """The driver's folder, with the folder of a domain."""
    require_namespaces()
    made = DomainFolder(tmp_path / "compute-domain.nvidia.com")
    made.of_domain(DOMAIN).mkdir(parents=True)
    yield made
    for path in left(made):
        remove_tree(path)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of the host with a file, which no attack may reach."""
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "report.json").write_text(SECRET)
    return folder


def left(driver: DomainFolder) -> list[Path]:
    """The folders that daemons have written, those that are being removed included."""
    return [path for folder in (driver.domains, driver.path / ".trash") for path in paths_in(folder)]


REPORTS = """
import fcntl, json, os, socket, sys

def replace(make):
    make("new")
    os.rename("new", "report.json")

def text(data, lock=True):
    def make(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(file, data)
        if lock:
            fcntl.flock(file, fcntl.LOCK_EX)
    return make

def fields(**changed):
    return json.dumps({"ready": True, "state": "", "domain_state": "", "message": "", **changed}).encode()

def huge(path):
    text(b"{" * 100)(path)
    os.truncate(path, 1 << 40)

def pipe(path):
    os.mkfifo(path)
    os.open(path, os.O_RDWR)

def listening(path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    globals().setdefault("kept", []).append(server)

secret = sys.argv[1]
kinds = {
    "link": lambda path: os.symlink(secret, path),
    "link to a device": lambda path: os.symlink("/dev/zero", path),
    "pipe": os.mkfifo,
    "pipe with a writer": pipe,
    "socket": listening,
    "huge": huge,
    "deep": text(b"[" * 60000),
    "deep object": text(b'{"a":' * 10000),
    "long number": text(b'{"ready": ' + b"9" * 5000 + b"}"),
    "list": text(b"[1, 2]"),
    "not UTF-8": text(b"\\xff\\xfe"),
    "unlocked": text(fields(), lock=False),
    "long message": text(fields(message="x" * 60000)),
    "escape": text(fields(ready=False, message="\\x1b[2J\\nforged line\\u202e", state="s" * 9999)),
    "object as message": text(fields(message={"a": ["b"] * 99}, domain_state=[1])),
}
for round in range(3):
    for name, make in kinds.items():
        replace(make)
        print(name)
        sys.stdin.readline()
os.unlink("report.json")
os.mkdir("report.json")
print("folder")
sys.stdin.readline()
"""
ACCEPTED = ("long message", "escape", "object as message")


def test_a_report_that_a_container_wrote_is_bounded_and_no_link_is_followed(driver: DomainFolder, host: Path) -> None:
    folder = driver.of_domain(DOMAIN)
    found: dict[str, DaemonReport | None] = {}
    with container(folder, REPORTS, str(host / "report.json")) as attacker:
        while "folder" not in found:
            kind = said(attacker)
            found[kind] = read_report(folder)
            tell(attacker)
    assert {name for name, report in found.items() if report is not None} == set(ACCEPTED)
    for report in found.values():
        if report is not None:
            assert "secret" not in report.message
            for name, most in LONGEST.items():
                text = getattr(report, name)
                assert len(text) <= most
                assert text.isprintable()
    assert re.fullmatch("x+…", (found["long message"] or DaemonReport()).message)


SWAPS = """
import os, sys
host = sys.argv[1]
print("begins")
while True:
    try:
        os.makedirs("folder/inner")
        for number in range(20):
            open(f"folder/inner/{number}", "w").close()
        os.symlink(host, "link")
        os.rename("folder", "aside")
        os.rename("link", "folder")
        os.rename("folder", "link")
        os.rename("aside", "folder")
        os.symlink(host, "folder/inner/link")
    except OSError:
        pass
    for name in ("link", "aside"):
        try:
            os.unlink(name)
        except OSError:
            pass
"""


def test_a_container_that_swaps_folders_and_links_does_not_lead_the_plugin_out_of_its_folder(
    driver: DomainFolder, host: Path
) -> None:
    with container(driver.of_domain(DOMAIN), SWAPS, str(host)) as attacker:
        said(attacker)
        for _ in range(200):
            driver.remove(DOMAIN)
    assert (host / "report.json").read_text() == SECRET
    while left(driver):
        driver.remove(DOMAIN)


DEEP = """
import os
for level in range(5000):
    os.mkdir("inner")
    os.chdir("inner")
open("file", "w").close()
print("made")
input()
"""


def test_folders_in_folders_do_not_keep_the_plugin_from_other_claims(driver: DomainFolder) -> None:
    with container(driver.of_domain(DOMAIN), DEEP) as attacker:
        assert said(attacker) == "made"
    while left(driver):
        driver.remove(DOMAIN)
    assert [path for path in open_files() if path.startswith(str(driver.path))] == []


def open_files() -> list[str]:
    """The paths of the files that this process has open."""
    paths = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            paths.append(str(link.readlink()))
    return paths


MANY = """
for number in range(25_000):
    open(str(number), "w").close()
print("made")
input()
"""


def test_many_files_are_removed_bit_by_bit(driver: DomainFolder, caplog: pytest.LogCaptureFixture) -> None:
    with container(driver.of_domain(DOMAIN), MANY) as attacker:
        assert said(attacker) == "made"
    counts = []
    with caplog.at_level(logging.WARNING):
        while folders := left(driver):
            counts.append(sum(len(list(folder.iterdir())) for folder in folders))
            driver.remove(DOMAIN)
    assert all(before - after <= 10_000 for before, after in itertools.pairwise([*counts, 0]))
    assert counts[0] == 25_000
    assert not driver.domains.exists()
    assert "the folders of ComputeDomains have many files, and are removed bit by bit" in caplog.text
