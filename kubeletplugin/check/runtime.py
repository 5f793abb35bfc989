# SPDX-License-Identifier: Apache-2.0
"""The container runtime of the node: whether it injects CDI devices and reads the folder of our specs.

The runtime itself is asked, over its socket (see `cri`). Where there is no socket, the runtime's own program prints the
configuration that its next start would use. Nothing here knows how runtimes read their files.

CDI is enabled by default in containerd 2.x, disabled by default in 1.7, and always enabled in CRI-O.
"""

import enum
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dra_driver.errors import ParseError, ProgramError
from dra_driver.process.parsing import load
from dra_driver.process.programs import Ended

from ..containers.runtime import version_of
from ..errors import RuntimeAnswerError
from ..host.programs import PROGRAM_SECONDS, HostPrograms
from .cri import RuntimeAnswer, ask_runtime
from .host import Host
from .process import runtime_config

USUAL_SOCKETS: Final = (
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
)
"""The sockets of containerd, of its copies in k3s and rke2, k0s and MicroK8s, and of CRI-O."""

_RELEASE: Final = re.compile(r"\bv?([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4})")
_MAIN_FILE: Final = "/etc/containerd/config.toml"
_DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
_CONTAINERD_TABLES: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


class Runtime(enum.StrEnum):
    """A container runtime."""

    CONTAINERD = "containerd"
    CRI_O = "cri-o"


_PROGRAMS: Final = {Runtime.CONTAINERD: ("containerd", "config", "dump"), Runtime.CRI_O: ("crio", "config")}
_SHOWN_BY: Final = {
    Runtime.CONTAINERD: "`crictl info` on the node shows enableCDI and cdiSpecDirs of containerd",
    Runtime.CRI_O: "`crio status config` on the node shows cdi_spec_dirs of CRI-O",
}


@dataclass(frozen=True, slots=True)
class RuntimeAccess:
    """How this process reaches the runtime. `programs` are those of the host. `socket` and `config` are paths on the
    host, empty for the usual paths. `visible` tells whether this process sees the host's files.
    """

    host: Host
    programs: HostPrograms
    socket: str = ""
    config: str = ""
    visible: bool = True


@dataclass(frozen=True, slots=True)
class CdiConfig:
    """Whether a runtime injects CDI devices, and the folders in which it looks for specs."""

    enabled: bool
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What is known about the runtime.

    `wanted` is the folder of our specs. `reported` is the runtime's name and release (`containerd://2.1.4`), empty if
    unknown. `kind` is None for another runtime, or if it is unknown. `cdi` is None if the configuration is unknown, and
    then `problem` tells why, and `advice` what to do. `reads` tells whether the runtime reads `wanted`. `command`
    printed the configuration, if the runtime itself did not answer. `main` is containerd's main file.
    """

    wanted: str
    reported: str = ""
    kind: Runtime | None = None
    cdi: CdiConfig | None = None
    problem: str = ""
    advice: str = ""
    reads: bool = False
    command: str = ""
    main: str = ""

    @property
    def name(self) -> str:
        """`containerd 2.1.4`, or only the name."""
        return self.reported.replace("://", " ") or str(self.kind)

    @property
    def is_ready(self) -> bool:
        """Whether the runtime finds our specs."""
        return self.cdi is not None and self.cdi.enabled and self.reads


def runtime_of(reported: str) -> Runtime | None:
    """The runtime of a text such as `containerd://2.1.4`. None for another one, or an empty text."""
    name = reported.partition("://")[0]
    return Runtime(name) if name in tuple(Runtime) else None


def socket_of(endpoint: str) -> str:
    """The path of an endpoint such as `unix:///run/crio/crio.sock`, or of a path. Empty for another endpoint."""
    path = endpoint.removeprefix("unix://")
    return path if path.startswith("/") else ""


def read_runtime(access: RuntimeAccess, reported: str, wanted: str) -> RuntimeFacts:
    """Ask the runtime. `reported` is the Node's containerRuntimeVersion, empty if unknown. `wanted` is the folder to
    which specs are written.
    """
    facts = RuntimeFacts(wanted, reported, runtime_of(reported))
    if not access.visible:
        advice = "mount the host's / read-only and name it with --host-root, or run this command on the host"
        return replace(facts, problem="it cannot be reached from this container", advice=advice)
    if reported and facts.kind is None:
        advice = "check that it reads CDI specs from --cdi-root, or use containerd or CRI-O"
        return replace(facts, problem=f"this command cannot ask {reported}", advice=advice)
    usual = (access.socket,) if access.socket else USUAL_SOCKETS
    sockets = [path for path in usual if access.host.exists(path)]
    return _asked(access, facts, sockets) if sockets else _printed(access, facts)


def _asked(access: RuntimeAccess, facts: RuntimeFacts, sockets: Sequence[str]) -> RuntimeFacts:
    answers: dict[str, RuntimeAnswer] = {}
    problems: list[str] = []
    for path in sockets:
        try:
            answers[path] = ask_runtime(access.host, path)
        except RuntimeAnswerError as error:
            problems.append(str(error))
    expected = tuple(Runtime) if facts.kind is None else (facts.kind,)
    of_node = [answer for answer in answers.values() if runtime_of(answer.reported) in expected]
    if len(of_node) == 1:
        return _told(access, facts, of_node[0])
    problems += [f"{path} is the socket of {answer.reported}" for path, answer in answers.items()]
    advice = f"name the socket that kubelet uses with --runtime-endpoint; {shown_by(facts.kind)}"
    return replace(facts, problem="; ".join(problems), advice=advice)


def _told(access: RuntimeAccess, facts: RuntimeFacts, answer: RuntimeAnswer) -> RuntimeFacts:
    facts = replace(facts, reported=answer.reported, kind=runtime_of(answer.reported))
    try:
        return _with_config(access, facts, cdi_of_answer(answer))
    except RuntimeAnswerError as error:
        return replace(facts, problem=str(error), advice=shown_by(facts.kind))


def _printed(access: RuntimeAccess, facts: RuntimeFacts) -> RuntimeFacts:
    """What the runtime's program prints. If it is unknown which runtime the node has, both are tried."""
    problems = [f"there is no socket {access.socket or 'of a container runtime in the usual places'}"]
    for kind in Runtime if facts.kind is None else (facts.kind,):
        try:
            cdi = cdi_of_text(kind, print_config(access, kind))
        except RuntimeAnswerError as error:
            problems.append(str(error))
        else:
            return _with_config(access, replace(facts, kind=kind, command=shlex.join(_command(access, kind))), cdi)
    return replace(facts, problem="; ".join(problems), advice=f"start the runtime; {shown_by(facts.kind)}")


