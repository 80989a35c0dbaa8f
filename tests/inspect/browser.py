"""Pages opened in headless Chromium, and checked there by axe-core."""

from __future__ import annotations

import html
import importlib.resources
import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

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
    "--virtual-time-budget=8000",
    "--window-size=1280,1000",
    "--dump-dom",
]
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the path"),
]
needs_axe = pytest.mark.skipif(find_spec("axe_core_python") is None, reason="axe-core-python is not installed")
OUTSIDE = (
    r"""(?:src|href|action|data)\s*=\s*["']?\s*(?:https?:)?//|@import|url\(|fetch\(|XMLHttpRequest|<link|import\("""
)
"""What a page that loads something from elsewhere would hold."""
AXE = """
axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}).then(found => {
  const told = (rule, node) => [rule.id + ":", node.target.join(" "), node.failureSummary].join(" ");
  const violations = found.violations.flatMap(rule => rule.nodes.map(node => told(rule, node)));
  document.body.dataset.axe = JSON.stringify({violations, passes: found.passes.map(rule => rule.id)});
});
"""


def opened(page: Path, fragment: str = "", *, script: str = "", dark: bool = False) -> tuple[str, list[str]]:
    """The page's DOM after its scripts and then `script` ran, and what the browser's console said."""
    if script:
        source = page.read_text("utf-8")
        assert source.count("</body>") == 1
        page = page.with_name("copy-" + page.name)
        page.write_text(source.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [str(CHROMIUM), *FLAGS, scheme, profile, page.as_uri() + fragment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def evaluated(page: Path, expression: str, fragment: str = "", *, first: str = "", dark: bool = False) -> Any:
    """The JSON value of a JavaScript expression on the page, after the statements `first`."""
    script = f"{first}\ndocument.body.dataset.value = JSON.stringify({expression});"
    dom, console = opened(page, fragment, script=script, dark=dark)
    assert console == []
    return _read(dom, "value")


def violations(page: Path, fragment: str = "", *, first: str = "", dark: bool = False) -> list[str]:
    """What axe-core finds against WCAG 2.1 A and AA."""
    axe = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    script = "\n".join([first, axe.replace("</script", "<\\/script"), AXE])
    dom, console = opened(page, fragment, script=script, dark=dark)
    assert console == []
    found = _read(dom, "axe")
    assert "color-contrast" in found["passes"]
    return list(found["violations"])


def _read(dom: str, name: str) -> Any:
    match = re.search(rf'<body[^>]* data-{name}="([^"]*)"', dom)
    assert match, f"the page never wrote data-{name}"
    return json.loads(html.unescape(match.group(1)))
