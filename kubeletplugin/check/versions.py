# SPDX-License-Identifier: Apache-2.0
"""The releases of Kubernetes, kubelet and the container runtime, against those that this driver was made for.

A runtime must take CDI devices by the CRI's own field, which containerd does from 1.7 on; CRI-O's releases are
numbered as those of Kubernetes that they belong to.
"""

import re
from collections.abc import Iterator

from .finding import Finding, failed, passed, warned

KUBELET, RUNTIME = "kubelet version", "container runtime version"

OLDEST_MINOR, NEWEST_MINOR = 32, 37
ON_BY_DEFAULT = 34
"""The minor release from which DRA is on unless it is switched off."""

_OLDEST_RUNTIMES = {"containerd": ((1, 7), failed), "cri-o": ((1, OLDEST_MINOR), warned)}
_UNTOLD = "with --kubeconfig and --node-name the Node tells"


def minor_of(version: str) -> int | None:
    """36 of `v1.36.2-gke.100`; None when it is not told."""
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


def version_of(reported: str) -> tuple[int, ...]:
    """(2, 1, 4) of `containerd://v2.1.4-k3s1`; () when it is not told."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", reported.partition("://")[2])
    return tuple(map(int, found[1].split("."))) if found else ()


def release_finding(check: str, name: str, version: str, where: str = "") -> Finding:
    """Whether a part of Kubernetes (`name`) is of a release that is supported; `where` it is, for the passing line."""
    minor = minor_of(version)
    if minor is None:
        return warned(check, f"{name} does not tell its version ({version!r})", "see docs/install.md")
    if minor < OLDEST_MINOR:
        return failed(
            check, f"{name} {version} is older than 1.{OLDEST_MINOR}", f"upgrade to 1.{ON_BY_DEFAULT} or newer"
        )
    if minor > NEWEST_MINOR:
        return warned(
            check,
            f"{name} {version} is newer than 1.{NEWEST_MINOR}, the newest that this driver was tried with",
            "upgrade the driver where a newer one is to be had",
        )
    return passed(check, f"{name} {version}{where}")


def version_findings(kubelet: str, runtime: str) -> Iterator[Finding]:
    """`v1.36.2` and `containerd://2.1.4`, as a Node reports them; empty when nobody told."""
    if kubelet:
        yield release_finding(KUBELET, "kubelet", kubelet)
    else:
        yield warned(KUBELET, "not known", f"{_UNTOLD}; or `kubelet --version` on the host: 1.{OLDEST_MINOR} or newer")
    yield _runtime(runtime)


def _runtime(reported: str) -> Finding:
    name, version = reported.partition("://")[0], version_of(reported)
    if not reported:
        return warned(RUNTIME, "not known", f"{_UNTOLD}; or `containerd --version` on the host: 1.7 or newer")
    if name not in _OLDEST_RUNTIMES or not version:
        return warned(
            RUNTIME,
            f"{reported} is none that this driver was tried with",
            "use containerd or CRI-O, or see in its documentation that it takes CDI devices from kubelet",
        )
    oldest, finding = _OLDEST_RUNTIMES[name]
    wanted = ".".join(map(str, oldest))
    if version < oldest:
        return finding(RUNTIME, f"{reported} is older than {wanted}", f"upgrade it to {wanted} or newer")
    return passed(RUNTIME, reported)
