# SPDX-License-Identifier: Apache-2.0
"""A long random life: calls, repeated and at the same time, in the midst of kills, reloads, outages, damaged files, a
driver that hangs, and handwork.

After each operation the node must be as the model says, and at the end the process as it was at the beginning: its
threads, open files and objects. A new kind of mishap is one more method, named in OFTEN. A failure prints the seed
and the operations; with SOAK_SEED=<seed> they come again (what happens at the same time may differ),
SOAK_OPERATIONS=<number> makes it longer.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.profiles import whole_compute_profile
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient
from dra_driver.sandbox.apiserver import ApiServerOptions
from kubeletplugin.protocol import dra_v1_pb2
from tests.support.apiserver import CLAIMS, connect
from tests.support.damage import DAMAGES
from tests.support.faultyserver import FaultyServer
from tests.support.plugin import NOTHING, stored_claim
from tests.support.waiting import wait_for

from .model import Is, KnownClaim, Model, Place
from .processes import KillablePlugin, killable_plugin, require_as_before
from .resources import SOAK_TOLERANCE

SEED = int(os.environ.get("SOAK_SEED", "20250601"))
OPERATIONS = int(os.environ.get("SOAK_OPERATIONS", "120"))
CLAIMS_AT_A_TIME = 10

WHOLE = [["gpu-0"], ["gpu-2"], ["gpu-3"]]
SLICES = [
    [f"gpu-{gpu}-mig-{profile}-{start}"]
    for gpu in (0, 1, 3)
    for profile, starts in (("1g10gb-19", range(7)), ("2g20gb-14", (0, 2, 4)), ("3g40gb-9", (0, 4)))
    for start in starts
]
SEVERAL = [
    ["gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-1", "gpu-1-mig-2g20gb-14-2"],
    ["gpu-0-mig-1g10gb-19-0", "gpu-0-mig-3g40gb-9-4"],
    ["gpu-2", "gpu-1-mig-1g10gb-19-4", "gpu-0-mig-1g10gb-19-1"],
    ["gpu-0", "gpu-3-mig-1g10gb-19-2"],
]
BY_HAND = [Place(1, start, 1) for start in range(7)]


class Soak:
    """One node's life. Operations are methods; `log` says what was done."""

    def __init__(self, plugin: KillablePlugin, server: FaultyServer, client: ApiClient, chance: random.Random) -> None:
        self.plugin, self.server, self.client, self.chance = plugin, server, client, chance
        self.log: list[str] = []
        self.outages = 0
        self.disk_full = False
        self.damaged: set[str] = set()
        self.messages: dict[str, Any] = {}
        self._nvml = plugin.node.nvml()
        self._nvml.initialize()
        gpus = read_inventory(self._nvml, plugin.hardware.sys_root).gpus
        before = plugin.node_state()
        self.model = Model([gpu.uuid for gpu in gpus], before["modes"], by_hand={Place(1, 6, 1)})
        assert self.model.problems(before) == []

    # Claims

    def new_claim(self, devices: list[str] | None = None) -> str:
        """A claim appears, for some devices or these; an old one that is not used any more goes."""
        idle = [one.uid for one in self.model.of(Is.CLEAN)]
        if len(self.messages) >= CLAIMS_AT_A_TIME and idle:
            uid = self.chance.choice(idle)
            self.client.delete(CLAIMS, self.messages.pop(uid).name, "default")
            del self.model.claims[uid]
        devices = devices or self.chance.choice([*WHOLE * 3, *SLICES, *SEVERAL * 3])
        claim = stored_claim(self.client, *devices)
        self.messages[claim.uid] = claim
        self.model.claims[claim.uid] = KnownClaim(claim.uid, [Place.of(one) for one in devices])
        self.log.append(f"claim {claim.uid[:8]}: {', '.join(devices)}")
        return str(claim.uid)

    def some_claim(self) -> str:
        """One of the claims."""
        return self.chance.choice(sorted(self.messages))

    # Calls

    def prepare(self) -> None:
        self.call("Prepare", self.new_claim() if self.chance.random() < 0.5 and not self.outages else self.some_claim())

    def unprepare(self) -> None:
        self.call("Unprepare", self.some_claim())

    def repeat(self) -> None:
        verb, uid = self.chance.choice(["Prepare", "Unprepare"]), self.some_claim()
        for _ in range(2):
            self.call(verb, uid)

    def at_once(self) -> None:
        """Calls at the same time, also for one claim."""
        calls = [
            (self.chance.choice(["Prepare", "Prepare", "Unprepare"]), self.some_claim())
            for _ in range(self.chance.randint(2, 6))
        ]
        self.log.append("at once: " + ", ".join(f"{verb} {uid[:8]}" for verb, uid in calls))
        begun = [(verb, uid, self.plugin.begin(verb, self.messages[uid])) for verb, uid in calls]
        ended = [(verb, uid, call.result(timeout=60).claims[uid].error) for verb, uid, call in begun]
        verbs = {uid: {verb for verb, other in calls if other == uid} for _, uid in calls}
        for verb, uid, error in sorted(ended, reverse=True):  # Unprepare first: it may have made room
            if len(verbs[uid]) > 1:
                self.model.claims[uid].state = Is.IN_DOUBT
            else:
                self.answered(verb, uid, error, sure=False)

    def call(self, verb: str, uid: str, *, sure: bool = True) -> None:
        """One call, and what must come of it, as far as that is `sure`."""
        answer = self.plugin.call(verb, [self.messages[uid]], "v1")(timeout=60)
        error = answer.claims[uid].error
        self.log.append(f"{verb} {uid[:8]} {error or 'went well'}")
        self.answered(verb, uid, error, sure=sure and not self.disk_full)

    def answered(self, verb: str, uid: str, error: str, *, sure: bool) -> None:
        """Note an answer. When it is `sure` what it must be, it must be that."""
        claim = self.model.claims[uid]
        if not error:
            self.model.went_well(verb, uid)
            self.damaged.discard(uid)
            return
        needs_server = uid in self.damaged or (verb == "Prepare" and claim.state is not Is.PREPARED)
        # While nobody knew what the claim has, another claim got a device that overlaps. The claim waits for that one.
        overlaps = uid in self.damaged and "is in use by" in error
        if sure and not overlaps and not (needs_server and self.outages):
            assert verb == "Prepare", f"{uid} cannot be unprepared: {error}"
            assert not self.model.must_be_possible(uid), f"{uid} cannot be prepared: {error}"
        if verb == "Unprepare" or claim.state is not Is.PREPARED:
            claim.state = Is.IN_DOUBT

    # Mishaps

    def killed_in_calls(self) -> None:
        """The process ends at some point of a call that has something to do, and of others beside it."""
        idle = [one.uid for one in self.model.of(Is.CLEAN) if self.model.must_be_possible(one.uid)]
        calls = [("Prepare", uid) for uid in idle] + [("Unprepare", one.uid) for one in self.model.of(Is.PREPARED)]
        if not calls or self.outages:
            return
        calls = self.chance.sample(calls, min(len(calls), self.chance.choice([1, 1, 3])))
        self.log.append("at once: " + ", ".join(f"{verb} {uid[:8]}" for verb, uid in calls))
        self.plugin.trigger.arm(self.chance.randint(0, self.chance.choice([10, 30, 60])))
        begun = [(uid, self.plugin.begin(verb, self.messages[uid])) for verb, uid in calls]
        for uid, call in begun:
            self.model.claims[uid].state = Is.IN_DOUBT
            call.exception(timeout=60)
        # It may end only after its last answer.
        if all(call.exception() is None for _, call in begun) and not self.plugin.disarm():
            return
        self.log.append(f"killed: {self.plugin.end_of_process()}")
        self.plugin.start()

    def restart(self) -> None:
        if self.chance.random() < 0.5:
            self.plugin.terminate()
        self.plugin.kill()
        self.log.append("restart")
        self.plugin.start()

    def damage_file(self) -> None:
        """The process is killed, and a file of a claim is not as it left it. No other claim notices."""
        prepared = self.model.of(Is.PREPARED)
        if not prepared or self.outages:
            return
        claim, damage = self.chance.choice(prepared), self.chance.choice(sorted(DAMAGES))
        files = {
            "record": self.plugin.records / f"{claim.uid}.json",
            "CDI spec": self.plugin.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json",
            "metadata": self.plugin.state / "metadata" / f"{claim.uid}_r0.json",
        }
        what = self.chance.choice(sorted(files))
        self.log.append(f"damaged: {what} of {claim.uid[:8]} is {damage}")
        self.plugin.kill()
        DAMAGES[damage](files[what])
        if what == "record":  # the only thing that tells what the claim has, if it is not the claim itself
            claim.state = Is.IN_DOUBT
            self.damaged.add(claim.uid)
        self.plugin.start()

    def driver_hangs(self) -> None:
        """A look at one GPU does not return for a while. Its claims may have to wait, no other claim notices."""
        gpu, call = self.chance.randrange(4), self.chance.choice(HANGING)
        self.log.append(f"hangs: {call} for GPU {gpu}")
        hung, returned = self.plugin.log.count(HUNG), self.plugin.log.count(RETURNED)
        self.plugin.node.inject(Fault(call, gpu=gpu, seconds=10**6))
        wait_for(lambda: self.plugin.log.count(HUNG) > hung, "the hang to be noticed")
        for _ in range(self.chance.randint(1, 3)):
            uid = self.some_claim()
            elsewhere = all(place.gpu != gpu for place in self.model.claims[uid].places)
            self.call(self.chance.choice(["Prepare", "Unprepare"]), uid, sure=elsewhere)
        self.plugin.node.clear_faults()
        wait_for(lambda: self.plugin.log.count(RETURNED) > returned, "the call to return")
        self.log.append("the call has returned")

    def reload_driver(self) -> None:
        """Everything made on the GPUs is gone, and what claims had is made again."""
        self.log.append("the driver is loaded anew")
        nobody = dra_v1_pb2.Claim(namespace="default", name="nobody", uid="00000000")
        self.plugin.node.unload_driver()
        self.plugin.prepare(nobody)
        self.plugin.node.load_driver()
        self.model.by_hand.clear()
        self._nvml = self.plugin.node.nvml()
        self._nvml.initialize()
        wait_for(lambda: "not ready" not in self.plugin.prepare(nobody)[nobody.uid].error, "the driver")

    def api_server_goes(self) -> None:
        self.outages = self.chance.randint(2, 8)
        self.log.append(f"the API server is away for {self.outages} operations")
        self.server.faults.refuse_connections()

    def disk_fills(self) -> None:
        """For a few calls no file can be changed, or only the first few."""
        error = self.chance.choice([errno.ENOSPC, errno.EIO, errno.EROFS])
        point = self.chance.randint(0, 12)
        self.log.append(f"{errno.errorcode[error]} from point {point} on")
        self.disk_full = True
        self.plugin.trigger.arm(point, lasting=True, error=error)
        for _ in range(self.chance.randint(1, 3)):
            self.call(self.chance.choice(["Prepare", "Unprepare"]), self.some_claim())
        self.plugin.trigger.disarm()
        self.disk_full = False
        self.log.append("the disk is well again")

    def by_hand(self) -> None:
        """The administrator makes a MIG device, or destroys one that no claim uses."""
        used = [place for one in self.model.claims.values() if one.state is not Is.CLEAN for place in one.places]
        place = self.chance.choice([one for one in BY_HAND if not any(map(one.overlaps, used))] or [None])
        if place is None:
            return
        gpu = self._nvml.device_by_index(place.gpu)
        profile = self._nvml.gpu_instance_profile(gpu, 0)
        if place not in self.model.by_hand:
            self.log.append(f"by hand: {place} is made")
            at = next(one for one in self._nvml.gpu_instance_placements(gpu, profile.id) if one.start == place.start)
            made = self._nvml.create_gpu_instance(gpu, profile.id, at)
            self._nvml.create_compute_instance(made, whole_compute_profile(self._nvml, made, 1))
            self.model.by_hand.add(place)
            return
        self.log.append(f"by hand: {place} is destroyed")
        for made in self._nvml.gpu_instances(gpu, profile.id):
            if self._nvml.gpu_instance_info(made).placement.start == place.start:
                for compute in self._nvml.compute_instances(made, whole_compute_profile(self._nvml, made, 1)):
                    self._nvml.destroy_compute_instance(compute)
                self._nvml.destroy_gpu_instance(made)
        self.model.by_hand.remove(place)

    # After each operation

    def settle(self) -> None:
        """kubelet calls again for claims in doubt: sooner or later their pods are gone."""
        if self.outages:
            self.outages -= 1
            if not self.outages:
                self.server.faults.clear()
        for claim in self.model.of(Is.IN_DOUBT):
            if self.chance.random() < 0.5:
                self.call(self.chance.choice(["Prepare", "Unprepare"]), claim.uid)

    def check(self) -> None:
        """The node is as it must be, at once or as soon as the plugin has looked after what it could not do at once."""
        found = self.model.problems(self.plugin.node_state())
        if found:
            self.log.append(f"not yet: {'; '.join(found)}")
            wait_for(lambda: not self.model.problems(self.plugin.node_state()), "; ".join(found))

    def clean(self) -> None:
        """Everything is unprepared."""
        self.server.faults.clear()
        self.outages = 0
        for uid in self.messages:
            self.call("Unprepare", uid)
        assert not self.model.of(Is.PREPARED) + self.model.of(Is.IN_DOUBT)
        self.check()
        self.plugin.hang_up()

    def warm_up(self) -> None:
        """Calls that use every profile on every GPU, so that the process has all that it ever needs."""
        of_each_profile = {devices[0].rpartition("-")[0]: devices for devices in SLICES}
        for devices in (*WHOLE, *SEVERAL, *of_each_profile.values()):
            self.call("Prepare", self.new_claim(devices))
            self.clean()

    def end(self) -> None:
        """The claims go, and nothing is left of them."""
        for claim in self.messages.values():
            self.client.delete(CLAIMS, claim.name, "default")
        self.restart()
        wait_for(lambda: self.left() == NOTHING, f"{self.left()} to go with their claims")

    def left(self) -> dict[str, list[str]]:
        """The files that are left of claims, without what was set aside since it is no file of the plugin's."""
        left = self.plugin.left()
        files = {kind: [name for name in left[kind] if not name.endswith(".aside")] for kind in ("records", "specs")}
        return {**files, "instances": []}

    def summary(self) -> str:
        """How often what happened."""
        text = "\n".join(self.log)
        words = (
            "went well",
            "Prepare",
            "Unprepare",
            "at once",
            "killed: ",
            "restart",
            "damaged: ",
            "hangs: ",
            "loaded anew",
            "away",
            "from point",
            "by hand",
            "not yet",
        )
        return ", ".join(f"{word.strip(': ')}: {text.count(word)}" for word in words)


