# SPDX-License-Identifier: Apache-2.0
"""After the start, a process unmaps pages of program files, and goes on as before."""

import subprocess
import sys
from pathlib import Path

from tests.support.plugin import plugin_on

PROGRAM = """
import hashlib, ssl, grpc
from pathlib import Path
from dra_driver.process.resident import release_program_pages

def kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

data = bytearray(b"x" * (1 << 22))
before = {field: kib(field) for field in ("RssFile", "RssAnon")}
release_program_pages()
print(before["RssFile"], kib("RssFile"), before["RssAnon"], kib("RssAnon"))
assert bytes(data) == b"x" * (1 << 22)
assert hashlib.sha256(b"abc").hexdigest().startswith("ba7816bf")
ssl.create_default_context()
grpc.server(None).stop(0)
"""


def test_pages_of_files_are_unmapped_and_no_others() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    file_before, file_after, own_before, own_after = map(int, done.stdout.split())
    assert file_after < file_before / 2
    assert own_after >= own_before


def test_the_plugin_does_it_when_its_gpus_are_ready(kubeconfig: Path) -> None:
    with plugin_on(kubeconfig) as plugin:
        plugin.start("unmapped the pages of program files")
        assert "GPUs are ready" in plugin.log
        assert plugin.get_info().type == "DRAPlugin"
