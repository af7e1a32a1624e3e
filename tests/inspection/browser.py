"""A headless Chromium, driven through the DevTools protocol over a pipe: nothing to install."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
)
# Chromium reads its commands from file descriptor 3 and answers on 4.
LAUNCHER = """
import fcntl, os, sys
above = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(above[0], 3)
os.dup2(above[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str:
    """The browser of KERAS_VIT_BROWSER or the PATH; skips the test where there is none."""
    named = os.environ.get("KERAS_VIT_BROWSER")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            f"no browser: KERAS_VIT_BROWSER={named!r}, and none of {', '.join(NAMES)} in the PATH"
        )
    return found


class Browser:
    """One page of a browser in a process of its own.

    Attributes:
        requests: Every address that the page has asked for.
        problems: Exceptions and errors of the page.
    """

    def __init__(self, profile: Path) -> None:
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.answers: dict[int, Any] = {}
        self.loaded = False
        self.number, self.session, self.buffer = 0, None, b""
        command_read, self.commands = os.pipe()
        self.results, result_write = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCHER, str(command_read), str(result_write)),
                *(find_browser(), "--headless", "--no-sandbox", "--remote-debugging-pipe"),
                *("--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                *(f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(command_read, result_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(result_write)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        os.close(self.commands)
        os.close(self.results)

    def send(self, method: str, **parameters: Any) -> Any:
        """Sends one command and returns its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        number = self.number
        self._receive_until(lambda: number in self.answers, method)
        answer = self.answers.pop(number)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def open(self, address: str, width: int, height: int) -> None:
        """Shows a page in a window of this size, and waits until it is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.loaded = False
        self.send("Page.navigate", url=address)
        self._receive_until(lambda: self.loaded, address)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key of the keyboard, as a user presses it."""
        code = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
            )

    def screenshot(self, path: Path) -> None:
        """The whole page, below the window's end too, as a PNG file."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.send(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def _receive_until(self, done: Any, waiting_for: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done():
            ready, _, _ = select.select([self.results], [], [], max(0, end - time.monotonic()))
            chunk = os.read(self.results, 1 << 20) if ready else b""
            assert chunk, f"{waiting_for}: no answer from the browser"
            *messages, self.buffer = (self.buffer + chunk).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        event, details = message.get("method"), message.get("params", {})
        if "id" in message:
            self.answers[message["id"]] = message
        elif event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.problems.append(str(details["exceptionDetails"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.problems.append(details["entry"]["text"])
