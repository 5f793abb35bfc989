# SPDX-License-Identifier: Apache-2.0
"""The demo: publish devices, allocate them, prepare claims, survive a kill, unprepare, leave nothing.

Each step checks what it shows, so the demo fails if the driver fails. It shows GPUs as rows, with MIG instances in
their memory slices.
"""

import contextlib
import io
import json
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ..dryrun.main import dryrun
from ..errors import DemoError
from ..gpu.inventory import Gpu, Inventory
from ..gpu.simulated.faults import Fault
from .environment import JSON, NODE, Sandbox

_CELL = 7
_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")

HARDWARE = "h100x8-mixed"
EXAMPLES = ("whole-gpu", "shared-gpu", "mig-slices")
MIG_POD = "mig-slices"

_CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


def memory_slices(inventory: Inventory) -> Table:
    """Return rows like `gpu-4  |1g.10gb|1g.10gb|   2g.20gb   |          3g.40gb          |`, in colours."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("GPU", "MIG", "MEMORY SLICES"):
        table.add_column(heading)
    for gpu in inventory.gpus:
        slices = _slices(gpu) if gpu.in_mig_mode else Text("whole", style="dim")
        table.add_row(f"gpu-{gpu.minor}", "on" if gpu.in_mig_mode else "off", slices)
    return table


def _slices(gpu: Gpu) -> Text:
    places = [placement for profile in gpu.mig_profiles for placement in profile.placements]
    length = max((place.start + place.size for place in places), default=0)
    starts = {instance.device.placement.start: instance.device for instance in gpu.gpu_instances}
    text, position = Text("|"), 0
    while position < length:
        device = starts.get(position)
        width = 1 if device is None else device.placement.size
        label = "" if device is None else device.profile or "?"
        style = "" if device is None else f"bold {_COLOURS[position % len(_COLOURS)]}"
        text.append(label.center(width * (_CELL + 1) - 1), style=style)
        text.append("|")
        position += width
    return text


class Demo:
    """Runs the steps on a running sandbox and writes to `console`."""

    def __init__(self, sandbox: Sandbox, console: Console, examples: Path) -> None:
        self._sandbox = sandbox
        self._node = sandbox.nodes[0]
        self._console = console
        self._examples = examples

    def run(self) -> None:
        """Run all steps. Raises DemoError, or TimeoutError if an expected change does not happen."""
        self._title(f"A node with 8 x H100, GPUs 4 to 7 in MIG mode, publishes its devices ({NODE})")
        self._show_slices()
        self._title("Would the four-slice claim fit? dra-dryrun asks the same question as the scheduler")
        self._dry_run()
        self._title("Pods ask for GPUs: one each, one shared by two containers, four MIG slices of one GPU")
        self._apply_examples()
        self._title("What the scheduler allocated")
        self._show_allocations()
        self._title("The MIG instances that the plugin made for it, on the memory slices of each GPU")
        self._show_picture()
        self._title("The CDI spec of the claim with four slices; libraries and control nodes are in the common one")
        self._show_spec()
        self._title("kill -9 while the plugin makes four more instances for a second pod")
        self._kill_halfway()
        self._title("All pods are deleted")
        self._delete_everything()

    def _show_slices(self) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("SLICE", "COUNTER SETS", "DEVICES", ""):
            table.add_column(heading)
        slices = self._sandbox.slices()
        expected = slices[0]["spec"]["pool"]["resourceSliceCount"]
        self._node.kubelet.wait(lambda: len(self._sandbox.slices()) == expected, what="all slices of the pool")
        for slice_ in self._sandbox.slices():
            names = [device["name"] for device in slice_["spec"].get("devices") or []]
            counters = slice_["spec"].get("sharedCounters") or []
            shown = f"{names[0]}, …" if names else "(what MIG devices share)"
            table.add_row(slice_["metadata"]["name"], str(len(counters)), str(len(names)), shown)
        self._console.print(table)

    def _dry_run(self) -> None:
        manifest = str(self._examples / f"{MIG_POD}.yaml")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            words = ["--kubeconfig", str(self._sandbox.kubeconfig), manifest]
            code = dryrun.main(words, prog_name="dra-dryrun", standalone_mode=False)
        self._console.out(f"$ dra-dryrun --kubeconfig kubeconfig examples/{MIG_POD}.yaml\n{output.getvalue()}", end="")
        self._require(code == 0, f"dra-dryrun to find room, not exit code {code}")

    def _apply_examples(self) -> None:
        for name in EXAMPLES:
            self._sandbox.apply(self._examples / f"{name}.yaml")
        for pod in self._sandbox.pods():
            self._node.kubelet.wait_pod_running("default", pod["metadata"]["name"])
            self._console.print(f"pod [bold]{pod['metadata']['name']}[/] is running")

    def _show_allocations(self) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("CLAIM", "REQUEST", "DEVICE"):
            table.add_column(heading)
        for claim in self._sandbox.claims():
            for result in claim["status"]["allocation"]["devices"]["results"]:
                table.add_row(claim["metadata"]["name"], result["request"], result["device"])
        self._console.print(table)
        devices = {result["device"] for result in self._results(self._claim_of(MIG_POD))}
        parents = {device.split("-mig-")[0] for device in devices}
        self._require(len(devices) == 4 and len(parents) == 1, f"four slices of one GPU, not {sorted(devices)}")

    def _show_picture(self, instances: int = 4) -> None:
        inventory = self._node.inventory()
        self._console.print(memory_slices(inventory))
        there = sum(len(gpu.gpu_instances) for gpu in inventory.gpus)
        self._require(there == instances, f"{instances} MIG instances, not {there}")

    def _show_spec(self) -> None:
        uid = self._claim_of(MIG_POD)["metadata"]["uid"]
        (file,) = (claim_spec for claim_spec in self._node.claim_specs() if uid in claim_spec.name)
        spec = json.loads(file.read_text(encoding="utf-8"))
        spec["devices"] = spec["devices"][:1]
        self._console.print(f"[dim]{file.name}, the first of its 4 devices:[/]")
        self._console.print(Syntax(json.dumps(spec, indent=1), "json", background_color="default"))
        container = self._node.kubelet.container("default", MIG_POD, "large")
        self._require(container is not None and container.env["NVIDIA_VISIBLE_DEVICES"] == "void", "CDI edits")

    def _kill_halfway(self) -> None:
        node = self._node
        node.hardware.inject(Fault(_CREATE, seconds=0.5))
        self._apply_second_pod()
        node.kubelet.wait(lambda: self._count() >= 6, what="two more MIG instances")
        pid = node.processes["kubeletplugin"].pid
        node.kill("kubeletplugin")
        node.hardware.clear_faults()
        self._console.print(f"killed process {pid}; this is what it left:")
        self._show_picture(self._count())
        self._require(self._count() < 8, "a pod that is half prepared")
        node.start_plugin()
        node.wait_registered()
        node.kubelet.wait_pod_running("default", f"{MIG_POD}-2", timeout=120)
        self._console.print(f"a new process undid the half, kubelet tried again: pod [bold]{MIG_POD}-2[/] is running")
        self._show_picture(8)

    def _delete_everything(self) -> None:
        self._sandbox.clear()
        self._show_picture(0)
        left = [path.name for path in (*self._node.claim_specs(), *self._node.records())]
        self._require(not left, f"nothing left on the node, not {left}")
        self._console.print("no MIG instance, no CDI spec of a claim, no record: [bold green]nothing is left[/]")

    def _apply_second_pod(self) -> None:
        second = self._sandbox.folder / "second.yaml"
        text = (self._examples / f"{MIG_POD}.yaml").read_text(encoding="utf-8")
        pod = text[text.index("apiVersion: v1\n") :].replace(f"name: {MIG_POD}\n", f"name: {MIG_POD}-2\n", 1)
        second.write_text(pod, encoding="utf-8")
        self._sandbox.apply(second)

    def _count(self) -> int:
        return sum(len(gpu.gpu_instances) for gpu in self._node.inventory().gpus)

    def _claim_of(self, pod: str) -> JSON:
        for claim in self._sandbox.claims():
            if any(owner["name"] == pod for owner in claim["metadata"].get("ownerReferences") or []):
                return claim
        raise DemoError(f"pod {pod} has no claim")

    @staticmethod
    def _results(claim: JSON) -> list[JSON]:
        results: list[JSON] = claim["status"]["allocation"]["devices"]["results"]
        return results

    def _title(self, text: str) -> None:
        self._console.print()
        self._console.print(f"[bold cyan]==[/] [bold]{text}[/]", soft_wrap=True)

    @staticmethod
    def _require(condition: bool, what: str) -> None:
        if not condition:
            raise DemoError(f"expected {what}")


def examples_folder() -> Path:
    """Return the folder of the example manifests: in the checkout, or else in the installed package."""
    checkout = Path(__file__).parents[2] / "examples"
    return checkout if checkout.is_dir() else Path(str(resources.files("dra_driver.sandbox") / "examples"))
