"""quadform laws: tables, JSON, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import typer

from quadform.cli import laws as verb
from quadform.laws import DTYPES, NAMES, Outcome, Report
from quadform.laws._run import Entry

KEY = ("agreement", "window", "dense", "float32")


def report_of(error: float) -> Report:
    entry = Entry()
    outcome = Outcome(*KEY, error=error, tolerance=1e-5, witness="q (1, 1, 1, 1), k [1, 1]")
    entry.add(outcome)
    return Report(0, {KEY: entry}, [] if outcome.ok else [outcome])


def call(monkeypatch: pytest.MonkeyPatch, report: Report, **options: Any) -> None:
    def run(cases: int, seed: int, progress: Any) -> Report:
        progress(0, 1, "agreement: window")
        return report

    monkeypatch.setattr(verb, "run_laws", run)
    verb.laws(**{"cases": 1, "seed": 0, "as_json": False} | options)


def test_kept_laws_print_their_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    call(monkeypatch, report_of(1e-7))
    out = capsys.readouterr().out
    assert "agreement" in out
    assert "1.0e-07" in out
    assert "BROKEN" not in out


def test_a_broken_law_prints_its_witness_and_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught:
        call(monkeypatch, report_of(2.0))
    assert caught.value.exit_code == 1
    said = capsys.readouterr()
    assert "BROKEN" in said.out
    assert "q (1, 1, 1, 1), k [1, 1]" in said.err


def test_a_law_without_a_case_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(0.0)
    report.unseen.append(("streaming", "hybrid", "float32"))
    with pytest.raises(typer.Exit):
        call(monkeypatch, report)
    assert "streaming / hybrid / float32" in capsys.readouterr().err


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        call(monkeypatch, report_of(float("inf")), as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is False
    assert data["rows"][0]["worst_error"] == "inf"
    assert data["rows"][0]["cases"] == 1


def test_the_command_on_this_machine() -> None:
    """Every law once, in a process of its own: no cell is empty and every form keeps every law."""
    command = [sys.executable, "-c", "from quadform.cli import main; main()", "laws", "--cases", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["ok"] is True
    assert {row["form"] for row in data["rows"]} >= set(NAMES)
    assert {row["dtype"] for row in data["rows"]} == set(DTYPES)
    assert all(row["cases"] > 0 for row in data["rows"])


def test_bad_options() -> None:
    command = [sys.executable, "-c", "from quadform.cli import main; main()", "laws", "--cases", "-1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cases" in done.stderr