def _with_config(access: RuntimeAccess, facts: RuntimeFacts, cdi: CdiConfig) -> RuntimeFacts:
    main = access.config or runtime_config(access.host, "containerd") or _MAIN_FILE
    return replace(facts, cdi=cdi, reads=reads(access.host, cdi, facts.wanted), main=main)


def shown_by(kind: Runtime | None) -> str:
    """The commands with which an administrator sees the configuration of the runtime."""
    return " or ".join(text for runtime, text in _SHOWN_BY.items() if kind in (None, runtime))


def reads(host: Host, cdi: CdiConfig, folder: str) -> bool:
    """Whether a runtime reads a folder of the host, by whichever way the path is written."""
    return host.canonical(folder) in map(host.canonical, cdi.folders)


def require_same_release(access: RuntimeAccess, facts: RuntimeFacts) -> None:
    """Raises RuntimeAnswerError if the runtime's program is known to be of another release than the runtime: it would
    print what that release makes of the configuration. Takes at most some seconds.
    """
    assert facts.kind is not None
    program = _PROGRAMS[facts.kind][0]
    try:
        found = _RELEASE.search(_run(access, program, "--version").output)
    except ProgramError:
        return  # print_config will tell
    running = version_of(facts.reported)
    if found and running and tuple(map(int, found[1].split("."))) != running:
        raise RuntimeAnswerError(f"`{program}` of the host is {found[1]}, which cannot tell what {facts.name} reads")


def print_config(access: RuntimeAccess, kind: Runtime) -> Mapping[str, Any]:
    """The TOML that the program of a runtime prints. Raises RuntimeAnswerError. Takes at most some seconds."""
    command = _command(access, kind)
    shown = f"`{shlex.join(command)}`"
    try:
        ended = _run(access, *command)
    except ProgramError as error:
        raise RuntimeAnswerError(f"{shown}: {error}") from None
    if ended.code:
        raise RuntimeAnswerError(f"{shown} {ended}")
    try:
        return tomllib.loads(ended.output)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RuntimeAnswerError(f"{shown} does not print TOML: {error}") from None


def _run(access: RuntimeAccess, *command: str) -> Ended:
    script = 'exec "$@" 2>/dev/null'  # containerd writes warnings there
    return access.programs.run("sh", ["-c", script, "sh", *command], PROGRAM_SECONDS)


def _command(access: RuntimeAccess, kind: Runtime) -> list[str]:
    program, *words = _PROGRAMS[kind]
    config = access.config or runtime_config(access.host, program)
    return [program, *(["--config", config] if config else []), *words]


def cdi_of_answer(answer: RuntimeAnswer) -> CdiConfig:
    """CDI in the answer of a runtime. Raises RuntimeAnswerError."""
    try:
        value = load(answer.config)
    except ParseError:  # whose text would show a part of the configuration
        raise RuntimeAnswerError(f"the configuration that {answer.reported} tells is not JSON") from None
    if runtime_of(answer.reported) is Runtime.CRI_O:
        return _cdi(True, _in(value, "crio", "CDISpecDirs"), "CDISpecDirs", answer.reported)
    return _cdi(_in(value, "enableCDI"), _in(value, "cdiSpecDirs"), "cdiSpecDirs", answer.reported)


def cdi_of_text(kind: Runtime, value: Mapping[str, Any]) -> CdiConfig:
    """CDI in the configuration that the program of a runtime prints. Raises RuntimeAnswerError."""
    if kind is Runtime.CRI_O:
        folders = _in(value, "crio", "runtime", "cdi_spec_dirs")  # the program prints defaults as comments
        return _cdi(True, list(_DEFAULT_FOLDERS) if folders is None else folders, "cdi_spec_dirs", kind)
    tables = (_in(value, "plugins", name) for name in _CONTAINERD_TABLES)
    table = next((candidate for candidate in tables if candidate is not None), None)
    if table is None:
        raise RuntimeAnswerError("containerd's CRI plugin is disabled, so kubelet cannot use it (disabled_plugins)")
    return _cdi(_in(table, "enable_cdi"), _in(table, "cdi_spec_dirs"), "cdi_spec_dirs", kind)


def _in(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _cdi(enabled: object, folders: object, key: str, who: str) -> CdiConfig:
    """`enabled` may be missing in containerd 2.x, and CDI is enabled then."""
    listed = isinstance(folders, list) and all(isinstance(folder, str) for folder in folders)
    if not listed or not isinstance(enabled, bool | None):
        raise RuntimeAnswerError(f"{who} does not tell its folders of CDI specs ({key})")
    assert isinstance(folders, list)
    return CdiConfig(enabled is not False, tuple(folders))
