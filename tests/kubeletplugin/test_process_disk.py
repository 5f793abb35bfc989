# SPDX-License-Identifier: Apache-2.0
"""What the process makes of folders that cannot be written, records that cannot be read, and wrong flags."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from kubeletplugin.claims.records import VERSION
from kubeletplugin.containers.cdi import BASE_KIND, SpecDirectory
from tests.support.plugin import NOTHING, Plugin, plugin_on, stored_claim
from tests.support.preloaded import run
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

FOUR = ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-2g20gb-14-2", "gpu-4-mig-3g40gb-9-4"]
READY = "GPUs are ready"


@pytest.fixture
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    with plugin_on(kubeconfig) as made:
        yield made


def block(folder: Path) -> Path:
    """Put a file in the folder's place, so that nothing can be written there, whoever asks; gives where it is now."""
    aside = folder.with_name(f"{folder.name}-aside")
    if folder.exists():
        folder.rename(aside)
    folder.write_text("in the way")
    return aside


def unblock(folder: Path) -> None:
    """Undo `block`."""
    folder.unlink()
    aside = folder.with_name(f"{folder.name}-aside")
    if aside.exists():
        aside.rename(folder)


def fill_disk(plugin: Plugin, largest: int = 0) -> Callable[[], object]:
    """The plugin can write no file beyond so many bytes; what is returned ends that."""
    assert plugin.process is not None
    pid = plugin.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, before[1]))
    return lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_a_cdi_folder_that_cannot_be_written(plugin: Plugin, client: ApiClient) -> None:
    plugin.start()
    claim = stored_claim(client, *FOUR)
    block(plugin.cdi)
    error = plugin.prepare(claim)[claim.uid].error
    assert "Not a directory" in error
    assert str(plugin.cdi) in error
    assert plugin.left() == NOTHING
    unblock(plugin.cdi)
    assert plugin.prepare(claim)[claim.uid].error == ""


def test_the_common_spec_comes_back_when_somebody_deletes_it(plugin: Plugin, client: ApiClient) -> None:
    plugin.start()
    common = SpecDirectory(plugin.cdi, BASE_KIND).file()
    first, second = (stored_claim(client, device) for device in ("gpu-0", "gpu-1"))
    for claim in (first, second, first):
        common.unlink()
        assert plugin.prepare(claim)[claim.uid].error == ""
        assert common.exists(), "at once for whoever needs it"
    common.unlink()
    wait_for(common.exists, "it without a call")


def test_start_waits_for_a_folder_that_cannot_be_written(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, "gpu-0")
    plugin.cdi.symlink_to("nothing")
    plugin.start("the node is not ready for claims: ")
    assert "the node is not ready for claims: [Errno 2] No such file" in plugin.prepare(claim)[claim.uid].error
    assert plugin.unprepare(claim) == {claim.uid: ""}
    plugin.cdi.unlink()
    wait_for(lambda: READY in plugin.log, READY)
    assert plugin.prepare(claim)[claim.uid].error == ""


def test_a_folder_for_records_that_cannot_be_written(plugin: Plugin, client: ApiClient) -> None:
    plugin.start()
    claim, prepared = stored_claim(client, *FOUR), stored_claim(client, "gpu-5-mig-1g10gb-19-0")
    plugin.prepare(prepared)
    before = plugin.left()
    block(plugin.records)
    assert "Not a directory" in plugin.prepare(claim)[claim.uid].error
    unblock(plugin.records)
    assert plugin.left() == before
    assert plugin.prepare(claim)[claim.uid].error == ""


def test_a_full_disk_leaves_nothing_half_done_and_holds_nothing(plugin: Plugin, client: ApiClient) -> None:
    plugin.start()
    claim, prepared = stored_claim(client, "gpu-0"), stored_claim(client, "gpu-1")
    plugin.prepare(prepared)
    before = plugin.left()
    free = fill_disk(plugin)
    error = plugin.prepare(claim)[claim.uid].error
    assert "File too large" in error
    assert str(plugin.records) in error
    assert plugin.left() == before
    assert plugin.unprepare(prepared) == {prepared.uid: ""}
    assert plugin.left() == NOTHING
    free()
    assert plugin.prepare(claim)[claim.uid].error == ""


def test_a_folder_where_a_record_would_be_written_is_no_obstacle(plugin: Plugin, client: ApiClient) -> None:
    plugin.start()
    claim = stored_claim(client, *FOUR)
    plugin.prepare(claim)
    (plugin.records / f"{claim.uid}.new").mkdir()
    assert plugin.unprepare(claim) == {claim.uid: ""}
    assert plugin.left() == NOTHING
    assert "an empty directory at the path of a file is removed" in plugin.log


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_damaged_record_is_set_aside(plugin: Plugin, client: ApiClient, part: float) -> None:
    plugin.start()
    claim, other = stored_claim(client, "gpu-0"), stored_claim(client, *FOUR)
    answers = plugin.prepare(claim, other)
    specs = plugin.left()["specs"]
    plugin.kill()
    file = plugin.records / f"{claim.uid}.json"
    os.truncate(file, int(file.stat().st_size * part))
    plugin.start()
    assert f"record {file} cannot be read and is set aside as {claim.uid}.damaged" in plugin.log
    assert plugin.left()["specs"] == specs  # its containers may be restarted
    assert plugin.prepare(claim, other) == answers
    assert (plugin.records / f"{claim.uid}.damaged").exists()  # for administrators
    plugin.unprepare(claim, other)
    assert plugin.left() == NOTHING


