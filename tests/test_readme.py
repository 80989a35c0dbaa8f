"""The README runs: its code, its commands, its links, and what it says about downloads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from quadform.cli import _app

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_code_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    if "explain" in block:
        assert all(form in printed for form in ("dense", "convolution", "graph", "recurrent"))


def test_the_readme_has_code() -> None:
    assert BLOCKS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_make_commands_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^ {4}|`)make (?:\w+=\S+ )?(\w+)", path.read_text(), re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_quadform_commands_exist_with_their_options(path: Path) -> None:
    if not _app.app.registered_commands:
        _app.register_verbs()
    group = typer.main.get_command(_app.app)
    assert isinstance(group, typer.core.TyperGroup)
    for verb, rest in re.findall(r"(?:^ {4}|`)quadform (\w+)([^`\n]*)", path.read_text(), re.MULTILINE):
        assert verb in group.commands, f"quadform {verb}"
        known = {option for parameter in group.commands[verb].params for option in parameter.opts}
        assert set(re.findall(r"(--[\w-]+)", rest)) <= known, f"quadform {verb}{rest}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith("#"):
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert target[1:] in {heading.lower().replace(" ", "-") for heading in headings}, target
        elif not target.startswith("https://"):
            assert (path.parent / target).exists(), target


def test_the_sizes_that_the_readme_names_are_those_of_the_constraints() -> None:
    pins = (ROOT / "constraints.txt").read_text() + (ROOT / "requirements" / "no-deps.txt").read_text()
    sizes: dict[str, float] = {}
    section = ""
    for line in pins.splitlines():
        header = re.fullmatch(r"# \[(.+)\]", line)
        size = re.search(r"==.*#\s*([\d.]+)$", line)
        section = header.group(1) if header else section
        sizes[section] = sizes.get(section, 0.0) + (float(size.group(1)) if size else 0.0)
    common = sizes["run time"] + sizes["hf"]
    for command, expected in (("demo", common + sizes["demo"]), ("test", common + sizes["test"] + 3.0)):
        said = re.search(rf"make {command}\n\ndownloads (\d+) MB", README)
        assert said is not None
        assert abs(float(said.group(1)) - expected) < 10, f"make {command}: {expected:.0f} MB"
