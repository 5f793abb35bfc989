# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of this driver in a CDI directory (`/var/run/cdi`): their kinds, names and files.

Container runtimes may read the `.json` and `.yaml` files of the directory at any moment. They ignore the devices of a
file that they cannot parse. So a spec is written under a name that runtimes ignore, and then renamed. The temporary
file is in the same directory, because the runtimes' watchers do not notice a rename from another directory. Files have
the names that the container-device-interface library uses: `vendor-class.json`, or `vendor-class_identifier.json` for
the spec of a claim.

There is one kind of spec for the node's driver, and one for the claims of each DRA driver, where each claim has a spec
with its devices. Kinds and names are those of NVIDIA's DRA driver. The claim's UID is in the name, so that a runtime
never uses a cached device of an earlier claim.

A container requests `BASE_DEVICE` and each of its devices by `claim_device`. Every device that kubelet reports comes
with `BASE_DEVICE`, so a container with eight GPUs requests it eight times. containerd applies the edits of a repeated
device once, but CRI-O applies them each time. Both apply the edits of the spec itself once. So the driver is in the
spec's own edits, and a device has only edits that may be repeated.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from dra_driver.errors import NotAFileError
from dra_driver.process.files import read_file, remove_file, write_file

from ...errors import SpecError
from .spec import CdiDevice, ContainerEdits, Spec, dumps, is_device_name, qualified_name, validate

_SUFFIX = ".json"
_YAML_SUFFIX = ".yaml"
_TEMPORARY = ".tmp"

CLAIM_KIND = "k8s.gpu.nvidia.com/claim"
DOMAIN_CLAIM_KIND = "k8s.compute-domain.nvidia.com/claim"
"""The kind of the specs of claims with devices of the driver compute-domain.nvidia.com."""
BASE_KIND = "k8s.gpu.nvidia.com/driver"
BASE_DEVICE = qualified_name(BASE_KIND, "common")
"""The device that every container with a GPU requests."""

VOID = "NVIDIA_VISIBLE_DEVICES=void"
"""Prevents the older injection of nvidia-container-runtime from adding all GPUs of the node."""


class SpecDirectory:
    """Writes, reads and removes the specs of `kind` in the directory `path`. Files with other names are never changed.

    Safe for several threads and processes: the last write of a name wins. With `sync`, a spec is on the disk when
    `write` returns. OSError of any method names the file.
    """

    def __init__(self, path: Path, kind: str, *, sync: bool = True) -> None:
        self.path = path
        self._prefix = f"{path}/"  # paths as text are quicker
        self._stem = kind.replace("/", "-")
        self._sync = sync

    def file(self, identifier: str = "") -> Path:
        """The file of the spec `identifier`, or of the spec without an identifier.

        Raises ValueError if `identifier` has characters that a device name may not have.
        """
        return self.path / self._name(identifier)

    def _name(self, identifier: str) -> str:
        if identifier and not is_device_name(identifier):
            raise ValueError(f"{identifier!r} cannot identify a CDI spec: use letters, digits, '_', '.', ':' and '-'")
        return f"{self._stem}_{identifier}{_SUFFIX}" if identifier else f"{self._stem}{_SUFFIX}"

    def exists(self, identifier: str = "") -> bool:
        """Whether there is a spec. Raises ValueError."""
        return os.path.isfile(self._prefix + self._name(identifier))  # noqa: PTH113

    def write(self, spec: Spec, identifier: str = "") -> Path:
        """Write or replace a spec, and return its file. Raises SpecError, and writes nothing, if a runtime would refuse
        it.

        Creates the directory if it is missing, because `/var/run` is empty after a reboot.
        """
        name = self._name(identifier)
        target = self._prefix + name
        if problems := validate(spec):
            raise SpecError(target, *problems)
        data = dumps(spec)
        temporary = f"{self._prefix}.{name}.{os.urandom(8).hex()}{_TEMPORARY}"
        try:
            self._put(target, data, temporary)
        except BaseException as error:
            Path(temporary).unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:  # of write and fsync
                raise OSError(error.errno, error.strerror, target) from None
            raise
        return Path(target)

    def _put(self, target: str, data: bytes, temporary: str) -> None:
        try:
            write_file(target, data, temporary, 0o644, sync=self._sync)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(parents=True)
                self.path.chmod(0o755)  # independent of the umask
            write_file(target, data, temporary, 0o644, sync=self._sync)

    def devices(self, identifier: str = "") -> set[str]:
        """The names of the devices in a stored spec. Empty if there is none. Raises SpecError if it cannot be read."""
        file = self.file(identifier)
        try:
            return {str(device["name"]) for device in json.loads(read_file(file))["devices"]}
        except FileNotFoundError:
            return set()
        except (NotAFileError, ValueError, LookupError, TypeError) as error:
            raise SpecError(str(file), f"is not a CDI spec: {error}") from None

    def remove(self, identifier: str = "") -> bool:
        """Remove a spec. Returns False if there was none."""
        return remove_file(self._prefix + self._name(identifier))

    def identifiers(self) -> list[str]:
        """The sorted identifiers of the stored specs, without the spec that has no identifier."""
        prefix = f"{self._stem}_"
        specs = (name for name in self._names() if name.startswith(prefix) and name.endswith(_SUFFIX))
        return sorted(filter(is_device_name, (name.removeprefix(prefix).removesuffix(_SUFFIX) for name in specs)))

    def foreign_files(self) -> list[Path]:
        """Sorted specs of this kind from other programs: YAML files, as NVIDIA's DRA driver writes them.

        Their devices have the same names as ours. Runtimes treat a device that is described twice as a conflict and
        know neither. So a claim in such a file and in `identifiers` cannot be used until one of the files is gone.
        """
        prefixes = (f"{self._stem}_", f"{self._stem}{_YAML_SUFFIX}")
        names = (name for name in self._names() if name.startswith(prefixes) and name.endswith(_YAML_SUFFIX))
        return sorted(self.path / name for name in names)

    def remove_leftovers(self) -> int:
        """Remove the incomplete files of writers that were killed, and return their number.

        Call this while no other process writes specs of this kind: at start, under the lock that lets only one plugin
        run.
        """
        leftovers = [
            name
            for name in self._names()
            if name.startswith((f".{self._stem}_", f".{self._stem}{_SUFFIX}")) and name.endswith(_TEMPORARY)
        ]
        for name in leftovers:
            remove_file(self.path / name)
        return len(leftovers)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)  # noqa: PTH208 - names are all that is needed
        except FileNotFoundError:
            return []


def base_spec(edits: ContainerEdits) -> Spec:
    """The spec of the node's driver, with `common_edits`."""
    return Spec(BASE_KIND, (CdiDevice("common", ContainerEdits(env=(VOID,))),), container_edits=edits)


def claim_spec(claim_uid: str, devices: Mapping[str, ContainerEdits], kind: str = CLAIM_KIND) -> Spec:
    """The spec of a claim, with edits by the device names of the ResourceSlice (`gpu-0`)."""
    return Spec(kind, tuple(CdiDevice(f"{claim_uid}-{name}", edits) for name, edits in devices.items()))


def claim_device(claim_uid: str, device: str, kind: str = CLAIM_KIND) -> str:
    """The qualified name of a claim's device. Raises ValueError if it is not a valid CDI name."""
    return qualified_name(kind, f"{claim_uid}-{device}")
