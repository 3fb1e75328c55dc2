"""Headless browser shared by all browser tests of the page."""

import os
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# No updates, no sync, and no sandbox inside a container.
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = filter(None, map(shutil.which, BROWSERS))
    program = os.environ.get("CHROME") or next(found, None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed and CHROME is not set")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield started
        started.close()
