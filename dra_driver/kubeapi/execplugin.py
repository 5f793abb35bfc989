# SPDX-License-Identifier: Apache-2.0
"""Credentials from a program that a kubeconfig names (`exec`), as client.authentication.k8s.io describes.

The program is run when a credential is needed and the one at hand has expired. A certificate is asked for once: it
serves as long as the process does.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from .credentials import checked_token, reason
from .errors import ConfigError

_SECONDS: Final = 60.0
"""How long a program may take that asks nobody anything."""
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class _Credential:
    token: str | None
    certificate: tuple[str, str] | None
    expires: datetime | None


class ExecPlugin:
    """The program of `spec`, a user's `exec`. `user` names that user in errors, relative commands are in `folder`.

    It may take `seconds`, unless it may ask the person at the terminal.
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
        """The token to send now; None when the program gives a certificate instead. Raises ConfigError."""
        return self._current().token

    def certificate(self) -> tuple[str, str] | None:
        """Certificate and key; None when the program gives a token. Raises ConfigError."""
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
            done = subprocess.run(  # noqa: S603 - running it is what the user's kubeconfig asks for
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
                f"{self._what} gave no credential within {self._seconds:g} s and was ended: run it by itself to see why"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: a character that no argument can have, or output not UTF-8
            raise ConfigError(f"{self._what}: {reason(error)} ({self._hint})") from None
        if done.returncode != 0:
            said = " ".join((done.stderr or "").split())
            raise ConfigError(f"{self._what} ended with code {done.returncode}: {said or 'it did not say why'}")
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
                raise ValueError(f"{expiry} is of no time zone")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{self._what} did not print an ExecCredential: {error!r}") from None
        if not token and not (certificate and key):
            raise ConfigError(f"{self._what} gave neither a token nor a certificate with its key")
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
    """Whether it is text, maybe such as YAML takes for a number without quotes."""
    return type(value) in (str, int, float)
