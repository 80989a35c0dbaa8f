"""Two reports side by side."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from tests.inspect.browser import OUTSIDE, evaluated, needs_axe, needs_browser, opened, violations
from tests.inspect.sample import FORMS, sample

from quadform import ArgumentError
from quadform.inspect import FormInfo, Report
from quadform.inspect._compare import MINUS, Comparison, compare


@pytest.fixture(scope="module")
def report() -> Report:
    return sample()


@pytest.fixture(scope="module")
def lengths(report: Report) -> Comparison:
    return compare(report, report, length_a=64, length_b=128)


def test_counts_are_those_of_the_summaries(report: Report, lengths: Comparison):
    data = lengths.to_dict()
    assert data["schema"] == "quadform/compare/1"
    assert data["a"]["length"] == 64 and data["b"] == {
        "model": report.model,
        "text": report.text,
        "length": 128,
        "heads": 24,
    }
    assert len(data["counts"]) == (len(FORMS) + 2) * 2 * 3
    differing = 0
    for count in data["counts"]:
        for side, length in (("a", 64), ("b", 128)):
            assert count[side] == report.summary(length, count["metric"])[count["form"]][count["level"]]
        assert count["difference"] == count["b"] - count["a"]
        differing += count["difference"] != 0
    assert differing > 5
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_heads_that_changed_most_come_first(report: Report, lengths: Comparison):
    assert len(lengths.changes) == 24 and lengths.refusal is None
    sizes = [abs(change.difference) for change in lengths.changes]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
    first = lengths.changes[0]
    heads = [report.section(length).layers[first.layer].heads[first.head] for length in (64, 128)]
    assert [(first.form_a, first.raw_a), (first.form_b, first.raw_b)] == [
        head.best("raw", report.cheaper_forms()) for head in heads
    ]
    assert first.centred_a == heads[0].errors[first.form_a].centred


def test_a_report_compared_with_itself_does_not_differ(report: Report):
    same = compare(report, report)
    assert {count.difference for count in same.counts} == {0}
    assert {change.difference for change in same.changes} == {0.0}


def test_other_shapes_are_compared_by_counts_alone(report: Report, tmp_path: Path):
    found = compare(report, sample(layers=3, heads=5))
    assert found.changes == ()
    assert (
        found.refusal
        == "A has 4 layers with [6] heads and B 3 layers with [5] heads, so their heads are not compared one by one"
    )
    assert found.refusal in found.to_html()
    assert found.to_dict()["changes"] == []


def test_a_form_of_one_side_only_has_no_difference(report: Report):
    forms = {name: form for name, form in report.forms.items() if name != "graph-16"} | {
        "window-8": FormInfo("X", "narrow", False, "window")
    }
    other = dataclasses.replace(report, forms=forms)
    found = compare(report, other)
    assert list(found.forms()) == [*FORMS, "window-8"]
    missing = {count.form: (count.a, count.b, count.difference) for count in found.counts if None in (count.a, count.b)}
    assert set(missing) == {"graph-16", "window-8"}
    assert missing["graph-16"][1:] == (None, None) and missing["window-8"] == (None, 0, None)
    page = found.to_html()
    assert "Only one of the two was compared with: graph-16, window-8" in page


def test_a_length_that_is_not_there(report: Report):
    with pytest.raises(ArgumentError, match="length"):
        compare(report, report, length_b=7)


def test_the_table_fits_a_terminal(lengths: Comparison):
    console = Console(width=80, file=io.StringIO())
    console.print(lengths.table())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    (row,) = (line for line in text.splitlines() if line.lstrip().startswith("window-32+sinks"))
    counts = [count for count in lengths.counts if count.form == "window-32+sinks" and count.metric == "raw"]
    shown = [int(word.replace(MINUS, "-")) for word in row.split()[2:]]
    assert shown == [value for count in counts for value in (count.a, count.b, count.difference)]


def test_the_page_stands_alone(lengths: Comparison, tmp_path: Path):
    path = tmp_path / "compare.html"
    page = lengths.to_html(path)
    assert path.read_text("utf-8") == page
    assert not re.search(OUTSIDE, page) and "default-src 'none'" in page
    assert page.count("<td><button") == 48
    assert "<b>synthetic" not in page and "at 64 and at 128 tokens" in page


@pytest.fixture(scope="module")
def page(lengths: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("compare") / "compare.html"
    lengths.to_html(path)
    return path


CELLS = (
    "[...document.querySelectorAll('.map')].map(map => [...map.querySelectorAll('button')].map(cell => cell.innerText))"
)
browser = [*needs_browser]


class TestInABrowser:
    pytestmark = browser

    def test_two_maps_and_one_head_of_both(self, page: Path, report: Report):
        dom, console = opened(page)
        assert console == []
        assert dom.count('class="map"') == 2
        clicks = "document.querySelectorAll('.map')[1].querySelector('[data-at=\"1,0\"]').click();"
        text, current, before = evaluated(
            page,
            "[document.getElementById('head').innerText, document.querySelectorAll('[aria-current]').length, "
            + CELLS
            + "]",
            first=clicks,
        )
        assert current == 2 and "Layer 1, head 0" in text
        for length in (64, 128):
            form, _ = report.section(length).layers[1].heads[0].best("raw", report.cheaper_forms())
            assert f"best {form} at" in text
        switch = "document.querySelector('[name=metric][value=centred]').click();"
        after = evaluated(page, CELLS, first=switch)
        assert after[0] != before[0] and after[1] != before[1]

    @needs_axe
    @pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
    def test_accessibility(self, page: Path, dark: bool):
        assert violations(page, dark=dark, first="document.querySelector('.map button').click();") == []
