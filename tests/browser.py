"""A headless Chromium for tests of pages: Debian's, driven by playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 380, "height": 760}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser; without one the test is skipped, except in CI."""
    path = shutil.which("chromium")
    if path is None and "CI" not in os.environ:
        pytest.skip("there is no chromium on the PATH: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def page_of(
    browser: Any, url: str, *, size: dict[str, int] = DESKTOP, scheme: str = "light"
) -> Iterator[Any]:
    """A page at this address, in a window and colour scheme; `page.problems` has the errors of its
    console, and `page.hosts` the hosts that it asked."""
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    page.problems, page.hosts = [], set()
    page.on("console", lambda line: line.type == "error" and page.problems.append(line.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda request: page.hosts.add(urlsplit(request.url).hostname or ""))
    page.goto(url)
    page.hosts.discard("")  # files, and data within the page
    try:
        yield page
    finally:
        context.close()


def scrolls_sideways(page: Any) -> bool:
    """True if the page is wider than its window."""
    width = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    return bool(page.evaluate(width))
