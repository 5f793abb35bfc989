# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes release and the feature gates that decide. The user can name them. By default, they are those of the
cluster.

The API server names its release in `/version`, and its gates in the metric `kubernetes_feature_enabled` of `/metrics`,
which needs a right of its own. kube-scheduler does not name its gates; it is taken to have those of the API server.
Without a cluster, the release is the newest one that is no preview, with its default gates.
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..kube.api import ApiClient, ApiError, StatusError
from ..kube.releases import first_with_rules_of, minor_release
from ..kube.resource.meta import empty
from ..process.command import InputError
from ..scheduler.allocator import RELEASES, Features
from ..scheduler.allocator.features import DEFAULT_RELEASE, GATES

log = logging.getLogger(__name__)

_METRIC: Final = b"kubernetes_feature_enabled{"
_GATE: Final = re.compile(rb'\{(?:[^}]*,)?name="([A-Za-z0-9_]+)"[^}]*\} ([01])(?:\.0*)?(?: |$)')
_UNAUTHORIZED: Final = 401
_MOST_BYTES: Final = 256 << 20
"""Of the metrics. An API server of a large cluster has tens of MiB of them."""


@dataclass(frozen=True, slots=True)
class ServerRelease:
    """The release of an API server, such as `1.36.4` or `1.34` (empty if unknown), and the feature gates that it
    reports.
    """

    release: str = ""
    gates: Mapping[str, bool] = field(default_factory=empty)


def server_of(client: ApiClient, seconds: float) -> ServerRelease:
    """The release and the gates of the API server, which is asked for its metrics for at most `seconds` (0: without a
    limit). Values that it does not report stay unknown. Raises ApiError if it does not answer at all.
    """
    return ServerRelease(_release_of(client), _gates_of(client, seconds))


def _release_of(client: ApiClient) -> str:
    try:
        version = client.get_path("/version")
    except StatusError as error:
        if error.status == _UNAUTHORIZED:
            raise
        log.debug("the release of the cluster is not known: %s", error)
        return ""
    digits: list[Any] = re.findall("[0-9]+", f"{version.get('major', '')} {version.get('minor', '')}")
    if len(digits) < 2:
        return ""
    release = f"{digits[0]}.{digits[1]}"
    patch = re.match(rf"v{re.escape(release)}\.([0-9]{{1,3}})\b", str(version.get("gitVersion", "")))
    return first_with_rules_of(f"{release}.{patch[1]}" if patch else release)


def _gates_of(client: ApiClient, seconds: float) -> dict[str, bool]:
    try:
        return dict(_read_gates(client, seconds))
    except ApiError as error:
        log.debug("the feature gates of the cluster are not known: the defaults of its release count: %s", error)
        return {}


def _read_gates(client: ApiClient, seconds: float) -> Iterator[tuple[str, bool]]:
    """The gates. All lines of a metric follow each other, so what comes after them is not read. Raises ApiError."""
    end = time.monotonic() + (seconds or float("inf"))
    read, found = 0, False
    for line in client.lines("/metrics", seconds=seconds or 60):
        read += len(line)
        if not line.startswith(_METRIC):
            if found:
                return
            if read > _MOST_BYTES or time.monotonic() > end:
                raise ApiError(f"GET /metrics: no {_METRIC[:-1].decode()} in the first {read} bytes")
            continue
        found = True
        gate = _GATE.search(line)
        if gate is not None:
            yield gate[1].decode(), gate[2] == b"1"


@dataclass(frozen=True, slots=True)
class Rules:
    """The release and the gates that the user names. `release` is empty if the user names none."""

    release: str = ""
    gates: Mapping[str, bool] = field(default_factory=empty)
    ideal: bool = False

    def features(self, server: ServerRelease = ServerRelease()) -> Features:
        """The release and the gates that decide on this cluster. Gates of the cluster count for its own release only.

        Raises InputError for gates that are not known.
        """
        release = self.release_among(RELEASES, server)
        try:
            return Features.from_gates(self.all_gates(server), release=release, as_specified=self.ideal)
        except ValueError as error:
            raise InputError(f"--feature-gates: {error}") from None

    def release_among(self, known: Sequence[str], server: ServerRelease = ServerRelease()) -> str:
        """The one of the known releases that decides on this cluster."""
        return nearest(self.release or server.release, known)

    def all_gates(self, server: ServerRelease = ServerRelease()) -> Mapping[str, bool]:
        """The gates that are known here and whose value the user or the cluster names."""
        of_server = (
            server.gates if self.release == "" or minor_release(self.release) == minor_release(server.release) else {}
        )
        return {**{name: enabled for name, enabled in of_server.items() if name in GATES}, **self.gates}

    def notes(self, server: ServerRelease) -> Iterator[str]:
        """A note if the release of the cluster is not one whose rules are known."""
        used = nearest(server.release, RELEASES)
        if not self.release and server.release and minor_release(used) != minor_release(server.release):
            yield f"the cluster has Kubernetes {server.release}, whose rules are not known: those of {used} count"


NAMES_NONE: Final = Rules()
"""The user names neither a release nor gates."""


def nearest(release: str, known: Sequence[str]) -> str:
    """The known release that is nearest to one of a cluster; the default for an empty text."""
    if not release:
        return DEFAULT_RELEASE
    if minor_release(release) in known:
        return release
    return min(known, key=lambda name: abs(_number(name) - _number(release)))


def _number(release: str) -> int:
    major, minor = map(int, minor_release(release).split("."))
    return major * 1000 + minor
