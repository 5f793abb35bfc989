# SPDX-License-Identifier: Apache-2.0
"""CDI in containerd's configuration.

The behaviour of the releases, from their cmd/containerd/server/config and internal/cri/config (1.7:
services/server/config, pkg/cri/config):

- 1.7 injects CDI devices only with `enable_cdi = true` in [plugins."io.containerd.grpc.v1.cri"]. 2.x does so unless it
  is false, in [plugins."io.containerd.cri.v1.runtime"] from config version 3 on, and converts the older table.
- Files named by `imports` are read after the file that names them. If two files have the table of the same plugin, 1.7
  uses *only* the later table, while 2.x merges them key by key. So for 1.7, a drop-in cannot add a key to an existing
  table: it would remove all other keys of it.
- A drop-in must not have a higher config version than the main file.

k3s, rke2 and MicroK8s generate the main file from a template at each start. With containerd 2, k3s and rke2 import
config-v3.toml.d beside it, where a drop-in works as elsewhere. A table that a template already has cannot be appended
to it.
"""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..finding import CheckResult, NodeCheck
from .host import DropIn, Host, TomlFile, Unreadable, array, read_toml, strings, with_keys

CHECK = NodeCheck("cdi in containerd")
CONFIGS = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
)
"""The places of the main file in distributions, the usual one first."""
DEFAULT_FOLDERS = ("/etc/cdi", "/var/run/cdi")

_OLD, _NEW, _OLDEST = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "cri"
_DROP_IN = "99-dra-driver-gpu-cdi.toml"
_CRI_PLUGINS = (_OLDEST, _OLD, _NEW, "io.containerd.cri.v1.images")
_MOST_FILES = 200


@dataclass(frozen=True, slots=True)
class _Distribution:
    """A distribution that generates main files in `folder` from `template`, where {} is -v3 from config version 3 on.
    `units` must be restarted. `may_copy` tells whether the generated file can be used as the template.
    """

    folder: str
    template: str
    units: str
    may_copy: bool


_DISTRIBUTIONS = (
    _Distribution("/var/lib/rancher/k3s/", "config{}.toml.tmpl", "'k3s*'", may_copy=True),
    _Distribution("/var/lib/rancher/rke2/", "config{}.toml.tmpl", "'rke2*'", may_copy=True),
    # The generated file has the folders of one revision of the snap.
    _Distribution("/var/snap/microk8s/", "containerd-template.toml", "snap.microk8s.daemon-containerd", may_copy=False),
)


@dataclass(frozen=True, slots=True)
class ContainerdFacts:
    """The files in the order in which containerd reads them, the main one first (none: `main` does not exist), those
    that cannot be read, and containerd's version, () if unknown. `wanted` is the folder to which specs are written, and
    `same` the path without links of each folder. `template` is the file from which a distribution makes the main one.
    """

    main: str
    files: tuple[TomlFile, ...]
    problems: tuple[Unreadable, ...]
    version: tuple[int, ...]
    wanted: str
    same: Mapping[str, str] = field(default_factory=dict)
    template: TomlFile | Unreadable | None = None

    @property
    def merges(self) -> bool:
        """Whether tables of two files are merged."""
        return self.version[:1] >= (2,) or self.config_version >= 3

    @property
    def config_version(self) -> int:
        """`version` of the main file. 2 if there is no file, because every release reads that."""
        if not self.files:
            return 2
        version = self.files[0].value.get("version", 1)
        return version if isinstance(version, int) else 1

    @property
    def distribution(self) -> _Distribution | None:
        """The distribution that generates the main file, or None."""
        return next((one for one in _DISTRIBUTIONS if self.main.startswith(one.folder)), None)

    @property
    def service(self) -> str:
        """The systemd unit to restart."""
        return self.distribution.units if self.distribution else "containerd"


