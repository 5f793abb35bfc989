# SPDX-License-Identifier: Apache-2.0
"""Who we are and whom we talk to, wherever that was read from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TokenSource = Callable[[], str | None]
"""Gives the bearer token to send now; None to send none. Raises ConfigError when there should be one."""


class ConfigError(Exception):
    """There is no usable way to the API server; the text says what to give."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server and an identity. Certificates are PEM text; `ca` None means the system's authorities."""

    server: str
    token: TokenSource
    ca: str | None = None
    client_certificate: tuple[str, str] | None = None  # certificate, key
    insecure: bool = False
    server_name: str | None = None


def token_file(path: Path) -> TokenSource:
    """The token in a file that somebody renews: it is read again when the file has changed.

    Once there was a token, a file that is missing or empty for a moment changes nothing.
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
                    held, seen = text, version
        except (OSError, ValueError) as error:
            problem = reason(error)
        if not held:
            raise ConfigError(f"no token in {path}: {problem}")
        return held

    return token


def reason(error: Exception) -> str:
    """What happened, without the path, which the reader is told anyway."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
