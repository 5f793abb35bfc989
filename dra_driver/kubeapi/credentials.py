# SPDX-License-Identifier: Apache-2.0
"""Who we are and whom we talk to, wherever that was read from."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import ConfigError
from .proxy import Proxy

TokenSource = Callable[[], str | None]
"""Gives the bearer token to send now; None to send none. Raises ConfigError when there should be one."""

_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server and an identity. Certificates are PEM text; `ca` None means the system's authorities.

    `identity` says in errors where they are from: `kubeconfig /home/me/.kube/config: user 'me'`.
    """

    server: str
    token: TokenSource
    ca: str | None = None
    client_certificate: tuple[str, str] | None = None  # certificate, key
    insecure: bool = False
    server_name: str | None = None
    identity: str = "the client"
    proxy: Proxy | None = None  # None: what the environment says


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
                    held, seen = checked_token(text, str(path)), version
        except (OSError, ValueError) as error:
            problem = reason(error)
        if not held:
            raise ConfigError(f"no token in {path}: {problem}")
        return held

    return token


def checked_token(text: str, source: str) -> str:
    """The token, when it can be one. Raises ConfigError."""
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{source}: the token has blanks, line breaks or letters that no token has: copy it again")
    return text


def reason(error: Exception) -> str:
    """What happened, without the path, which the reader is told anyway."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
