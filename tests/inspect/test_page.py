"""The report opened in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.inspect.planted import PlantedCapture, PlantedModel, token_batches

from quadform.inspect import inspect

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=3000",
    "--dump-dom",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the path"),
]


def opened(page: Path, fragment: str = "") -> tuple[str, list[str]]:
    """The page's DOM after its scripts ran, and what the browser's console said."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={page.parent / 'profile'}", page.as_uri() + fragment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    batches = [*token_batches(2, 3, 24, seed=0), *token_batches(2, 3, 80, seed=1)]
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    inspect(PlantedModel(), batches, capture=PlantedCapture()).to_html(path)
    return path


def test_the_map_and_the_four_views_are_drawn(page: Path):
    dom, console = opened(page)
    assert console == []
    assert len(re.findall(r"data-at=\"\d", dom)) == 12
    assert dom.count('aria-pressed="true"') == 1
    for view in ("As a matrix", "As a kernel over j", "As a recurrent state", "As a graph"):
        assert view in dom
    assert dom.count("<svg") == 3 and "data:image/png;base64," in dom
    assert dom.count("<figcaption>") == 4
    assert 'alt="Attention weights of one measured sequence of 24 tokens' in dom


def test_a_link_opens_its_head(page: Path):
    dom, console = opened(page, "#head-1-1-2")
    assert console == []
    assert 'data-head="1,1,2"' in dom
    assert "Layer 1, head 2: " in dom and "80 tokens" in dom


def test_clicks_open_heads_and_repaint_the_map(page: Path):
    clicks = (
        "<script>document.querySelector('[data-at=\"0,1,0\"]').click();"
        "document.querySelector('input[type=checkbox]').click();"
        "document.querySelector('input[type=radio][value=\"1\"]').click();</script></body>"
    )
    copy = page.with_name("clicked.html")
    copy.write_text(page.read_text("utf-8").replace("</body>", clicks), "utf-8")
    dom, console = opened(copy)
    assert console == []
    assert 'data-head="0,1,0"' in dom
    before = opened(page)[0]
    cells = [text.split("</button>")[0] for text in dom.split("<button")[1:]]
    assert cells != [text.split("</button>")[0] for text in before.split("<button")[1:]]
