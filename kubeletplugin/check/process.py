# SPDX-License-Identifier: Apache-2.0
"""How this node's kubelet and container runtime were started: their command lines in the host's /proc.

kubelet is a process of its own, except in two distributions, which run it inside of another process:

- k3s overwrites its command line, which may have secrets, and writes its arguments to the annotation k3s.io/node-args
  of its Node (pkg/nodeconfig). rke2 does the same with its own name, and has a process kubelet.
- MicroK8s' kubelite reads kubelet's flags from a file.

Flags are read like spf13/pflag does: the last one counts, but feature gates add up, and `_` is `-` in a name.
"""

import itertools
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .host import Host

DEFAULT_ROOT = "/var/lib/kubelet"

_KUBELET, _KUBELITE, _K3S = "kubelet", "kubelite", ("k3s-server", "k3s-agent")
_GATES = "feature-gates"
_TEXTS = ("config", "config-dir", "root-dir", "hostname-override", "container-runtime-endpoint")
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_DATA_FOLDERS = ("--data-dir", "-d")
_CONFIG_FILE = ("--config", "-config", "-c")  # for containerd and CRI-O
_NAMESPACES = re.compile(r"^NSpid:\s+\d+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Flags:
    """kubelet's flags. Paths and the endpoint of the runtime are empty if they were not given."""

    config: str = ""
    config_dir: str = ""
    root_dir: str = DEFAULT_ROOT
    hostname_override: str = ""
    runtime_endpoint: str = ""
    gates: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Started:
    """A running kubelet. `by` names the source of its flags, `change` where to set a flag, and `restart` how a change
    takes effect. Relative paths start from `folder`.
    """

    by: str
    flags: Flags
    change: str
    restart: str = "restart kubelet"
    folder: str = "/"


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why kubelet's flags are unknown, and how to find them out."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Process:
    pid: str
    name: str
    arguments: tuple[str, ...]


def find_kubelet(host: Host, node_name: str, arguments: Mapping[str, Sequence[str]]) -> Started | Unseen:
    """This node's kubelet. `arguments` are those of k3s or rke2 in its Node, by the name of the distribution."""
    found = list(_processes(host, (_KUBELET, _KUBELITE, *_K3S)))
    kubelets = [(process, parse_flags(process.arguments)) for process in found if process.name == _KUBELET]
    named = [kubelet for kubelet in kubelets if node_name and kubelet[1].hostname_override == node_name]
    if len(kubelets) > 1 and len(named) != 1:
        pids = ", ".join(process.pid for process, _ in kubelets)
        return Unseen(
            f"there are {len(kubelets)} processes kubelet ({pids})",
            "with --node-name, check uses the process that has this --hostname-override",
        )
    distribution, of_node = next(iter(arguments.items()), ("", ()))
    if kubelets:
        process, flags = (named or kubelets)[0]
        place = ("where it is started (`systemctl cat kubelet`)", "restart kubelet")
        change, restart = _rancher_place(distribution) if distribution else place
        return Started(f"process {process.pid}", flags, change, restart, f"/proc/{process.pid}/cwd")
    if distribution:
        flags = parse_flags(rancher_arguments(distribution, of_node))
        return Started(f"annotation {distribution}.io/node-args", flags, *_rancher_place(distribution))
    for process in found:
        if process.name in _K3S:
            return Unseen(
                "k3s hides its command line", "with --kubeconfig and --node-name, check reads it from the Node"
            )
        if process.name == _KUBELITE and (started := _kubelite(host, process)):
            return started
    return Unseen(
        "no process kubelet was found",
        "start kubelet; in a container, mount the host's / with its /proc (`-v /:/host-root` does so)",
    )


def parse_flags(arguments: Iterable[str]) -> Flags:
    """The relevant flags, each given as `--name=value` or `--name value`."""
    texts: dict[str, str] = {}
    gates: dict[str, bool] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            continue
        written, equals, value = argument[2:].partition("=")
        name = written.replace("_", "-")
        if name not in (_GATES, *_TEXTS):
            continue
        if not equals:
            value = next(rest, "")
        if name == _GATES:
            gates |= dict(_gates(value))
        else:
            texts[name] = value
    return Flags(
        config=texts.get("config", ""),
        config_dir=texts.get("config-dir", ""),
        root_dir=texts.get("root-dir") or DEFAULT_ROOT,
        hostname_override=texts.get("hostname-override", "").strip().lower(),
        runtime_endpoint=texts.get("container-runtime-endpoint", ""),
        gates=gates,
    )


def rancher_arguments(distribution: str, arguments: Sequence[str]) -> list[str]:
    """kubelet's flags, as k3s or rke2 derives them from its own arguments."""
    data, given = f"/var/lib/rancher/{distribution}", []
    for name, value in itertools.pairwise(arguments):
        if name == "--kubelet-arg":
            flag, equals, text = value.removeprefix("--").partition("=")
            given.append(f"--{flag.rstrip('+-')}{equals}{text}")
        elif name in _DATA_FOLDERS:
            data = value
    return [f"--config-dir={posixpath.join(data, 'agent/etc/kubelet.conf.d')}", *given]


def _gates(text: str) -> Iterator[tuple[str, bool]]:
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if equals:
            yield name.strip(), value.strip() in _TRUE


def _rancher_place(distribution: str) -> tuple[str, str]:
    return f"as `kubelet-arg` in /etc/rancher/{distribution}/config.yaml", f"`systemctl restart '{distribution}*'`"


def _kubelite(host: Host, process: _Process) -> Started | None:
    """MicroK8s' kubelite: a file with one flag on each line, in which variables stand for the snap's folders."""
    path = next((flag.partition("=")[2] for flag in process.arguments if flag.startswith("--kubelet-args-file=")), "")
    text = host.read(path) if path else None
    if not isinstance(text, str):
        return None
    data = posixpath.dirname(posixpath.dirname(path))
    text = text.replace("${SNAP_DATA}", data).replace(
        "${SNAP_COMMON}", posixpath.join(posixpath.dirname(data), "common")
    )
    lines = [line.strip().replace('"', "") for line in text.splitlines()]
    return Started(
        f"process {process.pid} and {path}", parse_flags(lines), f"on a line of {path}", "`snap restart microk8s`"
    )


def runtime_config(host: Host, program: str) -> str:
    """The absolute path of the main file on the command line of the node's container runtime. Empty if there is none,
    or if there are several processes of this name, for example Docker's own containerd.
    """
    found = [process.arguments for process in _processes(host, (program,))]
    if len(found) != 1:
        return ""
    (arguments,) = found
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if name in _CONFIG_FILE:
            path = value if equals else following
            return path if posixpath.isabs(path) else ""
    return ""


def _processes(host: Host, names: Collection[str]) -> Iterator[_Process]:
    """The processes with these names in the host's own PID namespace. Others belong to other nodes, such as kind's."""
    entries = host.entries("/proc")
    for path in entries if isinstance(entries, list) else ():
        pid = posixpath.basename(path)
        name = host.read(f"{path}/comm") if pid.isdecimal() else None
        if not isinstance(name, str) or name.strip() not in names:
            continue
        command, status = host.read(f"{path}/cmdline"), host.read(f"{path}/status")
        if isinstance(command, str) and command and isinstance(status, str) and _NAMESPACES.search(status):
            yield _Process(pid, name.strip(), tuple(command.rstrip("\0").split("\0")))
