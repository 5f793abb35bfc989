# SPDX-License-Identifier: Apache-2.0
"""CDI in CRI-O's configuration, which is always on: only the folders that it reads can be wrong.

crio.conf is read first, then every file below crio.conf.d in the order of their names; a key of a later file replaces
that of an earlier one (pkg/config of CRI-O).
"""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .dropin import DropIn
from .finding import CheckResult, failed, passed, warned
from .host import Host, Unreadable
from .toml_file import TomlFile, array, read_toml, strings

CHECK = "cdi in cri-o"
CONFIG = "/etc/crio/crio.conf"
DEFAULT_FOLDERS = ("/etc/cdi", "/var/run/cdi")

_TABLE = ("crio", "runtime")
_KEY = "cdi_spec_dirs"
_DROP_IN = "99-dra-driver-gpu-cdi.conf"


@dataclass(frozen=True, slots=True)
class CrioFacts:
    """As ContainerdFacts; `folder` is where drop-ins are."""

    files: tuple[TomlFile, ...]
    problems: tuple[Unreadable, ...]
    folder: str
    wanted: str
    same: Mapping[str, str] = field(default_factory=dict)


def read_crio(host: Host, main: str, wanted: str) -> CrioFacts:
    """crio.conf and its drop-ins."""
    folder = f"{main}.d"
    entries = host.entries(folder)
    problems = [entries] if isinstance(entries, Unreadable) else []
    paths = [main] if isinstance(entries, Unreadable) else [main, *entries]
    read = [read_toml(host, path) for path in paths]
    files = tuple(one for one in read if isinstance(one, TomlFile))
    problems += [one for one in read if isinstance(one, Unreadable)]
    facts = CrioFacts(files, tuple(problems), folder, wanted)
    folders = {wanted, *DEFAULT_FOLDERS, *(_folders(facts)[0] or ())}
    return CrioFacts(files, tuple(problems), folder, wanted, {one: host.canonical(one) for one in folders})


def crio_findings(facts: CrioFacts) -> Iterator[CheckResult]:
    """Whether CRI-O reads our folder."""
    if facts.problems:
        for problem in facts.problems:
            yield warned(CHECK, str(problem), "correct the file; CRI-O itself may not start with it")
        return
    folders, place = _folders(facts)
    if folders is None:
        yield failed(
            CHECK, f"{_KEY} is not a list of folders ({place})", f"write `{_KEY} = {array(DEFAULT_FOLDERS)}` there"
        )
    elif not _reads(facts, folders):
        text = f"specs are written to {facts.wanted}, and CRI-O reads {', '.join(folders) or 'none'} ({place})"
        lines = f"[crio.runtime]; {_line(facts, folders)}"
        yield failed(
            CHECK, text, f"run this with --fix, which writes {_path(facts)} ({lines}), and restart crio; or run the"
            " plugin with --cdi-root of a folder that it reads"
        )  # fmt: skip
    else:
        yield passed(CHECK, f"always on, reads {facts.wanted} ({place})")


def crio_drop_in(facts: CrioFacts) -> DropIn | None:
    """The file that mends it; None when nothing is wrong, or a file cannot be read."""
    folders, _ = _folders(facts)
    if facts.problems or folders is None or _reads(facts, folders):
        return None
    return DropIn(_path(facts), f"[crio.runtime]\n{_line(facts, folders)}\n", "crio")


def _folders(facts: CrioFacts) -> tuple[tuple[str, ...] | None, str]:
    """The folders (None: not a list), and the place that says so."""
    for file in reversed(facts.files):
        table = file.table(*_TABLE)
        if table is not None and _KEY in table:
            line = file.line(_TABLE, _KEY)
            return strings(table[_KEY]), f"{file.path}, line {line}" if line else file.path
    return DEFAULT_FOLDERS, "the default"


def _reads(facts: CrioFacts, folders: tuple[str, ...]) -> bool:
    return facts.same.get(facts.wanted, facts.wanted) in {facts.same.get(one, one) for one in folders}


def _line(facts: CrioFacts, folders: tuple[str, ...]) -> str:
    return f"{_KEY} = {array((*folders, facts.wanted))}"


def _path(facts: CrioFacts) -> str:
    return posixpath.join(facts.folder, _DROP_IN)
