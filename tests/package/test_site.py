"""The site that `make docs` has built, in headless Chromium."""

from __future__ import annotations

import time
from pathlib import Path

import chromium
import pytest
from helpers import ROOT

SITE = ROOT / "build" / "site"
PAGES = ("index", "docs/quickstart", "docs/troubleshooting", "docs/benchmarks", "benchmarks/ladder", "csrc/README")

pytestmark = [
    pytest.mark.skipif(chromium.PATH is None, reason="no Chromium (Debian: apt-get install chromium)"),
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="no site: make docs"),
]


@pytest.mark.parametrize("page", PAGES)
def test_pages_open_without_errors(page: str, tmp_path: Path) -> None:
    with chromium.Page(tmp_path) as browser:
        browser.open(SITE / f"{page}.html")
        assert browser.errors() == []
        assert all(url.startswith(("file://", "data:")) for url in browser.requests())
        broken = "[...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"
        assert browser.evaluate(broken) == []
        assert browser.evaluate("document.querySelectorAll('.sidebar-tree a').length") > 15


def test_the_search_finds_a_heading(tmp_path: Path) -> None:
    with chromium.Page(tmp_path) as browser:
        browser.open(SITE / "search.html", "?q=batch-invariant")
        found: list[str] = []
        until = time.monotonic() + 20
        while not any("docs/numerics" in link for link in found):  # results appear one after the other
            assert time.monotonic() < until, found
            found = browser.evaluate("[...document.querySelectorAll('ul.search li a')].map(link => link.href)")
            time.sleep(0.1)
        assert browser.errors() == []


def test_light_and_dark(tmp_path: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    with chromium.Page(tmp_path) as browser:
        seen = {}
        for scheme in ("light", "dark"):
            browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            browser.open(SITE / "index.html")
            seen[scheme] = sum(map(int, browser.evaluate(f"{colour}.match(/\\d+/g).slice(0, 3)")))
        assert seen["light"] > 600 > 200 > seen["dark"]
        browser.evaluate("document.querySelector('.theme-toggle').click()")  # leaves the system's setting
        assert browser.evaluate("document.body.dataset.theme") in ("light", "dark")
