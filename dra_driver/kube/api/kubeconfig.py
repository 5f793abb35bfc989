# SPDX-License-Identifier: Apache-2.0
"""Credentials from kubeconfig files, by the rules of kubectl, or from a pod's service account.

Several files are merged: if two entries have the same name, the first one counts, and so does the first
current-context. Paths are relative to the file that has them. Settings that would change the identity and are not
supported are refused.

An exec plugin is a program that a kubeconfig names (`exec`), as described by client.authentication.k8s.io. It runs when
a credential is needed and the previous one has expired. A certificate is requested only once, and used as long as the
process runs.
"""

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ...errors import ParseError
from ...process.parsing import decode_text, load
from ...process.programs import end
from .errors import ConnectionConfigError
from .proxy import Proxy, parse_proxy

TokenSource = Callable[[], str | None]
"""Returns the current bearer token, or None to send none. Raises ConnectionConfigError if a token is missing."""

_TOKEN: Final = re.compile(r"[!-~]+")

_SECONDS: Final = 60.0
"""The time limit of a program that does not ask the user."""
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

_SECTIONS = {"contexts": "context", "clusters": "cluster", "users": "user"}
_REFUSED = {
    "as": "impersonation is not supported",
    "as-groups": "impersonation is not supported",
    "as-uid": "impersonation is not supported",
    "as-user-extra": "impersonation is not supported",
    "username": "Kubernetes does not accept passwords since 1.19",
    "auth-provider": "it is not supported; use an exec plugin (gke-gcloud-auth-plugin, kubelogin)",
}

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server and an identity. Certificates are PEM text. If `ca` is None, the authorities of the system are trusted.

    `identity` is the source of the identity, for errors: `kubeconfig /home/me/.kube/config: user 'me'`.
    """

    server: str
    token: TokenSource
    ca: str | None = None
    client_certificate: tuple[str, str] | None = None  # certificate, key
    insecure: bool = False
    server_name: str | None = None
    identity: str = "the client"
    proxy: Proxy | None = None  # None: the environment decides


def token_file(path: Path) -> TokenSource:
    """The token in a file that another program renews. It is read again when the file has changed.

    If the file is missing or empty for a moment, the last token stays in use.
    """
    held = ""
    seen: tuple[int, int, int] | None = None

    def token() -> str:
        nonlocal held, seen
        problem = "it is empty"
        try:
            status = path.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if version != seen:
                text = path.read_text(encoding="ascii").strip()
                if text:
                    held, seen = checked_token(text, str(path)), version
        except (OSError, ValueError) as error:
            problem = reason(error)
        if not held:
            raise ConnectionConfigError(f"no token in {path}: {problem}")
        return held

    return token


def checked_token(text: str, source: str) -> str:
    """The token, if it has a valid form. Raises ConnectionConfigError."""
    if not _TOKEN.fullmatch(text):
        raise ConnectionConfigError(
            f"{source}: the token has blanks, line breaks or characters that no token has: copy it again"
        )
    return text


def reason(error: Exception) -> str:
    """The text of an error, without the path, which the caller adds."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


@dataclass(frozen=True, slots=True)
class _Credential:
    token: str | None
    certificate: tuple[str, str] | None
    expires: datetime | None


