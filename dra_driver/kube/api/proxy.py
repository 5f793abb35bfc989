# SPDX-License-Identifier: Apache-2.0
"""Proxies between this process and the API server, with the rules of kubectl.

A kubeconfig's `proxy-url` counts for its cluster whatever the environment says. Else HTTPS_PROXY (HTTP_PROXY for a
server without TLS) counts, upper case before lower case, unless NO_PROXY names the server. Source: the packages
net/http and golang.org/x/net/http/httpproxy of Go, and client-go's tools/clientcmd.

| NO_PROXY entry | servers that are reached without the proxy |
|---|---|
| `*` | all |
| `10.0.0.0/8`, `fd00::/8` | addresses in this network; names are not looked up |
| `10.0.0.1`, `fd00::1`, `10.0.0.1:6443` | this address, or this port of it |
| `example.com`, `example.com:6443` | this host and every host below it |
| `.example.com`, `*.example.com` | every host below it |
| (always) | `localhost` and loopback addresses |
"""

import base64
import importlib.util
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import urllib3

from .errors import ConnectionConfigError

SCHEMES: Final = ("http", "https", "socks5")
_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080}
_HOST_PORT: Final = re.compile(r"\[([^\[\]]*)\]:([^\[\]:]*)|([^\[\]:]*):([^\[\]:]*)")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. As text, its URL without user and password."""

    scheme: str
    host: str
    port: int
    user: str | None = field(default=None, repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def manager(self, tls: Any, pools: Mapping[str, Any]) -> urllib3.PoolManager:
        """A manager of connections through the proxy. `tls` is for the connection to the proxy itself. `pools` are
        options of the connections to the server. Raises ConnectionConfigError if a package is missing.
        """
        if self.scheme == "socks5":
            if importlib.util.find_spec("socks") is None:
                raise ConnectionConfigError(
                    f"proxy {self} needs the Python package PySocks: pip install 'dra-driver-gpu[socks]', or use an"
                    " HTTP proxy"
                )
            from urllib3.contrib.socks import SOCKSProxyManager

            # The proxy looks up the server's name, as it does for Go's clients.
            return SOCKSProxyManager(f"socks5h{str(self)[6:]}", self.user, self.password, **pools)
        headers = {}
        if self.user is not None:
            token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            headers["Proxy-Authorization"] = f"Basic {token}"
        return urllib3.ProxyManager(str(self), proxy_headers=headers, proxy_ssl_context=tls, **pools)


def parse_proxy(text: str, source: str) -> Proxy:
    """The proxy with this URL. `source` names the source of the URL in errors, which never contain a user or password.
    Raises ConnectionConfigError.
    """
    shown = f"{text!r} " if "@" not in text else ""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    if url.scheme not in SCHEMES and "://" in text and url.hostname:
        raise ConnectionConfigError(
            f"{source}: a proxy of scheme {url.scheme!r} is not supported, use {', '.join(SCHEMES)}"
        )
    if url.scheme not in SCHEMES or not url.hostname or not text.isprintable() or " " in text:
        raise ConnectionConfigError(f"{source}: {shown}is not the URL of a proxy (http://host:port)")
    user = None if url.username is None else unquote(url.username)
    return Proxy(url.scheme, url.hostname, port or _PORTS[url.scheme], user, unquote(url.password or ""))


def environment_proxy(scheme: str, host: str, port: int, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """The proxy of the environment for this server, or None to connect directly. Raises ConnectionConfigError."""
    names = (f"{scheme}_proxy".upper(), f"{scheme}_proxy")
    name = next((name for name in names if environment.get(name)), None)
    if name is None or _is_direct(host, port, environment.get("NO_PROXY") or environment.get("no_proxy") or ""):
        return None
    text = environment[name].strip()
    text = text if "://" in text else f"http://{text}"
    return parse_proxy(text.replace("socks5h://", "socks5://", 1), f"environment variable {name}")


def _is_direct(host: str, port: int, no_proxy: str) -> bool:
    host = _ascii(host.lower())
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return "*" in entries or any(_matches(entry, host, address, port) for entry in entries if entry)


def _matches(entry: str, host: str, address: _Address | None, port: int) -> bool:
    """Whether an entry of NO_PROXY matches this server."""
    network, slash, length = entry.partition("/")
    if slash and length.isdecimal() and _address(network) is not None:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    match = _HOST_PORT.fullmatch(entry)
    wanted, wanted_port = (match[1] or match[3] or "", match[2] or match[4]) if match else (entry, "")
    if not wanted or wanted_port not in ("", str(port), None):
        return False
    if (wanted_address := _address(wanted)) is not None:
        return address == wanted_address
    below = wanted.removeprefix("*") if wanted.startswith("*.") else wanted
    name = _ascii(below.removeprefix("."))
    return host.endswith(f".{name}") or (not below.startswith(".") and host == name)


def _address(text: str) -> _Address | None:
    """An IP address. An IPv4 address in IPv6 notation becomes the IPv4 address."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _ascii(name: str) -> str:
    """A host name in ASCII, as in DNS."""
    try:
        return name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return name
