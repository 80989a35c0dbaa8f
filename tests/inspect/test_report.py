"""The report's files: JSON there and back, a page that stands alone, and nothing half-written."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from rich.console import Console
from tests.inspect.planted import PlantedCapture, PlantedModel, token_batches

from quadform import ArgumentError
from quadform.inspect import Report, inspect
from quadform.inspect._html import LIMIT
from quadform.inspect._png import png


@pytest.fixture(scope="module")
def report() -> Report:
    batches = [*token_batches(2, 3, 24, seed=0), *token_batches(2, 3, 80, seed=1)]
    return inspect(PlantedModel(), batches, capture=PlantedCapture(), name="a <b>model</b>", text="x & y")


def test_json_there_and_back(report: Report, tmp_path: Path):
    path = tmp_path / "report.json"
    text = report.to_json(path)
    assert Report.from_json(path) == report
    assert Report.from_json(text) == report
    assert json.loads(text)["schema"] == "quadform/inspect/2"


@pytest.mark.parametrize("text", ["{", '{"schema": "other/1"}', '{"schema": "quadform/inspect/2", "model": "m"}'])
def test_json_of_something_else(text: str):
    with pytest.raises(ArgumentError, match="source: expected"):
        Report.from_json(text)


def test_json_with_an_unknown_key(report: Report):
    data = report.to_dict() | {"surprise": 1}
    with pytest.raises(ArgumentError, match="surprise"):
        Report.from_json(json.dumps(data))


def test_the_page_stands_alone(report: Report, tmp_path: Path):
    page = report.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text("utf-8") == page
    assert len(page.encode()) < LIMIT
    assert not re.search(r"(src|href|action)\s*=\s*[\"']?\s*(https?:)?//", page)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|<link", page)
    assert "default-src 'none'" in page
    assert "<b>model" not in page and "a &lt;b&gt;model&lt;/b&gt;" in page
    assert page.count("<td><button") == 12


def test_the_page_of_a_large_model_stays_small(report: Report):
    section = report.section(80)
    layer = dataclasses.replace(section.layers[0], heads=section.layers[0].heads * 11)
    for layers in (32, 150):
        large = dataclasses.replace(report, sections=(dataclasses.replace(section, layers=(layer,) * layers),))
        assert len(large.to_html().encode()) < LIMIT
    assert large.table().row_count == 150


def test_terminal_tables(report: Report):
    console = Console(width=80, file=io.StringIO())
    console.print(report.table(24))
    console.print(report.summary_table(24))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "24 tokens" in text and "window-32+sinks" in text and "best cheaper form" in text
    assert "…" not in text
    with pytest.raises(ArgumentError, match=r"length: expected one of \[24, 80\], got 7"):
        report.table(7)


def test_a_png_has_the_pixels_it_was_given():
    data = png(bytes([0, 255, 128, 17, 0, 0, 0, 0, 255]), 3, (1, 2, 3))
    start = data.index(b"IDAT") + 4
    size = int.from_bytes(data[start - 8 : start - 4], "big")
    rows = zlib.decompress(data[start : start + size])
    assert rows == bytes([0, 0x0F, 0x70, 0, 0x10, 0x00, 0, 0x00, 0xF0])
    assert data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82")


def test_a_full_disk_leaves_the_old_report(report: Report, tmp_path: Path):
    path, source = tmp_path / "report.html", tmp_path / "source.json"
    path.write_text("the old one")
    report.to_json(source)
    program = (
        "import resource, signal, sys\n"
        "from quadform.inspect import Report\n"
        "report = Report.from_json(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "report.to_html(sys.argv[2])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, source, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "OSError" in done.stderr
    assert path.read_text() == "the old one"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["report.html", "source.json"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 5000
