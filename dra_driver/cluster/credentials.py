# SPDX-License-Identifier: Apache-2.0
"""Who we are and whom we talk to: from a kubeconfig or from the pod's service account.

Plain kubeconfigs (certificates, tokens) are read here. One whose user needs a program (`exec`), an auth
provider, a proxy, or several files merged, goes through the official client's loader instead, which is
only then imported.
"""

import base64
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 60  # bound tokens are renewed in place, hourly by default

TokenSource = Callable[[], str | None]
"""Gives the bearer token to send now; None to send none."""


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


def load_credentials(kubeconfig: str | None = None, context: str | None = None) -> Credentials:
    """From `kubeconfig` (a path, or several joined by colons), else $KUBECONFIG, else the pod's service account,
    else ~/.kube/config. Raises ConfigError.
    """
    paths = kubeconfig or os.environ.get("KUBECONFIG")
    if paths:
        return _from_kubeconfig(paths, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster()
    default = Path.home() / ".kube/config"
    if default.exists():
        return _from_kubeconfig(str(default), context)
    raise ConfigError("no cluster given: set --kubeconfig or KUBECONFIG, or run in a pod with a service account")


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Credentials:
    """The pod's service account, mounted in `folder`. Raises ConfigError."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        ca = (folder / "ca.crt").read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"no service account in {folder}: {error.strerror}") from None
    address = f"[{host}]" if ":" in host else host
    return Credentials(f"https://{address}:{port}", _token_file(folder / "token"), ca)


def _from_kubeconfig(paths: str, context: str | None) -> Credentials:
    if ":" in paths.strip(":"):
        return _from_official_client(paths, context)
    path = Path(paths).expanduser()
    config = _parse(path)
    wanted = context or config.get("current-context")
    if not wanted:
        raise ConfigError(f"kubeconfig {path} has no current-context: choose one with --context")
    chosen = _named(config, "contexts", str(wanted), path).get("context") or {}
    cluster = _named(config, "clusters", str(chosen.get("cluster")), path).get("cluster") or {}
    user = _named(config, "users", str(chosen.get("user")), path).get("user") or {} if chosen.get("user") else {}
    if {"exec", "auth-provider", "username"} & user.keys() or cluster.get("proxy-url"):
        return _from_official_client(str(path), context)
    server = cluster.get("server")
    if not isinstance(server, str) or not server:
        raise ConfigError(f"kubeconfig {path}: cluster {chosen.get('cluster')!r} has no server")
    certificate, key = _pem(user, "client-certificate", path), _pem(user, "client-key", path)
    token_file = user.get("tokenFile")
    token: str | None = user.get("token")
    return Credentials(
        server=server,
        token=_token_file(path.parent / str(token_file)) if token_file else lambda: token,
        ca=_pem(cluster, "certificate-authority", path),
        client_certificate=(certificate, key) if certificate and key else None,
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=cluster.get("tls-server-name"),
    )


def _parse(path: Path) -> Mapping[str, Any]:
    import yaml  # a pod with a service account never needs it

    try:
        config = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"kubeconfig {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"kubeconfig {path} is not YAML: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"kubeconfig {path} is empty or not a mapping")
    return config


def _named(config: Mapping[str, Any], section: str, name: str, path: Path) -> Mapping[str, Any]:
    entries: list[Mapping[str, Any]] = config.get(section) or []
    for entry in entries:
        if entry.get("name") == name:
            return entry
    known = ", ".join(str(entry.get("name")) for entry in entries) or "none"
    raise ConfigError(f"kubeconfig {path}: no {section.removesuffix('s')} {name!r} (there is {known})")


def _pem(holder: Mapping[str, Any], field: str, path: Path) -> str | None:
    """PEM text that is in `<field>-data`, or in the file that `<field>` names."""
    data = holder.get(f"{field}-data")
    try:
        if data:
            return base64.b64decode(data, validate=True).decode()
        if holder.get(field):
            return (path.parent / str(holder[field])).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"kubeconfig {path}: {field} cannot be read: {error}") from None
    return None


def _token_file(path: Path) -> TokenSource:
    """The token in a file that somebody renews."""
    held, read_at = "", -math.inf

    def token() -> str:
        nonlocal held, read_at
        now = time.monotonic()
        if now - read_at >= _TOKEN_SECONDS:
            try:
                held, read_at = path.read_text(encoding="ascii").strip(), now
            except OSError as error:
                if not held:
                    raise ConfigError(f"no service account token in {path}: {error.strerror}") from None
        return held

    return token


def _from_official_client(paths: str, context: str | None) -> Credentials:
    """Whatever the official client makes of it: exec plugins, cloud logins, merged files."""
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        load: Callable[..., None] = config.load_kube_config  # untyped there
        load(config_file=paths, context=context, client_configuration=configuration)
    except config.ConfigException as error:
        raise ConfigError(f"kubeconfig {paths}: {error}") from None

    def token() -> str | None:
        value: str | None = configuration.get_api_key_with_prefix("authorization")  # runs the plugin when it expired
        return value.removeprefix("Bearer ") if value else None

    def text(file: str | None) -> str | None:
        return Path(file).read_text(encoding="utf-8") if file else None

    certificate, key = text(configuration.cert_file), text(configuration.key_file)
    return Credentials(
        server=configuration.host,
        token=token,
        ca=text(configuration.ssl_ca_cert),
        client_certificate=(certificate, key) if certificate and key else None,
        insecure=not configuration.verify_ssl,
        server_name=configuration.tls_server_name,
    )
