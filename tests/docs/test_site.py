"""The site of the documents: it is built from the tree, complete, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.browser import open_window, run_chromium
from support.snippets import ROOT
from wattline.cli.main import COMMANDS
from wattline.policy.parser import list_stages

LOADED = re.compile(r'<(?:script|img|iframe|source|video)\b[^>]*\bsrc="([^"]+)"|<link\b[^>]*\bhref="([^"]+)"')
IN_STYLES = re.compile(r"@import[^;]*|url\(\s*['\"]?(?:https?:)?//[^)]*")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning of mkdocs, as about a broken link, is an error."""
    folder: Path = tmp_path_factory.mktemp("site")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        for found in LOADED.findall(page.read_text(encoding="utf-8")):
            target = "".join(found)
            assert not re.match(r"(https?:)?//", target), f"{page.name} loads {target}"
    for style in site.rglob("*.css"):
        assert not IN_STYLES.findall(style.read_text(encoding="utf-8")), style.name


@pytest.mark.slow
def test_the_reference_has_what_the_code_has(site: Path) -> None:
    def read(name: str) -> str:
        return (site / "reference" / f"{name}.html").read_text(encoding="utf-8")

    commands, policies = read("commands"), read("policies")
    assert all(f"wattline {name}" in commands for name in COMMANDS)
    assert all(f"<code>{name}</code>" in policies for name in list_stages())
    schema = json.loads((ROOT / "src" / "wattline" / "jobfile" / "job.schema.json").read_text())
    assert all(f"<code>{key}</code>" in read("job-file") for key in schema["properties"])
    assert "/api/v1/jobs/{job}/explain" in read("api").replace("{id}", "{job}")
    assert "wattline.Session" in read("python")


@pytest.mark.slow
def test_the_metrics_of_the_page_are_those_of_the_reference(site: Path) -> None:
    listed = set(
        re.findall(r"wattline_\w+", (site / "reference" / "metrics.html").read_text(encoding="utf-8"))
    )
    table = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`(wattline_\w+)`", table))
    assert explained <= listed
    assert listed - explained <= {"wattline_build_info"}


@contextmanager
def serve(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_into_a_browser_of_any_width(site: Path, scheme: str) -> None:
    with serve(site) as url, run_chromium() as browser:
        for width in (1280, 390):
            with open_window(
                browser, url, viewport={"width": width, "height": 844}, color_scheme=scheme
            ) as visitor:
                outside: list[str] = []
                visitor.page.on(
                    "request",
                    lambda request, outside=outside: (
                        None if request.url.startswith((url, "data:")) else outside.append(request.url)
                    ),
                )
                for name in ("index", "tutorial", "service", "reference/commands", "reference/python"):
                    page = visitor.open(f"/{name}.html")
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, name
                    if "/" not in name:  # pages of the reference are too long for a picture
                        visitor.take_picture(f"docs-{name}-{scheme}-{width}")
                assert not outside
                assert visitor.messages == []


@pytest.mark.slow
def test_the_search_finds_a_command(site: Path) -> None:
    with serve(site) as url, run_chromium() as browser, open_window(browser, url) as visitor:
        page = visitor.open("/index.html")
        page.fill(".md-search__input", "backup")
        # Words that are typed before the page listens are lost, so they are typed again until it does.
        page.wait_for_function("""() => {
            const input = document.querySelector(".md-search__input");
            for (const name of ["focus", "keyup", "input"])
                input.dispatchEvent(new Event(name, {bubbles: true}));
            return document.querySelector(".md-search-result__link");
        }""")
        assert "backup" in page.inner_text(".md-search-result__list").lower()
