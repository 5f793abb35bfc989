# SPDX-License-Identifier: Apache-2.0
"""Container Device Interface specs: how a container gets its GPU.

Two layers. The format: `Spec` and its parts, `validate`, JSON (`dumps`, `loads`), names, and `SpecDirectory`, which
writes specs for container runtimes to read. And what a CUDA container needs of this node: `DriverRoot` says where the
driver is, `common_edits`, `gpu_edits` and `mig_edits` look there, `base_spec` and `claim_spec` put it into specs.

At start, and again whenever `fingerprint` says that the node changed or the file is gone:

    root = DriverRoot.at(Path("/driver-root"), host_path="/run/nvidia/driver")
    seen = fingerprint(root, driver_version, [root.files])
    found = common_edits(root, driver_version, find_hook_tool(root.files))
    SpecDirectory(Path("/var/run/cdi"), BASE_KIND).write(base_spec(found.edits))

For a claim:

    found = gpu_edits(root, minor, pci_address)
    SpecDirectory(Path("/var/run/cdi"), CLAIM_KIND).write(claim_spec(uid, {"gpu-0": found.edits}), uid)
    ids = [claim_device(uid, "gpu-0"), BASE_DEVICE]
"""

from .codec import decode, dumps, encode, loads
from .directory import BASE_DEVICE, BASE_KIND, CLAIM_KIND, VOID, SpecDirectory, base_spec, claim_device, claim_spec
from .edits import common_edits, gpu_edits, mig_edits
from .fingerprint import Fingerprint, fingerprint
from .hooks import HookTool, find_hook_tool
from .libraries import LIBRARY_FOLDERS, DriverLibraries, Library, Link, find_libraries
from .nodes import Discovered, additional_gids, capability_node, character_majors, find_node
from .root import DriverFilesError, DriverRoot, Root
from .spec import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    Mount,
    Problem,
    Spec,
    SpecError,
    minimum_version,
    qualified_name,
    split_kind,
    split_qualified_name,
)
from .validation import validate

__all__ = [
    "BASE_DEVICE",
    "BASE_KIND",
    "CLAIM_KIND",
    "LIBRARY_FOLDERS",
    "VOID",
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "Discovered",
    "DriverFilesError",
    "DriverLibraries",
    "DriverRoot",
    "Fingerprint",
    "Hook",
    "HookTool",
    "Library",
    "Link",
    "Mount",
    "Problem",
    "Root",
    "Spec",
    "SpecDirectory",
    "SpecError",
    "additional_gids",
    "base_spec",
    "capability_node",
    "character_majors",
    "claim_device",
    "claim_spec",
    "common_edits",
    "decode",
    "dumps",
    "encode",
    "find_hook_tool",
    "find_libraries",
    "find_node",
    "fingerprint",
    "gpu_edits",
    "loads",
    "mig_edits",
    "minimum_version",
    "qualified_name",
    "split_kind",
    "split_qualified_name",
    "validate",
]
