"""A real browser without a window, for pages: what it made of one, and what it complained of."""

import json
import os
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Browser:
    """Opens files; afterwards ``asked`` are the addresses that the page itself asked the network
    for, and ``complaints`` what it said on the console.
    """

    def __init__(self, program, folder):
        self._command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            "--disable-sync", "--disable-default-apps", "--disable-extensions", "--no-pings",
            "--disable-client-side-phishing-detection", "--disable-domain-reliability",
            f"--user-data-dir={folder}/profile", "--enable-logging=stderr",
            f"--log-net-log={folder}/net.json", "--virtual-time-budget=3000",
        ]  # fmt: skip
        self._net = folder / "net.json"
        self.complaints = []
        self.asked = []

    def _open(self, page, fragment, *options):
        url = f"{page.resolve().as_uri()}#{fragment}"
        done = subprocess.run(
            [*self._command, *options, url],
            capture_output=True,
            timeout=300,
            check=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        said = done.stderr.decode(errors="replace").splitlines()
        self.complaints = [line for line in said if "CONSOLE" in line]
        # A page of a file has the origin "null"; requests of the browser itself have another.
        events = [one.get("params", {}) for one in json.loads(self._net.read_text())["events"]]
        own = [one for one in events if one.get("initiator") == "null" and "url" in one]
        self.asked = [one["url"] for one in own if not one["url"].startswith("file:")]
        return done.stdout.decode()

    def dom(self, page, fragment=""):
        """Return the document as it is after its scripts have run."""
        return self._open(page, fragment, "--dump-dom")

    def picture(self, page, fragment, path):
        """Write what is seen to a PNG."""
        self._open(page, fragment, "--window-size=1400,900", f"--screenshot={path}")
        return path


def find_browser(folder):
    """Return a browser, or skip the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser here ({', '.join(NAMES)})")
    return Browser(program, folder)
