# SPDX-License-Identifier: Apache-2.0
"""The connection to the cluster that kubectl would use, made by the `kubernetes` package.

| | rule, as in kubectl |
|---|---|
| files | --kubeconfig; else $KUBECONFIG without missing files; else ~/.kube/config; else the service account |
| several files | of two entries with one name the first counts, and so does the first current-context |
| namespace | -n; else that of the context; else `default` |
| login | what the user entry describes: certificate, token, exec, auth-provider |
| identity | --as; else `as` of the user entry; else the login's |

The package takes a third of a second to import, so it is imported only when a cluster is asked.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Unpack

import urllib3
import yaml
from urllib3.util import Retry, Timeout

from .. import __version__
from ..kube.api import ConnectionConfigError, RequestOptions, UnreachableError
from ..kube.api.kubeconfig import parse_kubeconfig
from .unreachable import unreachable

_SERVICE_HOST: Final = "KUBERNETES_SERVICE_HOST"
_BUSY: Final = Retry(
    total=3, connect=0, read=0, other=0, status_forcelist=(429, 503), backoff_factor=0.1, raise_on_status=False
)
"""A request to an overloaded server is repeated. A server that does not answer is reported."""
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NO_FILE: Final = "KUBECONFIG is not set, and there is no file {}/.kube/config"
_IMPERSONATION: Final = {"as": "Impersonate-User", "as-uid": "Impersonate-Uid"}


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The cluster that the user chose, and how to connect to it. Empty text stands for kubectl's default.

    `seconds` is the time limit for one answer of the server; 0 is no limit.
    """

    kubeconfig: str = ""
    context: str = ""
    in_cluster: bool = False
    namespace: str = ""
    impersonated: str = ""
    seconds: float = 10.0

    @property
    def files(self) -> str:
        """The kubeconfig files, joined by colons; empty where there is none. Raises ConnectionConfigError for one
        that is asked for and does not exist.
        """
        if self.in_cluster:
            return ""
        named = self.kubeconfig or os.environ.get("KUBECONFIG", "")
        if not named:
            default = Path.home() / ".kube/config"
            return str(default) if default.exists() else ""
        paths = [named] if self.kubeconfig else [path for path in named.split(":") if path]
        there = [str(path) for path in (Path(path).expanduser() for path in paths) if path.exists()]
        if not there:
            raise ConnectionConfigError(
                f"kubeconfig {named}: {'there is no such file' if len(paths) == 1 else 'no file exists'}"
            )
        return ":".join(there)

    @property
    def is_configured(self) -> bool:
        """Whether a cluster is configured. Raises ConnectionConfigError."""
        return bool(self.in_cluster or self.files or os.environ.get(_SERVICE_HOST))


