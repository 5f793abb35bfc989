# SPDX-License-Identifier: Apache-2.0
"""A prepare and an unprepare that end at every point where they touch the hardware or the disk.

The points are counted in a run that goes well, so that none is forgotten when the code changes. Tests with other claims
take the odd points, and tests without them the even points; with FAULTS_EVERY=1 all take each. At each, the plugin is
killed, before or after the touch (an exception that nobody catches stands for that, as it leaves the same on the node),
or the touch fails. Then the next process starts, kubelet repeats its call, and everything has to be as if nothing had
happened.
"""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from dra_driver.gpu.nvml import Nvml, NvmlError, Return
from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.claims.files import RecordFiles, Stamp
from kubeletplugin.claims.model import ClaimRef, Record
from kubeletplugin.claims.specs import ClaimSpecs
from tests.faults.points import KilledError
from tests.faults.share import share
from tests.kubeletplugin.inside import DYNAMIC, NOTHING, ApiServer, Plugin

DEVICES = ["gpu-0-mig-1g10gb-19-0", "gpu-0-mig-2g20gb-14-2", "gpu-1", "gpu-4-mig-3g40gb-9-4"]
LEFT_ALONE = ["gpu-4-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-6"]
QUERIES = {"initialize", "shutdown", "driver_version", "cuda_driver_version", "device_count", "device_by_index"}


class Fate:
    """What happens at the `point`-th touch; counts them all."""

    def __init__(self) -> None:
        self.watching = False
        self.count = 0
        self.point = -1
        self.after = False
        self.error: Callable[[str], BaseException] | None = None

    def touch(self, what: str, act: Callable[[], Any], *, failure: Callable[[str], BaseException]) -> Any:
        """Do something on the node, unless it is here that it ends."""
        if not self.watching:
            return act()
        self.count += 1
        if self.count - 1 != self.point:
            return act()
        if self.error is not None:
            raise failure(what)
        if self.after:
            act()
        raise KilledError(what)


def nvml_failure(what: str) -> BaseException:
    return NvmlError(Return.UNKNOWN, what, "it fails here")


def disk_failure(what: str) -> BaseException:
    return OSError(errno.ENOSPC, "No space left on device", what)


class Doomed:
    """Makes plugins, one after the other, that share a node and a fate."""

    def __init__(self, root: Path, api: ApiServer) -> None:
        self.fate = fate = Fate()
        self.root = root
        self.api = api

        class DoomedRecords(RecordFiles[Record]):
            def save(self, record: Record, *, replace: bool = False) -> Stamp:
                saved: Stamp = fate.touch(
                    "save",
                    lambda: super(DoomedRecords, self).save(record, replace=replace),
                    failure=disk_failure,
                )
                return saved

            def remove(self, uid: str) -> None:
                fate.touch("remove", lambda: super(DoomedRecords, self).remove(uid), failure=disk_failure)

        class DoomedSpecs(ClaimSpecs):
            def write(self, record: Record) -> None:
                fate.touch("write", lambda: super(DoomedSpecs, self).write(record), failure=disk_failure)

        self.records, self.specs = DoomedRecords, DoomedSpecs

    def gateway(self, nvml: Nvml) -> Nvml:
        """A gateway whose every call is a touch."""

        def method(name: str) -> Callable[..., Any]:
            real = getattr(nvml, name)
            if name in QUERIES:
                return lambda _, *arguments: real(*arguments)
            return lambda _, *arguments: self.fate.touch(name, lambda: real(*arguments), failure=nvml_failure)

        methods = {name: method(name) for name in Nvml.__abstractmethods__}
        return cast(Nvml, type("DoomedNvml", (Nvml,), methods)())

    def process(self) -> Plugin:
        """The next process."""
        return Plugin(self.root, self.api, policy=DYNAMIC, gateway=self.gateway, records=self.records, specs=self.specs)

    def run(self, plugin: Plugin, call: Callable[[], object]) -> str:
        """Make a call that may end badly; gives how."""
        self.fate.count = 0
        self.fate.watching = True
        try:
            call()
        except KilledError:
            return "killed"
        except EXPECTED_ERRORS:
            return "failed"
        finally:
            self.fate.watching = False
        return "done"