def test_record_damaged_by_a_loss_of_power_is_forgotten(plugin: Plugin, client: ApiClient) -> None:
    plugin.start()
    claim = stored_claim(client, *FOUR)
    plugin.prepare(claim)
    plugin.kill()
    plugin.node.reset_gpu(4)
    file = plugin.records / f"{claim.uid}.json"
    os.truncate(file, file.stat().st_size // 2)
    (plugin.records.parent / "boot-id").write_text("the boot before")
    plugin.start()
    assert plugin.left() == NOTHING
    assert plugin.prepare(claim)[claim.uid].error == ""
    assert plugin.unprepare(claim) == {claim.uid: ""}
    assert plugin.left() == NOTHING


def test_a_record_of_a_newer_version_is_left_for_it(plugin: Plugin, client: ApiClient) -> None:
    plugin.start()
    claim, other = stored_claim(client, *FOUR), stored_claim(client, "gpu-0")
    plugin.prepare(claim, other)
    before = plugin.left()
    plugin.kill()
    file = plugin.records / f"{claim.uid}.json"
    newer = json.dumps({**json.loads(file.read_text()), "version": 99})
    file.write_text(newer)
    plugin.start()
    assert (
        f"record {file}: it has version 99, and this plugin supports {VERSION}; the plugin does not touch its claim"
        in plugin.log
    )
    said = f"the record of claim {claim.uid} was written by a newer version of this plugin; start the newer version"
    assert plugin.prepare(claim)[claim.uid].error == said
    assert plugin.unprepare(claim) == {claim.uid: said}
    assert plugin.unprepare(other) == {other.uid: ""}
    assert file.read_text() == newer
    assert plugin.left() == {
        "instances": before["instances"],
        "specs": [name for name in before["specs"] if claim.uid in name],
        "records": [file.name],
    }


FLAGS = {"node-name": "node-a", "kubeconfig": "{}/kubeconfig", "simulated-node": "h100x8", "simulated-root": "{}/node"}


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ({"node-name": None}, 2, "missing option '--node-name'"),
        ({"no-such-flag": "1"}, 2, "--no-such-flag"),
        ({"simulated-node": "h900x8"}, 2, "no simulated node 'h900x8'"),
        ({"simulated-root": None}, 2, "--simulated-node needs --simulated-root"),
        ({"cdi-root": "{}/kubeconfig"}, 2, "'--cdi-root'"),
        ({"log-format": "xml"}, 2, "'xml' is not one of 'text', 'json'"),
        ({"kubeconfig": "{}/gone"}, 1, "kubeconfig {}/gone: No such file or directory"),
        ({"cdi-root": "{}/kubeconfig/cdi"}, 1, "cannot start: [Errno 20] Not a directory: '{}/kubeconfig/cdi'"),
        ({"kubelet-plugins-directory-path": "{}/kubeconfig/p"}, 1, "cannot start: [Errno 20] Not a directory: '{}"),
        ({"kubelet-registrar-directory-path": "{}/kubeconfig/r"}, 1, "cannot listen on {}/kubeconfig/r/gpu.nvidia"),
        ({"kubelet-registrar-directory-path": "{}/" + "x" * 99}, 1, "is longer than 107 bytes: choose a shorter"),
    ],
)
def test_wrong_flag_ends_the_plugin_with_one_line(
    kubeconfig: Path, flags: dict[str, str | None], code: int, said: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:  # short: sockets are in it
        shutil.copy(kubeconfig, folder)
        ended = run_with(folder, flags)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert said.format(folder) in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def run_with(base: str, flags: dict[str, str | None]) -> subprocess.CompletedProcess[str]:
    """The plugin with these flags in place of good ones; `{}` in them is the folder `base`."""
    own = {f"{folder}-directory-path": f"{{}}/{folder}" for folder in ("kubelet-plugins", "kubelet-registrar")}
    given = {**FLAGS, **own, "cdi-root": "{}/cdi", **flags}
    command = [sys.executable, "-m", "kubeletplugin.main"]
    command += [f"--{name}={value.format(base)}" for name, value in given.items() if value is not None]
    clean = {name: value for name, value in os.environ.items() if name not in ("NODE_NAME", "KUBECONFIG")}
    return run(command, env=clean)