@dataclass(frozen=True, slots=True)
class _Setting:
    """The value of a key, and the file that sets it (None: the default)."""

    value: Any
    file: TomlFile | None = None
    table: str = ""

    def place(self, key: str) -> str:
        """`/etc/containerd/config.toml, line 12`, or only the file."""
        if self.file is None:
            return "the default"
        line = self.file.line(("plugins", self.table), key)
        return f"{self.file.path}, line {line}" if line else self.file.path


def read_containerd(host: Host, main: str, version: tuple[int, ...], wanted: str) -> ContainerdFacts:
    """Read the main file and all imported files, each once."""
    files: list[TomlFile] = []
    problems: list[Unreadable] = []
    pending, seen = [main], set[str]()
    while pending and len(seen) < _MOST_FILES:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        file = read_toml(host, path)
        if isinstance(file, TomlFile):
            files.append(file)
            pending += _imports(host, file, problems)
        elif isinstance(file, Unreadable):
            problems.append(file)
        elif path != main:
            problems.append(Unreadable(path, "it does not exist, but is imported"))
    facts = ContainerdFacts(main, tuple(files), tuple(problems), version, wanted)
    folders = {wanted, *DEFAULT_FOLDERS, *(_settings(facts)[1].value or ())}
    same = {one: host.canonical(one) for one in folders}
    template = read_toml(host, _template(facts)) if facts.distribution else None
    return replace(facts, same=same, template=template)


def containerd_findings(facts: ContainerdFacts) -> Iterator[CheckResult]:
    """Whether CDI is enabled and containerd reads our folder, and what to write if not."""
    if facts.problems:
        for problem in facts.problems:
            yield CHECK.warned(str(problem), "correct or create the file; containerd itself may not start without it")
        return
    obstacle = _disabled(facts) or _hidden(facts)
    if obstacle:
        yield obstacle
        return
    enabled, folders = _settings(facts)
    remedy = _remedy(facts, enabled.value is not True)
    if enabled.value is None:
        if facts.version:
            text = f"{_version(facts)} has CDI disabled, because {facts.main} does not set `enable_cdi = true`"
            yield CHECK.failed(text, remedy)
        else:
            text = f"{facts.main} does not set enable_cdi, so CDI is disabled in containerd 1.7 and enabled in 2.x"
            yield CHECK.warned(f"{text}, and the version of this containerd is unknown", f"for 1.7, {remedy}")
        return
    if enabled.value is not True:
        yield CHECK.failed(f"CDI is disabled by enable_cdi ({enabled.place('enable_cdi')})", remedy)
        return
    if folders.value is None:
        place = folders.place("cdi_spec_dirs")
        yield CHECK.failed(
            f"cdi_spec_dirs is not a list of folders ({place})",
            f"write `cdi_spec_dirs = {array(DEFAULT_FOLDERS)}` there",
        )
    elif not _reads(facts, folders.value):
        listed = ", ".join(folders.value) or "none"
        text = f"specs are written to {facts.wanted}, and containerd reads {listed} ({folders.place('cdi_spec_dirs')})"
        yield CHECK.failed(text, f"{remedy}; or run the plugin with --cdi-root of a folder that it reads")
    else:
        yield CHECK.passed(f"on ({enabled.place('enable_cdi')}), reads {facts.wanted}")


def containerd_drop_in(facts: ContainerdFacts) -> DropIn | None:
    """The file that corrects the configuration. None if nothing is wrong, or if a file is written in a way that this
    command does not change.
    """
    enabled, folders = _settings(facts)
    if (
        facts.problems
        or _disabled(facts)
        or folders.value is None
        or (enabled.value is True and _reads(facts, folders.value))
    ):
        return None
    if not facts.files:
        return None if facts.distribution else DropIn(facts.main, _body(facts, folders.value), facts.service)
    folder = _imported_folder(facts)
    replaces = not facts.merges and any(_table(file) is not None for file in _others(facts))
    if folder is None or replaces:
        return _changed_file(facts, enabled, folders.value)
    return DropIn(posixpath.join(folder, _DROP_IN), _body(facts, folders.value), facts.service)


