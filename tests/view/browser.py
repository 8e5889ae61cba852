# SPDX-License-Identifier: Apache-2.0
"""Debian's chromium, driven over HTTP by its chromedriver: a page is opened, keys and clicks are sent, texts and screenshots taken.

Source: https://www.w3.org/TR/webdriver2/.
"""
import base64
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
KEYS = {"Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015", "Home": "\ue011", "End": "\ue010", "Escape": "\ue00c", "Enter": "\ue007", "Tab": "\ue004"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """Runs from start to close(). @dark: the theme that pages are asked for."""

    def __init__(self, folder, dark=False, width=1200, height=900):
        self.process = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = next(line for line in self.process.stdout if "was started successfully on port" in line)
        self.address = f"http://127.0.0.1:{int(re.search(r'on port ([0-9]+)', line)[1])}"
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}",
                     f"--blink-settings=preferredColorScheme={0 if dark else 1}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments, "binary": BROWSER}, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        try:
            self.session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except Exception:
            self.process.kill()
            raise

    def _ask(self, method, path, body=None):
        request = urllib.request.Request(self.address + path, method=method, data=None if body is None else json.dumps(body).encode(), headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:2000]) from None

    def call(self, method, path, body=None):
        return self._ask(method, f"/session/{self.session}{path}", body)

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def open(self, path, fragment=""):
        """Seconds until the page is loaded."""
        self.call("POST", "/url", {"url": "about:blank"})
        began = time.monotonic()
        self.call("POST", "/url", {"url": pathlib.Path(path).resolve().as_uri() + fragment})
        return time.monotonic() - began

    def run(self, script, *words):
        """What a function's body returns, in the page."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(words)})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def digits(self, selector):
        """Of rows of a table what their cells say: all digits, which are the title of a number in four."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map((r) => [...r.children].map((c) => c.querySelector('[title]')?.title || c.textContent))", selector)

    def resize(self, width, height=900):
        """As a device of that width: a window is no narrower than 500."""
        self.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}})

    def click(self, selector):
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        self.call("POST", f"/element/{found[ELEMENT]}/click", {})

    def choose(self, label, value):
        """In the choice of that label."""
        self.run("const s = document.querySelector(`select[aria-label=\"${arguments[0]}\"]`); s.value = arguments[1]; s.dispatchEvent(new Event('change'))", label, str(value))

    def keys(self, *names):
        each = [KEYS.get(name, name) for name in names]
        actions = [{"type": kind, "value": key} for key in each for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def until(self, holds, seconds=3):
        """Whether it holds, now or soon: a page handles a key, a new address and a dialog that closes one after the other."""
        ends = time.monotonic() + seconds
        while not (done := holds()) and time.monotonic() < ends:
            time.sleep(0.02)
        return done

    def fragment(self):
        return self.run("return decodeURIComponent(location.hash)")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def console(self):
        """Messages since the last call."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def requests(self):
        """Addresses that were asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.call("POST", "/se/log", {"type": "performance"})]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
