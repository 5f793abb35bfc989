# SPDX-License-Identifier: Apache-2.0
"""All CDI devices of a node: which spec a qualified name means, and what injecting it changes.

As the runtimes' library does it. Later directories win over earlier ones; the same name twice in one
directory is a conflict, and then nobody has it. A broken file takes only its own devices away.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from .cdi_spec import VERSIONS, CdiError, Device, Edits, Spec, load

_SUFFIXES = (".json", ".yaml")


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A spec and where it came from. `priority` is the directory's index."""

    path: str
    priority: int
    spec: Spec


@dataclass(frozen=True, slots=True)
class Registry:
    """Qualified device names -> file and device; and what was wrong with the files, by path."""

    devices: Mapping[str, tuple[SpecFile, Device]]
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


def resolve(files: Iterable[SpecFile]) -> Registry:
    """Which devices the files define together. Files come lowest priority first."""
    devices: dict[str, tuple[SpecFile, Device]] = {}
    errors: dict[str, tuple[str, ...]] = {}
    conflicts = set()
    for file in files:
        for device in file.spec.devices:
            name = f"{file.spec.kind}={device.name}"
            other = devices[name][0] if name in devices else None
            if other is not None and other.priority == file.priority:
                conflicts.add(name)
                message = f'conflicting device "{name}" (specs "{file.path}", "{other.path}")'
                for path in (file.path, other.path):
                    errors[path] = (*errors.get(path, ()), message)
            else:
                devices[name] = (file, device)
    return Registry({name: found for name, found in devices.items() if name not in conflicts}, errors)


def scan(directories: Sequence[Path], newest: str = VERSIONS[-1]) -> Registry:
    """The devices in these directories, lowest priority first, for a runtime that knows CDI up to `newest`."""
    files, errors = [], {}
    for priority, directory in enumerate(directories):
        for path in _spec_paths(directory):
            try:
                spec = load(path.read_text(encoding="utf-8"), is_yaml=path.suffix == ".yaml", newest=newest)
            except FileNotFoundError:
                continue  # removed since the directory was read
            except (OSError, UnicodeDecodeError, CdiError) as error:
                errors[str(path)] = (f'failed to load CDI Spec "{path}": {error}',)
            else:
                files.append(SpecFile(str(path), priority, spec))
    registry = resolve(files)
    return Registry(registry.devices, {**errors, **registry.errors})


def _spec_paths(directory: Path) -> Iterator[Path]:
    if directory.is_dir():
        yield from sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES and path.is_file())


def inject(registry: Registry, names: Iterable[str]) -> Edits:
    """What these devices change in a container. Repeated names count once, as in containerd. Raises CdiError."""
    wanted = tuple(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in registry.devices]
    if unknown:
        raise CdiError(f"unresolvable CDI devices {', '.join(unknown)}")
    edits, seen = Edits(), set()
    for name in wanted:
        file, device = registry.devices[name]
        if file.path not in seen:
            seen.add(file.path)
            edits += file.spec.edits
        edits += device.edits
    return edits
