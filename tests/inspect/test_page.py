"""The report opened in a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.inspect.browser import OUTSIDE, evaluated, needs_axe, needs_browser, opened, violations
from tests.inspect.sample import FORMS, sample, without_views

from quadform.inspect import Report
from quadform.inspect._html import LIMIT, PALETTE, PAPERS, SHARES, ink, mix

pytestmark = needs_browser
VIEWS = ("As a matrix", "As a kernel over j", "As a recurrent state", "As a graph")
ROWS = "[...document.querySelectorAll('#rows tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))"
CELLS = "[...document.querySelectorAll('.length:not([hidden]) .map button')].map(cell => cell.innerText)"


@pytest.fixture(scope="module")
def report() -> Report:
    return sample()


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    report.to_html(path)
    return path


def test_the_map_comes_first_and_the_four_views_are_drawn(page: Path):
    dom, console = opened(page)
    assert console == []
    assert len(re.findall(r'data-at="\d', dom)) == 2 * 4 * 6
    assert dom.count('aria-current="true"') == 2, "one cell of the map and one row of the table"
    for view in VIEWS:
        assert view in dom
    headings = [
        "Map at 64 tokens",
        "In words",
        "How many of 24",
        "All heads",
        "Layer 0, head 3",
        "number of tokens",
        "Definitions",
    ]
    at = [dom.index(f">{text}") if f">{text}" in dom else dom.index(text, dom.index("</header>")) for text in headings]
    assert at == sorted(at)
    assert "data:image/png;base64," in dom
    assert "a &lt;b&gt;synthetic&lt;/b&gt; model" in dom and "<b>synthetic" not in dom


def test_a_link_opens_its_head_at_its_length(page: Path):
    dom, console = opened(page, "#head-1-2&length=128")
    assert console == []
    assert 'data-head="1,2"' in dom and 'data-length="128"' in dom
    assert "Layer 1, head 2, at 128 tokens" in dom
    assert 'data-length="64"' in opened(page, "#head-1-2")[0]


@pytest.mark.parametrize("fragment", ["#head-9-9", "#length=7&sort=nothing&level=x", "#%&=&kind=%E0%A4%A", "#oracles"])
def test_a_link_to_what_is_not_there_shows_the_page(page: Path, fragment: str):
    dom, console = opened(page, fragment)
    assert console == []
    assert "Layer 0, head 3, at 64 tokens" in dom


def test_the_views_say_why_they_cannot_be_drawn(page: Path):
    dom = opened(page, "#head-3-0")[0]
    assert "Cross-attention has no kernel view" in dom and "nothing streams" in dom
    assert "does not apply: offsets between two sequences mean nothing" in dom
    assert "keys, which send" in dom


def test_a_grid_has_a_kernel_over_two_dimensions(page: Path):
    dom = opened(page, "#head-2-4")[0]
    assert "As a kernel over two dimensions" in dom
    assert re.search(r'<canvas[^>]* width="15" height="15"', dom)
    assert "8 \u00d7 8 cells behind 1 special token" in dom
    alpha = (
        "(() => { const c = document.querySelector('canvas'); "
        "return [...c.getContext('2d').getImageData(0, 0, 15, 15).data].filter((_, i) => i % 4 === 3); })()"
    )
    levels = evaluated(page, alpha, "#head-2-4")
    assert max(levels) == 255 and min(levels) < 128


def test_errors_stand_beside_the_baseline_and_costs_say_what_is_not_cheaper(page: Path, report: Report):
    dom = opened(page, "#head-1-0")[0]
    head = report[1, 0]
    table = "[...document.querySelectorAll('#head table')][0].innerText"
    text = evaluated(page, table, "#head-1-0")
    assert "attention as it is" in text and "not cheaper" in text
    assert f"{100 * head.errors['graph-16'].raw:.0f}\xa0%" in text
    assert dom.count('<u style="left:') == len(head.errors)
    assert "What no kernel with so many features can go below" in dom
    marker = head.errors["mean"].raw / min(1.5, max(1.0, *(error.raw for error in head.errors.values())))
    (left,) = set(re.findall(r'<u style="left:\s*([\d.]+)%', dom))
    assert float(left) == pytest.approx(100 * marker, abs=0.02)


def test_clicks_open_heads_and_repaint_the_map(page: Path):
    before = evaluated(page, CELLS)
    clicks = (
        "document.querySelector('.map [data-at=\"1,0\"]').click();"
        "document.querySelector('[name=oracles]').click();"
        "document.querySelector('[name=metric][value=centred]').click();"
    )
    after = evaluated(page, f"[{CELLS}, location.hash, document.getElementById('head').dataset.head]", first=clicks)
    assert after[1:] == ["#head-1-0&metric=centred&oracles=1", "1,0"]
    assert after[0] != before
    assert evaluated(page, CELLS, after[1]) == after[0], "the link brings back the view"
    kinds = evaluated(page, CELLS, first="document.querySelector('[name=colour][value=kind]').click();")
    assert [cell.split()[0] for cell in kinds] != [cell.split()[0] for cell in before]


def test_the_arrow_keys_move_on_the_map(page: Path):
    keys = (
        "const cell = document.querySelector('.map [data-at=\"0,0\"]'); cell.focus();"
        "for (const key of ['ArrowRight', 'ArrowDown', 'ArrowLeft', 'ArrowLeft'])"
        "  document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));"
    )
    assert evaluated(page, "[document.activeElement.dataset.at, cell.tabIndex]", first=keys) == ["1,0", -1]


def test_filters_change_the_table_and_stay_in_the_address(page: Path, report: Report):
    change = (
        "const set = (name, value) => { const box = document.querySelector(`.filters [name=${name}]`);"
        " box.value = value; box.dispatchEvent(new Event('change', {bubbles: true})); };"
        "set('layer', '1'); set('level', '10');"
    )
    rows, address, count = evaluated(
        page, f"[{ROWS}, location.hash, document.getElementById('count').innerText]", first=change
    )
    best = [head.best("raw", report.cheaper_forms()) for head in report.section().layers[1].heads]
    kept = [at for at, (_, error) in enumerate(best) if error <= 0.1]
    assert 0 < len(kept) < 6
    assert [(row[0], row[1]) for row in rows] == [("1", str(at)) for at in kept]
    assert address == "#head-0-3&layer=1&level=10" and count == f"{len(kept)} of 24 heads"
    assert evaluated(page, ROWS, address) == rows
    beyond = evaluated(page, ROWS, "#layer=1&level=10&side=beyond")
    assert len(beyond) == 6 - len(kept)
    form = next(form for form, _ in best)
    assert {row[3][1:].strip() for row in evaluated(page, ROWS, f"#form={form.replace('+', '%2B')}")} == {form}
    kinds = {row[2] for row in evaluated(page, ROWS, "#kind=window")}
    assert kinds == {"window"}
    assert len(evaluated(page, ROWS, address, first="document.getElementById('reset').click();")) == 24


def test_headers_sort(page: Path, report: Report):
    click = "document.querySelector('[data-sort=effective_degree]').click();"
    state = "document.querySelector('[data-column=effective_degree]').getAttribute('aria-sort')"
    degrees = sorted(head.structure["effective_degree"] for head in report.heads())  # type: ignore[type-var]
    rows, said, address = evaluated(page, f"[{ROWS}, {state}, location.hash]", first=click)
    column = [float(row[7]) for row in rows]
    assert column == pytest.approx(degrees, rel=0.01) and said == "ascending"
    down, said, address = evaluated(page, f"[{ROWS}, {state}, location.hash]", first=click * 2)
    assert [float(row[7]) for row in down] == column[::-1] and said == "descending"
    assert address.endswith("sort=effective_degree&down=1")
    window = [row[9] for row in evaluated(page, ROWS, "#sort=window_mass&down=1")]
    assert window[-6:] == ["\u2013"] * 6, "what is not defined comes last in either order"


def test_definitions_appear_on_focus_and_touch_and_go_with_escape(page: Path):
    steps = """
        const tip = document.getElementById('tip'), centred = document.querySelector('[data-term=centred]'), seen = [];
        const now = () => seen.push([tip.hidden, tip.textContent, centred.getAttribute('aria-describedby')]);
        centred.focus(); now();
        document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'})); now();
        for (const term of document.querySelectorAll('.length:not([hidden]) .legend [data-term]')) { term.click(); now(); }
        document.querySelector('h1').click(); now();
    """
    focused, escaped, *clicked, away = evaluated(page, "seen", first=steps)
    assert focused[0] is False and "mean output is removed" in focused[1] and focused[2] == "tip"
    assert escaped[0] is True and escaped[2] is None
    assert [hidden for hidden, *_ in clicked] == [False] * len(FORMS)
    assert all(form.description in text for form, (_, text, _) in zip(FORMS.values(), clicked, strict=True))
    assert away[0] is True


def test_charts_over_the_lengths(page: Path, report: Report):
    labels = evaluated(
        page, "[...document.querySelectorAll('#lengths svg')].map(chart => chart.getAttribute('aria-label'))"
    )
    shares = []
    for length in (64, 128):
        heads = report.heads(length)
        shares.append(sum(head.error("window-32", "centred") <= 0.1 for head in heads) / len(heads))
    assert (
        f"centred {100 * shares[0]:.0f}\xa0% at 64, {100 * shares[1]:.0f}\xa0% at 128"
        in labels[list(FORMS).index("window-32")]
    )
    assert len(labels) >= 2 * len(FORMS)


def test_one_length_and_nothing_timed(tmp_path: Path):
    path = tmp_path / "one.html"
    sample(lengths=(32,), seconds=False, bounds=False, complete=False).to_html(path)
    dom, console = opened(path, "#head-1-1")
    assert console == []
    assert "Interrupted: measuring stopped" in dom
    assert "Nothing was timed: the machine was too busy" in dom and "of the FLOPs" in dom
    assert "no form is known to be cheaper here" in dom
    assert re.search(r'<section id="lengths"[^>]*hidden=""', dom)
    assert "Lower bounds were" not in dom and "No lower bounds were computed" in dom


@pytest.mark.parametrize("width", [360, 1280])
def test_no_width_scrolls_the_page_sideways(page: Path, tmp_path: Path, width: int):
    frame = tmp_path / "frame.html"
    source = page.read_text("utf-8").replace(
        "</body>",
        "<script>addEventListener('load', () => parent.postMessage("
        "[document.documentElement.scrollWidth, innerWidth], '*'));</script></body>",
    )
    (tmp_path / "inner.html").write_text(source, "utf-8")
    listen = "addEventListener('message', event => { document.body.dataset.width = JSON.stringify(event.data); })"
    frame.write_text(
        f"<!doctype html><body><script>{listen}</script><iframe src='inner.html#head-0-0' width={width} height=900>",
        "utf-8",
    )
    dom, _ = opened(frame)
    match = re.search(r'data-width="\[(\d+),(\d+)\]"', dom)
    assert match
    assert int(match.group(1)) <= int(match.group(2)) == width


def test_nothing_leaves_the_page(page: Path):
    text = page.read_text("utf-8")
    assert not re.search(OUTSIDE, text)
    assert "default-src 'none'" in text


def test_the_page_of_twelve_by_twelve_heads_has_every_view_below_the_limit():
    page = sample(lengths=(128,), layers=12, heads=12).to_html()
    assert len(page.encode()) < LIMIT
    assert page.count('"png":') == 144 and '"edges":' in page


def test_a_large_model_has_a_map_and_a_table(tmp_path: Path):
    path = tmp_path / "large.html"
    text = without_views(sample(lengths=(32,)), (150, 33)).to_html(path)
    assert len(text.encode()) < LIMIT
    dom, console = opened(path, "#head-149-32")
    assert console == []
    assert len(re.findall(r'data-at="\d', dom)) == 150 * 33
    assert "Too many heads to draw each of them" in dom and "Layer 149, head 32" in dom
    assert "Show all 4950 rows" in dom


@needs_axe
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("fragment", ["", "#head-3-1&colour=kind&metric=centred&oracles=1&length=128"])
def test_accessibility(page: Path, dark: bool, fragment: str):
    assert violations(page, fragment, dark=dark) == []
    assert violations(page, fragment, dark=dark, first="document.querySelector('[data-term]').focus();") == []


def test_axe_notices_what_is_wrong(page: Path):
    pytest.importorskip("axe_core_python")
    wrong = "document.querySelector('h1').style.color = '#ddd'; document.querySelector('img').removeAttribute('alt');"
    wrong += "document.querySelector('img').removeAttribute('title');"
    found = violations(page, first=wrong)
    assert {text.split(":")[0] for text in found} == {"color-contrast", "image-alt"}


def test_cells_contrast_with_their_text():
    for colour in PALETTE:
        for paper in PAPERS.values():
            for share in SHARES:
                shade = mix(colour, paper, share)
                assert contrast(shade, ink(shade)) >= 4.5


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio."""
    values = []
    for colour in (one, other):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        values.append(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05)
    return max(values) / min(values)
