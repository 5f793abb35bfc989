# SPDX-License-Identifier: Apache-2.0
"""The plugin's process: it copies the hook program to the host and answers it, also after kill -9."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.memory_limits import problem_of_node
from dra_driver.kube.api import ApiClient
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.model import Record, State
from kubeletplugin.claims.records import record_format
from kubeletplugin.containers.cdi import CLAIM_KIND, claim_spec
from kubeletplugin.containers.cdi.spec import minimum_version
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.errors import LimitError
from kubeletplugin.features.memory_limits.files import LimitFiles
from kubeletplugin.features.memory_limits.limiter import Limit
from kubeletplugin.features.memory_limits.service import recorded_limits
from kubeletplugin.features.memory_limits.step import MemoryLimitStep
from tests.support.limits import compile_program
from tests.support.plugin import Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hook program as it is in the image."""
    return compile_program(tmp_path_factory.mktemp("program") / "dra-memory-limits")


@pytest.fixture
def plugin(kubeconfig: Path, program: Path) -> Iterator[Plugin]:
    with plugin_on(kubeconfig, f"--memory-limits-program={program}") as made:
        yield made.start()


def records_of(plugin: Plugin) -> RecordFiles[Record]:
    """The records of a plugin."""
    return RecordFiles(plugin.state / "claims", record_format(gpu_driver()))


def limit(plugin: Plugin, uid: str, mebibytes: int = 100) -> tuple[str, str]:
    """Give the only device of a prepared claim a limit; its GPU's UUID and its name in the CDI spec."""
    records = records_of(plugin)
    record = records.read(uid)
    (device,) = record.plan.devices
    (gpu_uuid,) = device.kind.keys
    step = MemoryLimitStep(gpu_uuid, device.cdi_name, mebibytes)
    records.save(replace(record, plan=replace(record.plan, steps=(*record.plan.steps, step))))
    return gpu_uuid, device.cdi_name


def ask(files: LimitFiles, uid: str, device: str) -> "subprocess.CompletedProcess[str]":
    """Run the hook of the claim's CDI spec, for a container outside of a pod."""
    (hook,) = files.edits(uid, device).hooks
    state = json.dumps({"pid": os.getpid()})
    command = [hook.path, *hook.args[1:]]
    return subprocess.run(command, input=state, capture_output=True, text=True, timeout=60, check=False)


def test_a_plugin_answers_the_hook_of_a_claim_also_after_it_was_killed(plugin: Plugin, client: ApiClient) -> None:
    files = LimitFiles(plugin.state / "memory-limits")
    claim = stored_claim(client, "gpu-0")
    assert plugin.prepare(claim)[claim.uid].error == ""
    _, device = limit(plugin, claim.uid)
    for _ in range(2):
        done = ask(files, claim.uid, device)  # the process of this test is in no pod
        assert done.returncode == 1
        assert "is not below the cgroup of a pod" in done.stderr or "is not the path of a cgroup" in done.stderr
        plugin.kill()
        plugin.start()


def test_the_program_is_copied_once_and_replaced_when_the_image_has_another(
    plugin: Plugin, program: Path, tmp_path: Path
) -> None:
    files = LimitFiles(plugin.state / "memory-limits")
    assert files.program.read_bytes() == program.read_bytes()
    assert files.program.stat().st_mode & 0o777 == 0o755
    before = files.program.stat().st_ino
    files.install(program)
    assert files.program.stat().st_ino == before
    newer = tmp_path / "newer"
    newer.write_bytes(b"newer")
    files.install(newer)
    assert files.program.read_bytes() == b"newer"
    files.program.chmod(0o600)
    files.install(newer)
    assert files.program.stat().st_mode & 0o777 == 0o755


def test_the_cleanup_removes_the_program(plugin: Plugin) -> None:
    assert (plugin.state / "memory-limits/hook.sock").exists()
    plugin.terminate()
    assert plugin.command("cleanup").returncode == 0
    assert not plugin.state.exists()


def test_an_old_plugin_beside_a_new_one_does_not_take_the_hooks_away(plugin: Plugin) -> None:
    files = LimitFiles(plugin.state / "memory-limits")
    files.socket.unlink()
    wait_for(files.socket.exists, "the socket")
    plugin.terminate()
    assert ask(files, "a", "gpu-0").returncode == 1


def test_without_the_program_nothing_is_on_the_host(kubeconfig: Path, tmp_path: Path) -> None:
    with plugin_on(kubeconfig, f"--memory-limits-program={tmp_path / 'none'}") as plugin:
        plugin.start()
        assert not (plugin.state / "memory-limits").exists()


def test_the_limits_of_prepared_claims_are_found_by_the_names_of_their_cdi_devices(
    plugin: Plugin, client: ApiClient
) -> None:
    claim, unlimited = stored_claim(client, "gpu-0"), stored_claim(client, "gpu-1")
    plugin.prepare(claim, unlimited)
    gpu, device = limit(plugin, claim.uid)
    records = records_of(plugin)
    find = recorded_limits(records)
    assert find(claim.uid, device) == Limit(gpu, 100)
    for uid, name in [(claim.uid, "gpu-7"), (unlimited.uid, "gpu-1"), ("00000000-0000-0000-0000-000000000000", device)]:
        with pytest.raises(LimitError):
            find(uid, name)
    records.save(replace(records.read(claim.uid), state=State.PREPARING))
    with pytest.raises(LimitError, match="is not prepared"):
        find(claim.uid, device)


def test_the_hook_needs_no_newer_cdi(tmp_path: Path) -> None:
    edits = LimitFiles(tmp_path).edits("uid", "gpu-0")
    assert minimum_version(claim_spec("a0", {"gpu-0": edits})) == "0.3.0"
    assert CLAIM_KIND in claim_spec("a0", {"gpu-0": edits}).kind
    assert [(one.hook_name, one.args[1:]) for one in edits.hooks] == [
        ("createRuntime", (str(tmp_path / "hook.sock"), "uid", "gpu-0"))
    ]


def test_why_a_node_cannot_set_limits(tmp_path: Path) -> None:
    program = tmp_path / "program"
    assert "has no hook program" in str(problem_of_node(tmp_path, program))
    program.touch()
    assert "is not cgroup version 2" in str(problem_of_node(tmp_path, program))
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cgroup.controllers").touch()
    assert problem_of_node(tmp_path, program) is None