@pytest.fixture
def doomed(tmp_path: Path) -> Doomed:
    return Doomed(tmp_path, ApiServer())


def neighbours(plugin: Plugin) -> list[ClaimRef]:
    """Claims that are prepared beside, on the same GPUs, and must not notice anything."""
    refs = [plugin.api.add([device]) for device in LEFT_ALONE]
    for ref in refs:
        plugin.engine.prepare(ref)
    return refs


ENDS: list[tuple[bool, Callable[[str], BaseException] | None]] = [(False, None), (True, None), (False, nvml_failure)]


@pytest.mark.parametrize(("after", "error"), ENDS, ids=["killed before", "killed after", "an error"])
@pytest.mark.parametrize("beside", [True, False], ids=["beside others", "alone"])
def test_a_prepare_that_ends_anywhere(
    doomed: Doomed, after: bool, error: Callable[[str], BaseException] | None, beside: bool
) -> None:
    fate, plugin = doomed.fate, doomed.process()
    others = neighbours(plugin) if beside else []
    before = plugin.left()
    ref = plugin.api.add(DEVICES)
    assert doomed.run(plugin, lambda: plugin.engine.prepare(ref)) == "done"
    points, prepared, plan = fate.count, plugin.left(), plugin.engine.prepare(ref).plan
    plugin.engine.unprepare(ref)
    assert plugin.left() == before
    assert points >= 25
    fate.after, fate.error = after, error
    for fate.point in share(range(points), int(beside), 2):
        how = doomed.run(plugin, partial(plugin.engine.prepare, ref))
        if how == "failed":
            assert plugin.left() == before, fate.point
        elif how == "killed":
            plugin.stop()
            plugin = doomed.process()
            kept = plugin.left()
            assert kept in (before, prepared), fate.point
        assert plugin.engine.prepare(ref).plan == plan
        assert plugin.left() == prepared
        plugin.engine.unprepare(ref)
        assert plugin.left() == before, fate.point
    for other in others:
        plugin.engine.unprepare(other)
    assert plugin.left() == NOTHING
    assert [plugin.mode(index) for index in (0, 1, 4)] == [(False, False), (False, False), (True, True)]


@pytest.mark.parametrize(("after", "error"), ENDS, ids=["killed before", "killed after", "an error"])
@pytest.mark.parametrize("beside", [True, False], ids=["beside others", "alone"])
def test_an_unprepare_that_ends_anywhere(
    doomed: Doomed, after: bool, error: Callable[[str], BaseException] | None, beside: bool
) -> None:
    fate, plugin = doomed.fate, doomed.process()
    others = neighbours(plugin) if beside else []
    before = plugin.left()
    ref = plugin.api.add(DEVICES)
    plugin.engine.prepare(ref)
    prepared = plugin.left()
    assert doomed.run(plugin, lambda: plugin.engine.unprepare(ref)) == "done"
    points = fate.count
    assert points > 15
    fate.after, fate.error = after, error
    for fate.point in share(range(points), int(beside), 2):
        plugin.engine.prepare(ref)
        assert plugin.left() == prepared
        how = doomed.run(plugin, partial(plugin.engine.unprepare, ref))
        if how == "killed":
            plugin.stop()
            plugin = doomed.process()
            assert plugin.left() in (before, prepared), fate.point
        plugin.engine.unprepare(ref)
        plugin.engine.recover()  # a mode that could not be taken back goes now
        assert plugin.left() == before, fate.point
    for other in others:
        plugin.engine.unprepare(other)
    assert plugin.left() == NOTHING
