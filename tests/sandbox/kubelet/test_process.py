# SPDX-License-Identifier: Apache-2.0
"""The kubelet as a process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .memory_cluster import NODE
from .scripted_api import scripted_api, write_kubeconfig

PROGRAM = """
import sys
from pathlib import Path
from dra_driver.sandbox.kubelet import Options, run

def started(kubelet):
    kubelet.wait_ready()
    print("ready", flush=True)

run(Options("node-1", Path(sys.argv[1])), Path(sys.argv[2]), started=started)
print("ended", flush=True)
"""


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_runs_until_it_is_told_to_end(root: Path, tmp_path: Path, sign: signal.Signals) -> None:
    with scripted_api() as api:
        node = {"metadata": {"name": NODE}}
        api.answers["POST", "/api/v1/nodes"] = 201, node
        api.answers["PATCH", f"/api/v1/nodes/{NODE}/status"] = 200, node
        api.answers["DELETE", "/apis/resource.k8s.io/v1/resourceslices"] = 200, {"kind": "Status"}
        api.answers["GET", "/api/v1/pods"] = 200, {"metadata": {"resourceVersion": "1"}, "items": []}
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.port)
        command = [sys.executable, "-c", PROGRAM, str(root), str(kubeconfig)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(sign)
            assert process.stdout.read() == "ended\n"
    assert process.returncode == 0
