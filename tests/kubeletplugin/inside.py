# SPDX-License-Identifier: Apache-2.0
"""The plugin's inside on a simulated node, without kubelet, API server and process, and with everything else real."""

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dra_driver.gpu.fabric import FabricManager
from dra_driver.gpu.inventory import Gpu, read_inventory
from dra_driver.gpu.nvml import Nvml
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy
from dra_driver.gpu.profiles import whole_compute_profile
from dra_driver.kube.api import UnreachableError
from dra_driver.kube.resource import ResourceClaim
from kubeletplugin.claims.boundary import ClaimBoundary
from kubeletplugin.claims.engine import ClaimTimes, Engine
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.model import ClaimRef, Record
from kubeletplugin.claims.planner import Planner
from kubeletplugin.claims.records import record_format
from kubeletplugin.claims.specs import ClaimSpecs
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.drivers import GpuDriver
from kubeletplugin.errors import ClaimGoneError, NoDriverError
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.node import Node, NodeTimes
from tests.support.claims import allocated_claim
from tests.support.hardware import ControlledNode
from tests.support.listing import paths_in
from tests.support.nodes import make_node, stored_boards, stored_instances
from tests.support.waiting import wait_for

SMALL = "gpu-4-mig-1g10gb-19-0"
FOUR = ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-2g20gb-14-2", "gpu-4-mig-3g40gb-9-4"]
FOUR_MADE = ["0:1", "1:1", "2:2", "4:4"]
NOTHING: dict[str, list[str]] = {"instances": [], "specs": [], "records": [], "marks": [], "shares": []}
QUICK = NodeTimes(busy=0.05, driver=0.05)
DEFAULT_SETTINGS = ClaimTimes()
NO_POLICY = NodePolicy()
DYNAMIC = NodePolicy((GpuRule(mig=MigPolicy.DYNAMIC),))
MARKS = ("mig", "mig-modes", "compute-modes", "time-slices")
"""The folders of marks."""


RUNNING: "set[Plugin]" = set()
"""Those that were started and not stopped."""


class ApiServer:
    """What the API server has. `down` makes it unreachable."""

    def __init__(self) -> None:
        self.claims: dict[str, ResourceClaim] = {}
        self.down = False
        self.asked = 0

    def fetch(self, ref: ClaimRef) -> ResourceClaim:
        """A claim by its name."""
        self.asked += 1
        if self.down:
            raise UnreachableError("connection refused")
        for claim in self.claims.values():
            if (claim.metadata.namespace, claim.metadata.name) == (ref.namespace, ref.name):
                return claim
        raise ClaimGoneError(f"there is no ResourceClaim {ref}")

    def add(self, devices: list[str], name: str = "", **result: Any) -> ClaimRef:
        """An allocated claim appears."""
        claim = allocated_claim(name or f"claim-{len(self.claims)}", devices, **result)
        self.claims[claim.metadata.uid] = claim
        return ClaimRef(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)

    def share(self, device: str, share: str) -> ClaimRef:
        """A claim for a share of a device appears."""
        return self.add([device], shareID=f"0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e{share}")

    def delete(self, ref: ClaimRef) -> None:
        """A claim goes."""
        del self.claims[ref.uid]

    def renew(self, ref: ClaimRef) -> None:
        """A claim goes, and another one of its name appears."""
        claim = self.claims.pop(ref.uid)
        uid = str(uuid.uuid4())
        self.claims[uid] = replace(claim, metadata=replace(claim.metadata, uid=uid))


