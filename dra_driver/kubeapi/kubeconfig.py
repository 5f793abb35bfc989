# SPDX-License-Identifier: Apache-2.0
"""Credentials from kubeconfig files, by the rules of kubectl, or from a pod's service account.

Several files are merged: if two entries have the same name, the first one counts, and so does the first
current-context. Paths are relative to the file that has them. `exec` programs are run (`credentials.ExecPlugin`).
Settings that would change the identity and are not supported are refused.
"""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..parsing import ParseError, decode_text, load
from .credentials import Credentials, ExecPlugin, TokenSource, checked_token, reason, token_file
from .errors import ConfigError
from .proxy import parse_proxy

_SECTIONS = {"contexts": "context", "clusters": "cluster", "users": "user"}
_REFUSED = {
    "as": "impersonation is not supported",
    "as-groups": "impersonation is not supported",
    "as-uid": "impersonation is not supported",
    "as-user-extra": "impersonation is not supported",
    "username": "Kubernetes does not accept passwords since 1.19",
    "auth-provider": "it is not supported; use an exec plugin (gke-gcloud-auth-plugin, kubelogin)",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A named context, cluster or user, and its file."""

    file: Path
    section: str
    name: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return f"kubeconfig {self.file}: {_SECTIONS[self.section]} {self.name!r}"

    def text(self, field: str) -> str | None:
        """The text of a field. None if it is missing or empty. Raises ConfigError."""
        value = self.fields.get(field)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{self}: {field} must be a text, not {value!r}")
        return value or None

    def pem(self, field: str) -> str | None:
        """PEM text in `<field>-data`, or in the file that `field` names. Raises ConfigError."""
        data, path = self.text(f"{field}-data"), self.text(field)
        try:
            if data:
                return base64.b64decode(data, validate=True).decode()
            return (self.file.parent / path).read_text(encoding="utf-8") if path else None
        except (OSError, ValueError) as error:
            named = f"{field}-data" if data else f"{field} {path}"
            raise ConfigError(f"{self}: {named} cannot be read: {reason(error)}") from None


def read_kubeconfig(paths: str, context: str | None = None) -> Credentials:
    """The credentials of a context, or of the current context. `paths` are separated by colons. Raises ConfigError."""
    files = [Path(one).expanduser() for one in paths.split(":") if one]
    documents = {file: parse_kubeconfig(file) for file in files if len(files) == 1 or file.exists()}
    if not documents:
        raise ConfigError(f"kubeconfig {paths}: none of these files exists")
    current = (document.get("current-context") for document in documents.values())
    wanted = context or next(filter(None, current), None)
    if not wanted:
        raise ConfigError(f"kubeconfig {paths} has no current-context: choose one with --context")
    chosen = _entry(documents, paths, "contexts", str(wanted))
    cluster = _entry(documents, paths, "clusters", chosen.text("cluster") or "")
    server = cluster.text("server")
    if server is None:
        raise ConfigError(f"{cluster} has no server")
    proxy = cluster.text("proxy-url")
    certificate, token, identity = None, _no_token, str(chosen)
    if user_name := chosen.text("user"):
        user = _entry(documents, paths, "users", user_name)
        certificate, token = _identity(user, cluster)
        identity = str(user)
    return Credentials(
        server=server,
        token=token,
        ca=cluster.pem("certificate-authority"),
        client_certificate=certificate,
        insecure=cluster.fields.get("insecure-skip-tls-verify") is True,
        server_name=cluster.text("tls-server-name"),
        identity=identity,
        proxy=parse_proxy(proxy, f"{cluster}: proxy-url") if proxy else None,
    )


def parse_kubeconfig(file: Path) -> Mapping[str, Any]:
    """The content of a kubeconfig file. Raises ConfigError."""
    try:
        document = load(decode_text(file.read_bytes()))
    except OSError as error:
        raise ConfigError(f"kubeconfig {file}: {reason(error)}") from None
    except ParseError as error:
        raise ConfigError(f"kubeconfig {file}:{error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"kubeconfig {file} is empty or not a mapping")
    return document


def _entry(documents: Mapping[Path, Mapping[str, Any]], paths: str, section: str, name: str) -> _Entry:
    kind = _SECTIONS[section]
    known: list[str] = []
    for file, document in documents.items():
        entries = document.get(section) or []
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise ConfigError(f"kubeconfig {file}: {section} must be a list of mappings")
        for one in entries:
            if one.get("name") == name:
                fields = one.get(kind) or {}
                if not isinstance(fields, dict):
                    raise ConfigError(f"kubeconfig {file}: {kind} {name!r} must be a mapping")
                return _Entry(file, section, name, fields)
            known.append(str(one.get("name")))
    raise ConfigError(f"kubeconfig {paths}: no {kind} {name!r} (there is {', '.join(known) or 'none'})")


def _identity(user: _Entry, cluster: _Entry) -> tuple[tuple[str, str] | None, TokenSource]:
    """(Certificate and key, token) of a user."""
    for field, why in _REFUSED.items():
        if user.fields.get(field):
            raise ConfigError(f"{user} has {field!r}: {why}")
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if bool(certificate) != bool(key):
        raise ConfigError(f"{user}: client-certificate and client-key belong together, one of them is missing")
    pair = (certificate, key) if certificate and key else None
    if path := user.text("tokenFile"):
        token: TokenSource = token_file(user.file.parent / path)
        token()
        return pair, token
    if text := user.text("token"):
        checked = checked_token(text, str(user))
        return pair, lambda: checked
    if user.fields.get("exec"):
        plugin = ExecPlugin(user.fields["exec"], str(user), user.file.parent, _exec_cluster(cluster))
        return pair or plugin.certificate(), plugin.token
    return pair, _no_token


def _no_token() -> str | None:
    return None


def _exec_cluster(cluster: _Entry) -> dict[str, Any]:
    """The cluster in the form that exec programs get."""
    authority = cluster.pem("certificate-authority")
    fields: dict[str, Any] = {
        "server": cluster.text("server"),
        "tls-server-name": cluster.text("tls-server-name"),
        "proxy-url": cluster.text("proxy-url"),
        "insecure-skip-tls-verify": cluster.fields.get("insecure-skip-tls-verify"),
        "certificate-authority-data": base64.b64encode(authority.encode()).decode() if authority else None,
    }
    extensions = cluster.fields.get("extensions")
    for extension in extensions if isinstance(extensions, list) else ():
        if isinstance(extension, dict) and extension.get("name") == "client.authentication.k8s.io/exec":
            fields["config"] = extension.get("extension")
    return {name: value for name, value in fields.items() if value is not None}


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Credentials:
    """The pod's service account, which is mounted in `folder`. Raises ConfigError."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError("not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set")
    try:
        ca = (folder / "ca.crt").read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no service account in {folder}: ca.crt: {reason(error)} (is automountServiceAccountToken off?)"
        ) from None
    token = token_file(folder / "token")
    token()  # a missing token is reported now, not with the first request
    address = f"[{host}]" if ":" in host else host
    return Credentials(f"https://{address}:{port}", token, ca, identity=f"the service account in {folder}")


def load_credentials(kubeconfig: str | None = None, context: str | None = None) -> Credentials:
    """Credentials from `kubeconfig` (one path, or several separated by colons), else from $KUBECONFIG, else from the
    pod's service account, else from ~/.kube/config. Raises ConfigError.
    """
    default = Path.home() / ".kube/config"
    paths = kubeconfig or os.environ.get("KUBECONFIG")
    if not paths and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster()
    if not paths and not default.exists():
        raise ConfigError("no cluster given: set --kubeconfig or KUBECONFIG, or run in a pod with a service account")

    return read_kubeconfig(paths or str(default), context)
