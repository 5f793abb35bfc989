# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node as a picture: a row a GPU, its memory slices filled by MIG instances."""

from rich.table import Table
from rich.text import Text

from ..gpu.inventory import Gpu, Inventory

_CELL = 7
_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


def memory_slices(inventory: Inventory) -> Table:
    """`gpu-4  |1g.10gb|1g.10gb|   2g.20gb   |          3g.40gb          |`, the instances in colours."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("GPU", "MIG", "MEMORY SLICES"):
        table.add_column(heading)
    for gpu in inventory.gpus:
        slices = _slices(gpu) if gpu.in_mig_mode else Text("whole", style="dim")
        table.add_row(f"gpu-{gpu.minor}", "on" if gpu.in_mig_mode else "off", slices)
    return table


def _slices(gpu: Gpu) -> Text:
    names = {profile.info.id: profile.name for profile in gpu.mig_profiles}
    places = [placement for profile in gpu.mig_profiles for placement in profile.placements]
    length = max((place.start + place.size for place in places), default=0)
    starts = {one.placement.start: one for one in gpu.mig_instances}
    text, position = Text("|"), 0
    while position < length:
        instance = starts.get(position)
        width = 1 if instance is None else instance.placement.size
        label = "" if instance is None else names.get(instance.profile_id, "?")
        style = "" if instance is None else f"bold {_COLOURS[position % len(_COLOURS)]}"
        text.append(label.center(width * (_CELL + 1) - 1), style=style)
        text.append("|")
        position += width
    return text
