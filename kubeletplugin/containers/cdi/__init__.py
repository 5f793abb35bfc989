# SPDX-License-Identifier: Apache-2.0
"""Container Device Interface (CDI) specs: how a container gets its GPU.

There are two layers. The first is the format: `Spec` and its parts, `validate`, JSON (`dumps`, `loads`), names, and
`SpecDirectory`, which writes specs for container runtimes. The second is what a CUDA container needs of this node:
`DriverRoot` has the places of the driver, `common_edits`, `gpu_edits` and `mig_edits` search them, and `base_spec` and
`claim_spec` create specs.

At start, and again whenever `fingerprint` shows that the node has changed or the file is missing:

    files = Root(Path("/driver-root"), host_path="/run/nvidia/driver")
    root = DriverRoot(files, dev=Root(Path("/")))
    seen = fingerprint(root, driver_version, [root.files])
    found = common_edits(root, driver_version, find_hook_tool(root.files))
    SpecDirectory(Path("/var/run/cdi"), BASE_KIND).write(base_spec(found.edits))

For a claim:

    found = gpu_edits(root, minor, pci_address)
    SpecDirectory(Path("/var/run/cdi"), CLAIM_KIND).write(claim_spec(uid, {"gpu-0": found.edits}), uid)
    ids = [claim_device(uid, "gpu-0"), BASE_DEVICE]
"""

from ...errors import DriverFilesError, SpecError
from .directory import (
    BASE_DEVICE,
    BASE_KIND,
    CLAIM_KIND,
    DOMAIN_CLAIM_KIND,
    SpecDirectory,
    base_spec,
    claim_device,
    claim_spec,
)
from .edits import common_edits, gpu_edits, mig_edits
from .files import ADDITIONAL_DEVICES, character_majors, find_additional, find_node, find_program
from .fingerprint import Fingerprint, fingerprint
from .libraries import LIBRARY_FOLDERS, HookTool, find_hook_tool
from .root import DriverRoot, Root
from .spec import ContainerEdits, Mount, Spec, has_group_ids, without_group_ids
from .vfio import egm_edits, interface_nodes, require_nodes, vfio_edits, vfio_nodes

__all__ = [
    "ADDITIONAL_DEVICES",
    "BASE_DEVICE",
    "BASE_KIND",
    "CLAIM_KIND",
    "DOMAIN_CLAIM_KIND",
    "LIBRARY_FOLDERS",
    "ContainerEdits",
    "DriverFilesError",
    "DriverRoot",
    "Fingerprint",
    "HookTool",
    "Mount",
    "Root",
    "Spec",
    "SpecDirectory",
    "SpecError",
    "base_spec",
    "character_majors",
    "claim_device",
    "claim_spec",
    "common_edits",
    "egm_edits",
    "find_additional",
    "find_hook_tool",
    "find_node",
    "find_program",
    "fingerprint",
    "gpu_edits",
    "has_group_ids",
    "interface_nodes",
    "mig_edits",
    "require_nodes",
    "vfio_edits",
    "vfio_nodes",
    "without_group_ids",
]