def _changed_file(facts: ContainerdFacts, enabled: _Setting, folders: Sequence[str]) -> DropIn | None:
    """A change of the file whose table of the plugin counts, or of the template from which it is made."""
    keys: dict[str, bool | Sequence[str]] = {} if enabled.value is True else {"enable_cdi": True}
    keys |= {} if _reads(facts, folders) else {"cdi_spec_dirs": (*folders, facts.wanted)}
    file = next((one for one in reversed(facts.files) if _table(one)), facts.files[0])
    made_from = None
    if file.path == facts.main and facts.distribution:
        if isinstance(facts.template, TomlFile):
            file = facts.template
        elif facts.template is None and facts.distribution.may_copy:
            made_from = _template(facts)
        else:
            return None
    found = _table(file)
    text = with_keys(file, ("plugins", found[0] if found else _name(facts)), keys)
    if text is None:
        return None
    if made_from:
        return DropIn(made_from, text, facts.service, base=file.text)
    return DropIn(file.path, text, facts.service, base=file.text, replaces=True)


def _settings(facts: ContainerdFacts) -> tuple[_Setting, _Setting]:
    """enable_cdi (None: not set, and the release is unknown or has CDI disabled by default) and cdi_spec_dirs."""
    default = True if facts.version[:1] >= (2,) or facts.config_version >= 3 else None
    enabled, folders = _Setting(default), _Setting(DEFAULT_FOLDERS)
    for file in facts.files:
        found = _table(file)
        if found is None:
            continue
        name, table = found
        if not facts.merges:
            enabled, folders = _Setting(default), _Setting(DEFAULT_FOLDERS)
        if "enable_cdi" in table:
            enabled = _Setting(table["enable_cdi"], file, name)
        if "cdi_spec_dirs" in table:
            folders = _Setting(strings(table["cdi_spec_dirs"]), file, name)
    return enabled, folders


def _table(file: TomlFile) -> tuple[str, Mapping[str, Any]] | None:
    """The name and content of the CRI plugin's table in one file."""
    for name in (_NEW, _OLD, _OLDEST):
        table = file.table("plugins", name)
        if table is not None:
            return name, table
    return None


def _reads(facts: ContainerdFacts, folders: Iterable[str]) -> bool:
    return facts.same.get(facts.wanted, facts.wanted) in {facts.same.get(one, one) for one in folders}


def _body(facts: ContainerdFacts, folders: Sequence[str]) -> str:
    listed = folders if _reads(facts, folders) else (*folders, facts.wanted)
    version = min(facts.config_version, 3)
    lines = [f"version = {version}", "", *_lines(facts, listed)]
    return "\n".join(lines) + "\n"


def _lines(facts: ContainerdFacts, folders: Sequence[str]) -> list[str]:
    return [f'[plugins."{_name(facts)}"]', "  enable_cdi = true", f"  cdi_spec_dirs = {array(folders)}"]


def _name(facts: ContainerdFacts) -> str:
    """The plugin's name in a file with the config version of the main file."""
    version = facts.config_version
    return _NEW if version >= 3 else _OLD if version == 2 else _OLDEST


def _others(facts: ContainerdFacts) -> list[TomlFile]:
    """The files without the one that --fix has written."""
    return [file for file in facts.files if posixpath.basename(file.path) != _DROP_IN]


def _disabled(facts: ContainerdFacts) -> CheckResult | None:
    """A failure if the CRI plugin is disabled, as in the packages of Docker."""
    for file in facts.files:
        names = [name for name in strings(file.value.get("disabled_plugins")) or () if name in _CRI_PLUGINS]
        if names:
            text = f"kubelet cannot use this containerd: disabled_plugins in {file.path} has {', '.join(names)}"
            return CHECK.failed(text, f"remove {', '.join(names)} from it and restart containerd")
    return None


