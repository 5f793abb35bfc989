# SPDX-License-Identifier: Apache-2.0
"""The server and the identity of a client, and credentials from exec plugins.

An exec plugin is a program that a kubeconfig names (`exec`), as described by client.authentication.k8s.io. It runs when
a credential is needed and the previous one has expired. A certificate is requested only once, and used as long as the
process runs.
"""

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

from .errors import ConfigError
from .proxy import Proxy

TokenSource = Callable[[], str | None]
"""Returns the current bearer token, or None to send none. Raises ConfigError if a token is missing."""

_TOKEN: Final = re.compile(r"[!-~]+")


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
    """The token in a file that is renewed by somebody else. It is read again when the file has changed.

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
            raise ConfigError(f"no token in {path}: {problem}")
        return held

    return token


def checked_token(text: str, source: str) -> str:
    """The token, if it has a valid form. Raises ConfigError."""
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{source}: the token has blanks, line breaks or characters that no token has: copy it again")
    return text


def reason(error: Exception) -> str:
    """The text of an error, without the path, which the caller adds."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


_SECONDS: Final = 60.0
"""The time limit of a program that does not ask the user."""
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


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
            raise ConfigError(f"{user}: exec has no command")
        self._version = spec.get("apiVersion")
        if self._version not in _VERSIONS:
            raise ConfigError(f"{user}: exec has apiVersion {self._version!r}, known are {' and '.join(_VERSIONS)}")
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
        """The current token, or None if the program returns a certificate instead. Raises ConfigError."""
        return self._current().token

    def certificate(self) -> tuple[str, str] | None:
        """Certificate and key, or None if the program returns a token. Raises ConfigError."""
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
            done = subprocess.run(  # noqa: S603 - the user's kubeconfig requests it
                self._command,
                env=environment,
                stdin=None if self._interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if self._interactive else subprocess.PIPE,
                text=True,
                check=False,
                timeout=self._seconds,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"{self._what} returned no credential within {self._seconds:g} s and was stopped: run it to see why"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: an invalid character in an argument, or output not UTF-8
            raise ConfigError(f"{self._what}: {reason(error)} ({self._hint})") from None
        if done.returncode != 0:
            said = " ".join((done.stderr or "").split())
            raise ConfigError(f"{self._what} failed with exit status {done.returncode}: {said or 'without a message'}")
        return done.stdout

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
            raise ConfigError(f"{self._what} did not print an ExecCredential: {error!r}") from None
        if not token and not (certificate and key):
            raise ConfigError(f"{self._what} returned neither a token nor a certificate with its key")
        pair = (str(certificate), str(key)) if certificate and key else None
        return _Credential(checked_token(str(token), self._what) if token else None, pair, expires)


def _arguments(spec: Mapping[str, Any], user: str) -> list[str]:
    found = spec.get("args") or []
    if not isinstance(found, list) or not all(_is_text(one) for one in found):
        raise ConfigError(f"{user}: args of exec must be a list of texts")
    return [str(one) for one in found]


def _environment(spec: Mapping[str, Any], user: str) -> dict[str, str]:
    found = spec.get("env") or []
    named = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    pairs = [(one.get("name"), one.get("value")) for one in named]
    if not isinstance(found, list) or len(pairs) < len(found) or not all(_is_text(one) for one in sum(pairs, ())):
        raise ConfigError(f"{user}: env of exec must be a list of pairs of a name and a value, both texts")
    return {str(name): str(value) for name, value in pairs}


def _is_text(value: object) -> bool:
    """Whether the value is a text, or a number that YAML has made of a text without quotes."""
    return type(value) in (str, int, float)