class ClusterConnection:
    """The transport of a `kube.api.ApiClient` to one API server.

    `server` is its URL. `identity` names the user in errors, and `where` the cluster in reports. Objects without a
    namespace are in `namespace`, and `seconds` is the time limit for one answer (0: none). Raises
    ConnectionConfigError.
    """

    def __init__(self, choice: ClusterChoice) -> None:
        from kubernetes import client
        from kubernetes import config as package
        from kubernetes.client.rest import RESTClientObject

        config: Any = package
        configuration = client.Configuration()
        user: Mapping[str, Any] = {}
        files = choice.files
        if choice.context and not files:
            raise ConnectionConfigError(f'context "{choice.context}" does not exist: {_NO_FILE.format(Path.home())}')
        with _as_config_error(f"kubeconfig {files}" if files else "service account"), _no_login_fails() as problems:
            if files:
                documents = [parse_kubeconfig(Path(path)) for path in files.split(":")]
                chosen = _existing(documents, choice.context or _current_context(documents))
                config.load_kube_config(files, chosen, configuration, persist_config=False)
                context = _entry(documents, "contexts", "context", chosen)
                user = _entry(documents, "users", "user", context.get("user"))
                namespace = context.get("namespace")
                self.where = f"cluster {configuration.host} (context {chosen} of {files})"
                self.identity = f"kubeconfig {files}: user {context.get('user')!r}"
            else:
                if not os.environ.get(_SERVICE_HOST) and not choice.in_cluster:
                    raise ConnectionConfigError(f"kubeconfig: {_NO_FILE.format(Path.home())}")
                if not os.environ.get(_SERVICE_HOST):
                    raise ConnectionConfigError(f"not in a pod: {_SERVICE_HOST} is not set")
                config.load_incluster_config(client_configuration=configuration)
                namespace = _NAMESPACE_FILE.read_text(encoding="utf-8") if _NAMESPACE_FILE.exists() else ""
                self.where = f"cluster {configuration.host} (the cluster that this pod runs in)"
                self.identity = "the pod's service account"
            if problems:
                raise ConnectionConfigError(f"{self.identity}: {problems[0]}")
            self._rest: Any = RESTClientObject(configuration)
        self.server = str(configuration.host).rstrip("/")
        self.namespace = str(choice.namespace or namespace or "default").strip()
        self._configuration: Any = configuration
        acting = {"as": choice.impersonated} if choice.impersonated else user
        if acting.get("as"):
            self.identity = f"as user {acting['as']!r}, by {self.identity}"
        self._headers = _impersonation(acting)
        self.seconds = choice.seconds

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> urllib3.BaseHTTPResponse:
        """Sends one request. Any HTTP status is an answer. Raises UnreachableError if there is none in time."""
        headers = self._headers.copy()
        accept = options.get("accept") or "application/json"
        headers.extend({"Accept": accept, "User-Agent": f"dra-dryrun/{__version__}"})
        if content_type := options.get("content_type"):
            headers["Content-Type"] = content_type
        pause = options.get("stream_seconds")
        limit = self.seconds or None
        try:
            for setting in self._configuration.auth_settings().values():
                headers[setting["key"]] = setting["value"]
            answer: urllib3.BaseHTTPResponse = self._rest.pool_manager.request(
                method,
                self.server + path,
                body=options.get("body"),
                headers=headers,
                retries=_BUSY if options.get("repeatable", True) else False,
                redirect=False,
                timeout=Timeout(connect=limit, read=limit if pause is None else pause),
                preload_content=pause is None,
            )
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(unreachable(error, self.server, limit or pause or 0)) from None
        return answer

    def close(self) -> None:
        """Close idle connections."""
        self._rest.close()


def _current_context(documents: Sequence[Mapping[str, Any]]) -> str:
    for document in documents:
        if document.get("current-context"):
            return str(document["current-context"])
    raise ConnectionConfigError(f"has no current-context: choose one with --context (there is {_contexts(documents)})")


def _existing(documents: Sequence[Mapping[str, Any]], context: str) -> str:
    """The name of a context. Raises ConnectionConfigError, in kubectl's words, if there is none of this name."""
    if any(str(entry.get("name")) == context for document in documents for entry in document.get("contexts") or []):
        return context
    raise ConnectionConfigError(f'context "{context}" does not exist (there is {_contexts(documents)})')


def _contexts(documents: Sequence[Mapping[str, Any]]) -> str:
    names = (str(context.get("name")) for document in documents for context in document.get("contexts") or [])
    return ", ".join(dict.fromkeys(names)) or "none"


def _entry(documents: Sequence[Mapping[str, Any]], section: str, field: str, name: object) -> Mapping[str, Any]:
    """The first entry of that name; empty where there is none."""
    every = (entry for document in documents for entry in document.get(section) or [])
    return next((entry.get(field) or {} for entry in every if entry.get("name") == name), {})


def _impersonation(user: Mapping[str, Any]) -> urllib3.HTTPHeaderDict:
    """The headers for the impersonation that a user entry asks for."""
    headers = urllib3.HTTPHeaderDict()
    for field, header in _IMPERSONATION.items():
        if user.get(field):
            headers[header] = str(user[field])
    for group in user.get("as-groups") or []:
        headers.add("Impersonate-Group", str(group))
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values:
            headers.add(f"Impersonate-Extra-{key}", str(value))
    return headers


@contextmanager
def _as_config_error(what: str) -> Iterator[None]:
    """Turns the exceptions of the package about files into a ConnectionConfigError of one line."""
    from kubernetes.config import ConfigException

    try:
        yield
    except ConnectionConfigError as error:
        text = str(error)
        raise ConnectionConfigError(text if text.startswith("kubeconfig") else f"{what}: {text}") from None
    except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConnectionConfigError(f"{what}: {' '.join(str(error).split())}") from None


@contextmanager
def _no_login_fails() -> Iterator[list[str]]:
    """Collects the log lines of the package: if a login program fails, the package only logs it."""
    problems: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.name != "root" or record.levelno < logging.ERROR:
            return True
        problems.append(" ".join(record.getMessage().split()))
        return False

    logging.getLogger().addFilter(collect)
    try:
        yield problems
    finally:
        logging.getLogger().removeFilter(collect)
