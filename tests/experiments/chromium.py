"""Headless Chromium, spoken to over a pipe: opens a page, and says what went wrong on it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--remote-debugging-pipe", "--no-default-browser-check", "--disable-dev-shm-usage"),
)

PATIENCE_S = 60.0


def found() -> str | None:
    """Return the browser's path, if there is one."""
    return next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)


class Browser:
    """One process with one page; a context manager."""

    def __init__(self, path: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = " ".join((*FLAGS, f"--user-data-dir={self._profile}"))
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" {flags} about:blank 3<&{to_browser} 4>&{from_browser}', path],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self._in, False)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and return its result; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            if time.monotonic() > end:
                raise TimeoutError(f"Chromium said nothing for {PATIENCE_S:g} s")
            with contextlib.suppress(BlockingIOError):
                self._buffer += os.read(self._in, 1 << 20)
                continue
            time.sleep(0.002)
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, page: Path) -> float:
        """Open a file and return the seconds until it was loaded and drawn."""
        self.events.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        return time.monotonic() - began

    def value(self, expression: str) -> Any:
        """Return what a script makes of the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def complaints(self) -> list[str]:
        """What the console says: errors, warnings and exceptions."""
        told = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Log.entryAdded":
                told.append(f"{params['entry']['level']}: {params['entry']['text']}")
            elif method == "Runtime.exceptionThrown":
                told.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled":
                told.append(str(params["args"]))
        return told

    @property
    def requested(self) -> list[str]:
        """What was fetched."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        """Set the size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def emulate(self, media: str = "", dark: bool = False) -> None:
        """Set the medium, and whether the user likes it dark."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def pdf(self) -> str:
        """Print the page; base64."""
        printed: str = self.call("Page.printToPDF", printBackground=True)["data"]
        return printed

    def screenshot(self) -> str:
        """Return all of the page as PNG; base64."""
        shot: str = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        return shot
