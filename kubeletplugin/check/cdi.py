# SPDX-License-Identifier: Apache-2.0
"""CDI in the container runtime: the findings, what an administrator has to write where, and the file of --fix.

--fix writes one file into a folder that the main file imports (containerd 2.x), or into crio.conf.d (CRI-O). Then the
runtime's program must print a configuration in which CDI works. Otherwise the file is removed again. containerd 1.7
does not merge tables of two files, and its program names no folders of imports, so nothing is written for it.

k3s, rke2 and MicroK8s generate containerd's main file from a template at each start.
"""

import json
import posixpath
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.process.programs import excerpt

from ..containers.runtime import version_of
from ..errors import RuntimeAnswerError
from ..finding import CheckResult, NodeCheck
from .dropin import DropIn, remove, write
from .host import Host
from .runtime import (
    CdiConfig,
    Runtime,
    RuntimeAccess,
    RuntimeFacts,
    cdi_of_text,
    print_config,
    reads,
    require_same_release,
)

CHECK: Final = NodeCheck("container runtime")
FIX: Final = NodeCheck("fix")

_CHECKS: Final = {Runtime.CONTAINERD: NodeCheck("cdi in containerd"), Runtime.CRI_O: NodeCheck("cdi in cri-o")}
_NEW_TABLE, _OLD_TABLE = "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"
_CRIO_FOLDER: Final = "/etc/crio/crio.conf.d"
_NAME: Final = "99-dra-driver-gpu-cdi"


@dataclass(frozen=True, slots=True)
class _Distribution:
    """A distribution that generates main files below `folder`. `edit` tells what to edit in place of such a file."""

    folder: str
    edit: str
    restart: str


_RANCHER_EDIT: Final = (
    "in config.toml.tmpl beside {main} (a copy of that file, if there is none; for containerd 2.x, in a new file in"
    " config-v3.toml.d)"
)
_DISTRIBUTIONS: Final = (
    _Distribution("/var/lib/rancher/k3s/", _RANCHER_EDIT, "systemctl restart 'k3s*'"),
    _Distribution("/var/lib/rancher/rke2/", _RANCHER_EDIT, "systemctl restart 'rke2*'"),
    _Distribution(
        "/var/snap/microk8s/",
        "in /var/snap/microk8s/current/args/containerd-template.toml",
        "systemctl restart snap.microk8s.daemon-containerd",
    ),
)


def cdi_findings(facts: RuntimeFacts) -> Iterator[CheckResult]:
    """Whether the runtime will find our CDI specs. Nothing is a failure that the runtime did not tell itself."""
    kind, cdi = facts.kind, facts.cdi
    if kind is None or cdi is None:
        yield CHECK.warned(f"whether it uses our CDI specs is unknown: {facts.problem}", facts.advice)
        return
    check, source = _CHECKS[kind], f", according to `{facts.command}`" if facts.command else ""
    tell = check.warned if facts.command else check.failed
    advice = f"{remedy(facts)}; --fix does so where the runtime reads additional files"
    if not cdi.enabled:
        yield tell(f"{facts.name} has CDI disabled (enable_cdi = false){source}", advice)
    elif not facts.reads:
        listed = excerpt(", ".join(cdi.folders)) or "none"
        text = f"specs are written to {facts.wanted}, and {facts.name} reads {listed}{source}"
        yield tell(text, f"{advice}; or run the plugin with --cdi-root of a folder that it reads")
    else:
        yield check.passed(f"{facts.name} has CDI enabled and reads {facts.wanted}{source}")


def remedy(facts: RuntimeFacts) -> str:
    """What to write where, and how to restart the runtime."""
    cdi = facts.cdi
    assert cdi is not None
    lines = " and ".join(f"`{line}`" for line in _lines(facts, cdi))
    if facts.kind is Runtime.CRI_O:
        where = f"in a file in {_CRIO_FOLDER}, in table [crio.runtime]"
    else:
        distribution = _distribution(facts.main)
        edit = distribution.edit.format(main=facts.main) if distribution else f"in {facts.main}"
        where = f"{edit}, in table {_tables(facts)}"
    return f"{where}, set {lines}, and `{_restart(facts)}`"


def _tables(facts: RuntimeFacts) -> str:
    old = f'[plugins."{_OLD_TABLE}"]'
    is_old = () < version_of(facts.reported) < (2,)
    return old if is_old else f'[plugins."{_NEW_TABLE}"] (version 2 of the file: {old})'


