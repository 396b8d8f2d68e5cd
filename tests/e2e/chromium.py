"""A real browser, spoken to through a pipe: no driver and no package beside it."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
)
# The browser reads its orders from file 3 and answers on file 4.
_START = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 16) for n in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
_PATIENCE_SECONDS = 60


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """One browser with one page in it, and everything that this page reported."""

    def __init__(self, program: str, profile: Path) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _START,
                str(orders),
                str(answers),
                program,
                *_FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(orders, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(orders)
        os.close(answers)
        self._rest = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._orders)
        os.close(self._answers)
        self._process.terminate()
        self._process.wait(_PATIENCE_SECONDS)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._orders, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, page: Path, width: int = 1280, scheme: str = "light", script: bool = True) -> None:
        """Loads a page anew, and forgets what earlier ones reported."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Emulation.setScriptExecutionDisabled", value=not script)
        for url in ("about:blank", page.as_uri()):
            self.events.clear()
            self.ask("Page.navigate", url=url)
            self._wait_for("Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """The value of an expression of the page's own language."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **text,
            )

    @property
    def complaints(self) -> list[Any]:
        """Errors of the script and of the browser, such as what the page's policy forbade."""
        self.ask("Runtime.evaluate", expression="0")  # all that was reported before has then been read
        return [
            event["params"]
            for event in self.events
            if event["method"] == "Runtime.exceptionThrown"
            or (event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")
            or (event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] == "error")
        ]

    @property
    def requests(self) -> list[str]:
        """Everything that was asked for, the page itself included."""
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "about:"))]

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self._read()

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._answers, 1 << 16)
            assert more, f"the browser ended with status {self._process.poll()}"
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        if "method" in message and message.get("sessionId") == self._session:
            self.events.append(message)
        return message