def _hidden(facts: ContainerdFacts) -> CheckResult | None:
    """A failure if our drop-in hides a table that was written later."""
    ours = [file for file in facts.files if file not in _others(facts)]
    theirs = [file for file in _others(facts) if _table(file) is not None]
    if facts.merges or not ours or not theirs or not facts.version:
        return None
    text = f"{_version(facts)} reads {ours[0].path} instead of the whole table of its plugin in {theirs[-1].path}"
    return CHECK.failed(
        text, f"set `enable_cdi = true` in {theirs[-1].path}, remove {ours[0].path}, and restart containerd"
    )


def _imported_folder(facts: ContainerdFacts) -> str | None:
    """A folder of which the main file imports every .toml file."""
    patterns = strings(facts.files[0].value.get("imports")) or ()
    for pattern in patterns:
        folder, name = posixpath.split(posixpath.join(posixpath.dirname(facts.main), pattern))
        if name in ("*", "*.toml") and "*" not in folder:
            return folder
    return None


def _remedy(facts: ContainerdFacts, switch: bool) -> str:
    """What to write, and where."""
    restart = f"`systemctl restart {facts.service}`" if facts.distribution else "restart containerd"
    drop_in = containerd_drop_in(facts)
    if drop_in is not None and not drop_in.replaces and not drop_in.base:
        return f"run this with --fix, which writes {drop_in.path} ({drop_in.summary}), and {restart}"
    if not facts.files:
        return restart
    folders = _settings(facts)[1]
    listed = folders.value or DEFAULT_FOLDERS
    keys = ["enable_cdi = true"] if switch else []
    keys += [] if _reads(facts, listed) else [f"cdi_spec_dirs = {array((*listed, facts.wanted))}"]
    present = [(file, found[0]) for file in facts.files if (found := _table(file))]
    path = present[-1][0].path if present else facts.main
    edited = _template(facts) if path == facts.main else path
    copies = edited != path and facts.template is None and facts.distribution and facts.distribution.may_copy
    if present:
        file, name = present[-1]
        line = file.line(("plugins", name))
        where = f'in {edited}, in table [plugins."{name}"]' + (f" (line {line})" if line else "") + ", set"
    else:
        where = f'append to {edited} [plugins."{_name(facts)}"] with'
    text = f"{where} {' and '.join(f'`{key}`' for key in keys)}, and {restart}"
    if copies:
        text = f"copy {facts.main}, which is generated at each start, to {edited}; {text}"
    if drop_in is None:
        return f"{text}; --fix leaves this to you, because it does not change a file that is written like this one"
    return f"{text}; --fix changes {drop_in.path} so" + (f" and keeps {drop_in.backup}" if drop_in.replaces else "")


def _template(facts: ContainerdFacts) -> str:
    """The file to change instead of the main one."""
    if facts.distribution is None:
        return facts.main
    name = facts.distribution.template.format("-v3" if facts.config_version >= 3 else "")
    return posixpath.join(posixpath.dirname(facts.main), name)


def _version(facts: ContainerdFacts) -> str:
    return "containerd " + ".".join(map(str, facts.version))


def _imports(host: Host, file: TomlFile, problems: list[Unreadable]) -> Iterator[str]:
    """The paths that a file imports. Relative ones are beside the file."""
    value = file.value.get("imports", [])
    patterns = strings(value)
    if patterns is None:
        problems.append(Unreadable(file.path, "imports is not a list of paths"))
        return
    for pattern in patterns:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), pattern))
        if "*" not in path:
            yield path
            continue
        if "*" in posixpath.dirname(path):
            problems.append(Unreadable(file.path, f"imports {pattern}: this command does not follow folders with *"))
            continue
        matches = host.matches(path)
        if isinstance(matches, Unreadable):
            problems.append(matches)
        else:
            yield from matches
