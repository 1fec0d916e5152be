"""Headless Chromium, driven over its DevTools pipe: JSON messages that end in a zero byte, on two file descriptors."""

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

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_SECONDS = 60.0
# Chromium reads at 3 and writes at 4, which one of the pipe's ends may have already.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One page. ``events``: what Chromium said unasked, in its order.

    Raises:
        TimeoutError: Chromium does not answer within a minute.
        RuntimeError: it reports that a command, or JavaScript that ``evaluate`` was given, failed.
    """

    def __init__(self, directory: Path, width: int = 1200, height: int = 900) -> None:
        assert PATH is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += [f"--window-size={width},{height}", f"--user-data-dir={directory}", "--remote-debugging-pipe"]
        command = [sys.executable, "-c", _START, str(to_read), str(to_write), PATH, *options, "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._last, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            received = os.read(self._read, 1 << 20)
            if not received:
                raise RuntimeError("Chromium ended")
            self._rest += received
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What a command of the DevTools protocol returns."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _SECONDS
        while (answer := self._receive(until)).get("id") != self._last:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path, query: str = "") -> None:
        """Returns when the page and its scripts are loaded. ``query`` is what follows the file's name."""
        before = len(self.events)
        self.send("Page.navigate", url=path.resolve().as_uri() + query)
        until = time.monotonic() + _SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[before:]):
            self.events.append(self._receive(until))

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description", script))
        return result["result"].get("value")

    def errors(self) -> list[str]:
        """Exceptions, and what was written to the console as an error or a warning."""
        found = []
        for event in self.events:
            method, of = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(of["exceptionDetails"].get("exception", {}).get("description", str(of)))
            if method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
                found.append(" ".join(str(word.get("value", word.get("description"))) for word in of["args"]))
            if method == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
                found.append(of["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]