def fix_runtime(access: RuntimeAccess, facts: RuntimeFacts) -> CheckResult | None:
    """Write the file that makes the runtime find our specs. None if there is nothing to correct, or if nothing is known
    about the runtime. Raises FixError.
    """
    if facts.kind is None or facts.cdi is None or facts.is_ready:
        return None
    restart = f"`{_restart(facts)}` on the node, which does not stop running containers"
    try:
        require_same_release(access, facts)
        printed = print_config(access, facts.kind)
        if _works(access, facts, printed):
            return FIX.warned("nothing was written: the configuration is right, but is not in use yet", restart)
        drop_ins = list(_drop_ins(access.host, facts, printed))
    except RuntimeAnswerError as error:
        return FIX.warned(f"nothing was written: {error}", remedy(facts))
    for drop_in in drop_ins:
        is_new = not access.host.exists(posixpath.dirname(drop_in.path))
        write(access.host, drop_in)
        if _has_effect(access, facts):
            text = f"{drop_in.path} was written, but is not in use yet: {drop_in.summary}"
            return FIX.warned(text, f"{restart}; to undo, `rm {drop_in.path}` and restart it again")
        remove(access.host, drop_in, with_folder=is_new)
    return FIX.warned("nothing was written: the runtime reads no additional file that enables CDI", remedy(facts))


def _has_effect(access: RuntimeAccess, facts: RuntimeFacts) -> bool:
    assert facts.kind is not None
    try:
        return _works(access, facts, print_config(access, facts.kind))
    except RuntimeAnswerError:  # the runtime would not start
        return False


def _works(access: RuntimeAccess, facts: RuntimeFacts, printed: Mapping[str, Any]) -> bool:
    assert facts.kind is not None
    cdi = cdi_of_text(facts.kind, printed)
    return cdi.enabled and reads(access.host, cdi, facts.wanted)


def _drop_ins(host: Host, facts: RuntimeFacts, printed: Mapping[str, Any]) -> Iterator[DropIn]:
    """The files that may help. Not every folder that containerd's program names is read, so each must be tried."""
    assert facts.cdi is not None
    lines = _lines(facts, facts.cdi)
    if facts.kind is Runtime.CRI_O:
        yield _drop_in(f"{_CRIO_FOLDER}/{_NAME}.conf", ["[crio.runtime]", *lines], facts)
        return
    version = _file_version(host, facts.main)
    if version < 2 or _distribution(facts.main):
        return
    table = _OLD_TABLE if version == 2 else _NEW_TABLE
    for folder in _imported_folders(printed):
        yield _drop_in(f"{folder}/{_NAME}.toml", [f"version = {version}", f'[plugins."{table}"]', *lines], facts)


def _drop_in(path: str, lines: Iterable[str], facts: RuntimeFacts) -> DropIn:
    return DropIn(path, "".join(f"{line}\n" for line in lines), _restart(facts))


def _imported_folders(printed: Mapping[str, Any]) -> Iterator[str]:
    """The folders of which containerd imports every .toml file."""
    patterns = printed.get("imports")
    for pattern in patterns if isinstance(patterns, list) else ():
        folder, name = posixpath.split(str(pattern))
        if name in ("*", "*.toml") and folder.startswith("/") and "*" not in folder:
            yield folder


def _file_version(host: Host, path: str) -> int:
    """`version` of containerd's main file, which its drop-ins must have, too. 0 if it is unknown."""
    text = host.read(path)
    try:
        version = tomllib.loads(text).get("version", 1) if isinstance(text, str) else 0
    except (tomllib.TOMLDecodeError, RecursionError):
        return 0
    return version if isinstance(version, int) else 0


def _lines(facts: RuntimeFacts, cdi: CdiConfig) -> list[str]:
    folders = cdi.folders if facts.reads else (*cdi.folders, facts.wanted)
    listed = f"cdi_spec_dirs = {json.dumps(folders, ensure_ascii=False)}"  # also an array of TOML
    enable = [] if facts.kind is Runtime.CRI_O or cdi.enabled else ["enable_cdi = true"]
    return enable if facts.reads else [*enable, listed]


def _distribution(main: str) -> _Distribution | None:
    return next((distribution for distribution in _DISTRIBUTIONS if main.startswith(distribution.folder)), None)


def _restart(facts: RuntimeFacts) -> str:
    if facts.kind is Runtime.CRI_O:
        return "systemctl restart crio"
    distribution = _distribution(facts.main)
    return distribution.restart if distribution else "systemctl restart containerd"