class ExecPlugin:
    """The program in `spec`, the field `exec` of a user. `user` names this user in errors. Relative commands are in
    `folder`.

    The time limit is `seconds`, unless the program may ask the user at the terminal.
    """

    def __init__(
        self, spec: object, user: str, folder: Path, cluster: Mapping[str, Any], *, seconds: float = _SECONDS
    ) -> None:
        if not isinstance(spec, dict) or not isinstance(spec.get("command"), str) or not spec["command"]:
            raise ConnectionConfigError(f"{user}: exec has no command")
        self._version = spec.get("apiVersion")
        if self._version not in _VERSIONS:
            raise ConnectionConfigError(
                f"{user}: exec has apiVersion {self._version!r}, known are {' and '.join(_VERSIONS)}"
            )
        command = spec["command"]
        if "/" in command:
            command = str(folder / command)
        self._what = f"{user}: {command}"
        self._command = [command, *_arguments(spec, user)]
        self._environment = _environment(spec, user)
        self._cluster = cluster if spec.get("provideClusterInfo") else None
        self._interactive = spec.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()
        self._hint = str(spec.get("installHint") or "is it installed?")
        self._seconds = None if self._interactive else seconds
        self._lock = threading.Lock()
        self._held: _Credential | None = None

    def token(self) -> str | None:
        """The current token, or None if the program returns a certificate instead. Raises ConnectionConfigError."""
        return self._current().token

    def certificate(self) -> tuple[str, str] | None:
        """Certificate and key, or None if the program returns a token. Raises ConnectionConfigError."""
        return self._current().certificate

    def _current(self) -> _Credential:
        with self._lock:
            held = self._held
            if held is None or (held.expires is not None and held.expires <= datetime.now(UTC)):
                self._held = held = self._decode(self._run())
            return held

    def _run(self) -> str:
        spec: dict[str, Any] = {"interactive": self._interactive}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        request = {"apiVersion": self._version, "kind": "ExecCredential", "spec": spec}
        environment = {**os.environ, **self._environment, "KUBERNETES_EXEC_INFO": json.dumps(request)}
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's kubeconfig requests it
                self._command,
                env=environment,
                stdin=None if self._interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if self._interactive else subprocess.PIPE,
                text=True,
                start_new_session=not self._interactive,  # so that all of its processes can be killed
            )
            try:
                output, errors = process.communicate(timeout=self._seconds)
            finally:
                process.kill() if self._interactive else end(process)
        except subprocess.TimeoutExpired:
            raise ConnectionConfigError(
                f"{self._what} returned no credential within {self._seconds:g} s and was stopped: run it to see why"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: an invalid character in an argument, or output not UTF-8
            raise ConnectionConfigError(f"{self._what}: {reason(error)} ({self._hint})") from None
        if process.returncode != 0:
            said = " ".join((errors or "").split())
            raise ConnectionConfigError(
                f"{self._what} failed with exit status {process.returncode}: {said or 'without a message'}"
            )
        return output

    def _decode(self, text: str) -> _Credential:
        try:
            answer = json.loads(text)
            if (answer["apiVersion"], answer["kind"]) != (self._version, "ExecCredential"):
                raise ValueError(f"not an ExecCredential of {self._version}")
            status = answer["status"]
            token, certificate, key = (status.get(name) for name in ("token", "clientCertificateData", "clientKeyData"))
            expiry = status.get("expirationTimestamp")
            expires = datetime.fromisoformat(expiry) if expiry else None
            if expires is not None and expires.tzinfo is None:
                raise ValueError(f"{expiry} has no time zone")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConnectionConfigError(f"{self._what} did not print an ExecCredential: {error!r}") from None
        if not token and not (certificate and key):
            raise ConnectionConfigError(f"{self._what} returned neither a token nor a certificate with its key")
        pair = (str(certificate), str(key)) if certificate and key else None
        return _Credential(checked_token(str(token), self._what) if token else None, pair, expires)


def _arguments(spec: Mapping[str, Any], user: str) -> list[str]:
    found = spec.get("args") or []
    if not isinstance(found, list) or not all(_is_text(argument) for argument in found):
        raise ConnectionConfigError(f"{user}: args of exec must be a list of texts")
    return [str(argument) for argument in found]


def _environment(spec: Mapping[str, Any], user: str) -> dict[str, str]:
    found = spec.get("env") or []
    named = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    pairs = [(entry.get("name"), entry.get("value")) for entry in named]
    if not isinstance(found, list) or len(pairs) < len(found) or not all(_is_text(pair) for pair in sum(pairs, ())):
        raise ConnectionConfigError(f"{user}: env of exec must be a list of pairs of a name and a value, both texts")
    return {str(name): str(value) for name, value in pairs}


def _is_text(value: object) -> bool:
    """Whether the value is a text, or a number that YAML has made of a text without quotes."""
    return type(value) in (str, int, float)


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
        """The text of a field. None if it is missing or empty. Raises ConnectionConfigError."""
        value = self.fields.get(field)
        if value is not None and not isinstance(value, str):
            raise ConnectionConfigError(f"{self}: {field} must be a text, not {value!r}")
        return value or None

    def pem(self, field: str) -> str | None:
        """PEM text in `<field>-data`, or in the file that `field` names. Raises ConnectionConfigError."""
        data, path = self.text(f"{field}-data"), self.text(field)
        try:
            if data:
                return base64.b64decode(data, validate=True).decode()
            return (self.file.parent / path).read_text(encoding="utf-8") if path else None
        except (OSError, ValueError) as error:
            named = f"{field}-data" if data else f"{field} {path}"
            raise ConnectionConfigError(f"{self}: {named} cannot be read: {reason(error)}") from None


def read_kubeconfig(paths: str) -> Credentials:
    """The credentials of the current context. `paths` are separated by colons. Raises ConnectionConfigError."""
    files = [Path(path).expanduser() for path in paths.split(":") if path]
    documents = {file: parse_kubeconfig(file) for file in files if len(files) == 1 or file.exists()}
    if not documents:
        raise ConnectionConfigError(f"kubeconfig {paths}: none of these files exists")
    current = (document.get("current-context") for document in documents.values())
    wanted = next(filter(None, current), None)
    if not wanted:
        raise ConnectionConfigError(
            f"kubeconfig {paths} has no current-context: choose one with kubectl config use-context"
        )
    chosen = _entry(documents, paths, "contexts", str(wanted))
    cluster = _entry(documents, paths, "clusters", chosen.text("cluster") or "")
    server = cluster.text("server")
    if server is None:
        raise ConnectionConfigError(f"{cluster} has no server")
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
    """The content of a kubeconfig file. Raises ConnectionConfigError."""
    try:
        document = load(decode_text(file.read_bytes()))
    except OSError as error:
        raise ConnectionConfigError(f"kubeconfig {file}: {reason(error)}") from None
    except ParseError as error:
        raise ConnectionConfigError(f"kubeconfig {file}:{error}") from None
    if not isinstance(document, dict):
        raise ConnectionConfigError(f"kubeconfig {file} is empty or not a mapping")
    return document


def _entry(documents: Mapping[Path, Mapping[str, Any]], paths: str, section: str, name: str) -> _Entry:
    kind = _SECTIONS[section]
    known: list[str] = []
    for file, document in documents.items():
        entries = document.get(section) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ConnectionConfigError(f"kubeconfig {file}: {section} must be a list of mappings")
        for entry in entries:
            if entry.get("name") == name:
                fields = entry.get(kind) or {}
                if not isinstance(fields, dict):
                    raise ConnectionConfigError(f"kubeconfig {file}: {kind} {name!r} must be a mapping")
                return _Entry(file, section, name, fields)
            known.append(str(entry.get("name")))
    raise ConnectionConfigError(f"kubeconfig {paths}: no {kind} {name!r} (there is {', '.join(known) or 'none'})")


def _identity(user: _Entry, cluster: _Entry) -> tuple[tuple[str, str] | None, TokenSource]:
    """(Certificate and key, token) of a user."""
    for field, why in _REFUSED.items():
        if user.fields.get(field):
            raise ConnectionConfigError(f"{user} has {field!r}: {why}")
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if bool(certificate) != bool(key):
        raise ConnectionConfigError(
            f"{user}: client-certificate and client-key belong together, one of them is missing"
        )
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


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Credentials:
    """The pod's service account, which is mounted in `folder`. Raises ConnectionConfigError."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConnectionConfigError(
            "not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set"
        )
    try:
        ca = (folder / "ca.crt").read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise ConnectionConfigError(
            f"no service account in {folder}: ca.crt: {reason(error)} (is automountServiceAccountToken off?)"
        ) from None
    token = token_file(folder / "token")
    token()  # a missing token is reported now, not with the first request
    address = f"[{host}]" if ":" in host else host
    return Credentials(f"https://{address}:{port}", token, ca, identity=f"the service account in {folder}")


def load_credentials(kubeconfig: str | None = None) -> Credentials:
    """Credentials from `kubeconfig` (one path, or several separated by colons), else from $KUBECONFIG, else from the
    pod's service account, else from ~/.kube/config. Raises ConnectionConfigError.
    """
    default = Path.home() / ".kube/config"
    paths = kubeconfig or os.environ.get("KUBECONFIG")
    if not paths and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster()
    if not paths and not default.exists():
        raise ConnectionConfigError(
            "no cluster given: set --kubeconfig or KUBECONFIG, or run in a pod with a service account"
        )
    return read_kubeconfig(paths or str(default))