HANGING = ["nvmlDeviceGetUUID", "nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues"]
HUNG = "ERROR   dra_driver.gpu.threads"
RETURNED = "the call that hung has returned"

OFTEN: list[tuple[float, Callable[[Soak], None]]] = [
    (30, Soak.prepare),
    (25, Soak.unprepare),
    (6, Soak.repeat),
    (14, Soak.at_once),
    (8, Soak.killed_in_calls),
    (3, Soak.restart),
    (3, Soak.damage_file),
    (0.4, Soak.driver_hangs),  # each takes seconds
    (2, Soak.reload_driver),
    (2, Soak.api_server_goes),
    (4, Soak.disk_fills),
    (6, Soak.by_hand),
]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(ApiServerOptions(tls=False)) as running:
        yield running


def test_soak(server: FaultyServer, tmp_path: Path) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "config")
    with (
        connect(kubeconfig) as client,
        killable_plugin(kubeconfig, "--device-metadata", impatient=True) as plugin,
    ):
        plugin.start()
        soak = Soak(plugin, server, client, random.Random(SEED))
        try:
            soak.warm_up()
            before = plugin.resource_counts()
            for _ in range(CLAIMS_AT_A_TIME):
                soak.new_claim()
            for number in range(OPERATIONS):
                soak.log.append(f"-- {number}")
                (operation,) = soak.chance.choices([one for _, one in OFTEN], [weight for weight, _ in OFTEN])
                operation(soak)
                soak.settle()
                soak.check()
            soak.clean()
            require_as_before(plugin.resource_counts, before, SOAK_TOLERANCE)
            soak.end()
            print(soak.summary())
        except BaseException:
            print(f"SOAK_SEED={SEED}", *soak.log[-400:], sep="\n")
            print(plugin.log[-4000:])
            raise
