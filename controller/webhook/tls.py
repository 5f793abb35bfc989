# SPDX-License-Identifier: Apache-2.0
"""The webhook's certificate: two files that whoever issues it replaces while the process runs."""

import logging
import ssl
import threading
from pathlib import Path

log = logging.getLogger(__name__)

_Version = tuple[tuple[int, int, int], ...]


class TlsError(ValueError):
    """The certificate cannot be used; the text names the files."""


class TlsFiles:
    """A TLS context for servers, made anew when the files have changed. May be used by several threads.

    Files that are wrong, or of two different certificates because only one of them was replaced yet, are reported
    once; the last good certificate stays meanwhile.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises TlsError."""
        self._certificate = certificate
        self._key = key
        self._lock = threading.Lock()
        self._version = self._look()
        self._context = self._load()
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the files as they are now cannot be used; None when they can."""
        return self._problem

    def context(self) -> ssl.SSLContext:
        """The context to greet the next client with."""
        with self._lock:
            version = self._look()
            if version != self._version:
                self._version = version
                try:
                    self._context, self._problem = self._load(), None
                    log.info("the certificate was replaced", extra={"file": str(self._certificate)})
                except TlsError as error:
                    self._problem = str(error)
                    log.error("%s; the certificate stays as it was", error)
            return self._context

    def _look(self) -> _Version:
        """What changes when the files do."""
        found = []
        for path in (self._certificate, self._key):
            try:
                stat = path.stat()
            except OSError:
                continue
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key)
        except OSError as error:  # ssl.SSLError is one
            files = f"certificate {self._certificate} with key {self._key}"
            raise TlsError(f"{files} cannot be used: {error.strerror or error}") from None
        return context
