# SPDX-License-Identifier: Apache-2.0
"""A kubeconfig for a server: one cluster, one user, one context, which is the current one."""

import base64
import os
from pathlib import Path
from typing import Any, Final

import yaml

_NAME: Final = "dra-sandbox"


def kubeconfig(
    url: str, token: str, authority: bytes | None, *, user: str, namespace: str = "default"
) -> dict[str, Any]:
    """The kubeconfig as a document. `authority` is the CA's PEM certificate, None without TLS."""
    cluster: dict[str, Any] = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": user, "namespace": namespace}}],
        "current-context": _NAME,
    }


def write_kubeconfig(path: Path, document: dict[str, Any]) -> Path:
    """Writes the document for this user's eyes only, replacing what is there."""
    text = yaml.safe_dump(document, sort_keys=False)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)
    return path
