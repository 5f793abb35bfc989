# SPDX-License-Identifier: Apache-2.0
"""Pages as a real browser shows them: Chromium or Chrome, from the PATH or $BROWSER_BIN.

One browser, without a window, serves all tests of a worker. It is controlled through the DevTools protocol
(https://chromedevtools.github.io/devtools-protocol/), which tells of console messages and network requests too.
"""

import asyncio
import base64
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

BROWSER = os.environ.get("BROWSER_BIN") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"))), None
)
NEEDS_BROWSER = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on PATH, and BROWSER_BIN is not set")
WIDTHS = {"phone": 375, "narrow window": 400, "laptop": 1280}
SCREENS = tuple(itertools.product(("light", "dark"), WIDTHS.values()))
"""Every colour scheme with every width."""

FACTS = """
(() => {
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = color => channels(color).slice(0, 3).map(value => value / 255)
    .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if ((channels(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = element => {
    const pair = [getComputedStyle(element).color, behind(element)].map(luminance).sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  document.querySelectorAll("details").forEach(one => one.open = true);
  const written = [...document.body.querySelectorAll("*")]
    .filter(one => [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  return {
    title: document.title,
    demands: document.querySelectorAll("section h2").length,
    background: getComputedStyle(document.body).backgroundColor,
    contrast: Math.min(...written.map(contrast)),
    width: document.documentElement.scrollWidth,
    sideways: [...document.querySelectorAll(".scroll")].filter(one => one.scrollWidth > one.clientWidth).length,
    hacked: typeof window.hacked,
    shown: document.body.innerText,
  };
})()
"""


@dataclass
class Seen:
    """A page as the browser showed it."""

    facts: dict[str, Any]
    picture: bytes
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


class DevTools:
    """A conversation with the browser; `events` are what it told by itself."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0
        self._session: dict[str, str] = {}
        self._target = ""
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": params, **self._session})
        while (answer := await self._next()).get("id") != self._last:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def open_page(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self._target = target["targetId"]

    async def close_page(self) -> None:
        self._session = {}
        await self.call("Target.closeTarget", targetId=self._target)

    async def wait_for(self, event: str) -> None:
        while event not in [name for name, _ in self.events]:
            await self._next()

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json()
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The WebSocket of a browser that runs."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    profile = tmp_path_factory.mktemp("profile")
    command = [str(BROWSER), *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    begun: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(command, text=True, **begun) as browser:
        try:
            assert browser.stderr is not None
            marker = "DevTools listening on "
            lines = iter(browser.stderr.readline, "")
            yield next(line.removeprefix(marker).strip() for line in lines if line.startswith(marker))
        finally:
            os.killpg(browser.pid, signal.SIGKILL)  # Debian's command is a script that starts the browser


async def look(address: str, page: Path, scheme: str, width: int, media: str, picture: bool) -> Seen:
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        tools = DevTools(socket)
        await tools.open_page()
        for domain in ("Page", "Network", "Log", "Runtime"):
            await tools.call(f"{domain}.enable")
        colors = [{"name": "prefers-color-scheme", "value": scheme}]
        await tools.call("Emulation.setEmulatedMedia", media=media, features=colors)
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 800}
        await tools.call("Emulation.setDeviceMetricsOverride", **screen)
        await tools.call("Page.navigate", url=page.as_uri())
        await tools.wait_for("Page.loadEventFired")
        found = await tools.call("Runtime.evaluate", expression=FACTS, returnByValue=True)
        assert "exceptionDetails" not in found, found
        shot = {"data": ""}
        if picture:
            shot = await tools.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        await tools.close_page()
        complaints = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return Seen(
            found["result"]["value"],
            base64.b64decode(shot["data"]),
            [params["request"]["url"] for name, params in tools.events if name == "Network.requestWillBeSent"],
            [str(params) for name, params in tools.events if name in complaints],
        )


def seen(
    address: str,
    page: Path,
    scheme: str = "light",
    width: int = WIDTHS["laptop"],
    media: str = "screen",
    *,
    picture: bool = False,
) -> Seen:
    """The page on a screen. A picture is taken on request only, because this takes longer than everything else."""
    return asyncio.run(asyncio.wait_for(look(address, page, scheme, width, media, picture), 60))