class Plugin:
    """A plugin on the node in `root`, made there when it is missing. A second one is another process, or the next.

    `gateway`, `fabric`, `records` and `specs` take the place of the real ones, to fail at will.
    """

    def __init__(
        self,
        root: Path,
        api: ApiServer,
        *,
        hardware: str = "h100x8-mixed",
        boot_id: str = "boot-1",
        policy: NodePolicy = NO_POLICY,
        settings: ClaimTimes = DEFAULT_SETTINGS,
        times: NodeTimes = QUICK,
        start: bool = True,
        gateway: Callable[[Nvml], Nvml] = lambda nvml: nvml,
        fabric: Callable[[FabricManager], FabricManager] = lambda manager: manager,
        records: type[RecordFiles[Record]] = RecordFiles[Record],
        specs: type[ClaimSpecs] = ClaimSpecs,
        mps_shared_memory: bool = True,
    ) -> None:
        self.root = root
        self.api = api
        self.node: ControlledNode = make_node(root / "node", hardware).node
        self.cdi = root / "cdi"
        self.ready = threading.Event()
        self._looked_after = threading.Event()
        self.events: list[tuple[str, str, str]] = []
        self.unexpected: list[str] = []
        self.steps: list[str] = []
        self.place = Node(
            "node-a",
            boot_id,
            NodeFolders(root / "registry", root, self.cdi, root / "shm", self._hardware(gateway, fabric)),
            times,
            yields=self.sys_root.is_mount(),  # else no GPU can be taken
        )
        driver = GpuDriver(lambda: policy, mps_shared_memory).driver()
        boundary = ClaimBoundary(
            lambda ref, reason, message: self.events.append((ref.uid, reason, message)),
            self.unexpected.append,
            lambda verb, step, _: self.steps.append(f"{verb} {step}"),
        )
        common = CommonSpec(self.cdi, self.place.folders.driver_root)
        self.records = records(root / "claims", record_format(driver))
        planner = Planner(driver, self.place, api.fetch)
        self.engine = Engine(planner, self.records, specs(self.place, common), boundary, settings)
        self.engine.begin()
        self.place.access.attend(self._note_round)
        if start:
            self.start()

    def _hardware(self, gateway: Callable[[Nvml], Nvml], fabric: Callable[[FabricManager], FabricManager]) -> Hardware:
        node, root = self.node, self.node.driver_root
        return Hardware(
            lambda: gateway(node.nvml()),
            driver_root=root,
            host_driver_root=Path("/"),
            dev_root=root,
            proc_root=root / "proc",
            sys_root=self.sys_root,
            machine_root=root,
            fabric_manager=fabric(node.fabric) if node.fabric.exists else None,
        )

    def _on_ready(self) -> None:
        self.engine.recover()
        self.ready.set()

    def start(self) -> "Plugin":
        """Find the driver, recover, and sweep. The sweep after the start asks the API server about each claim that has
        a record, and may hold locks: no test is to meet it by chance.
        """
        RUNNING.add(self)
        self.place.access.start(self._on_ready)
        assert self.ready.wait(60), "no recovery"
        assert self._looked_after.wait(60), "no sweep after the recovery"
        wait_for(self.has_driver, "the driver")
        return self

    def _note_round(self) -> float:
        self._looked_after.set()
        return 3600.0

    def stop(self) -> None:
        """Look after the node no more, and end NVML with all threads of this plugin."""
        self.place.access.stop()
        self.place.session.close()
        RUNNING.discard(self)

    def has_driver(self) -> bool:
        """Whether claims can be prepared."""
        try:
            self.place.gpus()
        except NoDriverError:
            return False
        return True

    # The node

    @property
    def sys_root(self) -> Path:
        """Its sysfs."""
        return self.node.driver_root / "sys"

    @property
    def nvml(self) -> Nvml:
        """A gateway to it, initialized now."""
        nvml = self.node.nvml()
        nvml.initialize()
        return nvml

    def gpus(self) -> tuple[Gpu, ...]:
        """What it has."""
        return read_inventory(self.nvml, self.sys_root).gpus

    def gpu(self, index: int) -> Gpu:
        """One of its GPUs."""
        return self.gpus()[index]

    def mode(self, index: int) -> tuple[bool, bool]:
        """The MIG mode of a GPU now, and after a reset."""
        board = stored_boards(self.node)[index]
        return board.mig_current, board.mig_pending

    def set_mode(self, index: int, enabled: bool) -> None:
        """An administrator switches the MIG mode of a GPU."""
        nvml = self.nvml
        assert nvml.set_mig_mode(nvml.device_by_index(index), enabled) is None

    def instances(self, index: int = 4) -> list[str]:
        """The GPU instances of a GPU, as start:size; those without a compute instance in brackets."""
        found = stored_instances(self.node)
        return sorted(place if devices else f"({place})" for gpu, place, devices in found if gpu == index)

    def make_by_hand(self, device: str, compute: bool = True) -> str:
        """An administrator makes a MIG device; gives its UUID."""
        return make_by_hand(self.node.nvml(), self.sys_root, device, compute)

    def mig_uuid(self, index: int = 4) -> str:
        """The UUID of the only MIG device of a GPU."""
        (instance,) = self.gpu(index).mig_instances
        return instance.uuid

    def left(self) -> dict[str, list[str]]:
        """Everything that claims have on the node."""
        return {
            "instances": [place for _, place, _ in stored_instances(self.node)],
            "specs": [path.name for path in paths_in(self.cdi, "*-claim_*")],
            "records": [path.name for path in paths_in(self.root / "claims")],
            "marks": sorted(path.name for folder in MARKS for path in paths_in(self.root, f"{folder}/*")),
            "shares": sorted(path.name for path in paths_in(self.root, "mps/*/shares/*")),
        }

    def record(self, ref: ClaimRef) -> Record:
        """A claim's record."""
        return self.records.read(ref.uid)

    def nodes_of(self, ref: ClaimRef) -> dict[str, list[str]]:
        """Device nodes by CDI device of a claim's spec."""
        spec = json.loads((self.cdi / f"k8s.gpu.nvidia.com-claim_{ref.uid}.json").read_text())
        return {
            one["name"].removeprefix(f"{ref.uid}-"): [node["path"] for node in one["containerEdits"]["deviceNodes"]]
            for one in spec["devices"]
        }

    def reasons(self) -> list[str]:
        """The reasons of all events so far."""
        return [reason for _, reason, _ in self.events]


def make_by_hand(nvml: Nvml, sys_root: Path, device: str, compute: bool = True) -> str:
    """Make the MIG device of this name as an administrator does, through a gateway that is not initialized yet; gives
    its UUID.
    """
    nvml.initialize()
    gpu = nvml.device_by_index(int(device.split("-")[1]))
    profile, start = (int(text) for text in device.split("-")[-2:])
    placement = next(one for one in nvml.gpu_instance_placements(gpu, profile) if one.start == start)
    instance = nvml.create_gpu_instance(gpu, profile, placement)
    if not compute:
        return ""
    profiles = read_inventory(nvml, sys_root).gpus[0].mig_profiles
    slices = next(one.info.slice_count for one in profiles if one.info.id == profile)
    made = nvml.create_compute_instance(instance, whole_compute_profile(nvml, instance, slices))
    return nvml.uuid(nvml.compute_instance_info(made).device)


class CallThread:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._result: object = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def result(self) -> object:
        """What it gave, or its exception."""
        self._thread.join(60)
        assert self.over, "the call does not end"
        if self._error is not None:
            raise self._error
        return self._result
