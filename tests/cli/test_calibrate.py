"""The command `quadform calibrate`: the table, JSON, the file, and one line for everything that goes wrong."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from quadform.cli import main
from quadform.forms import _calibration, _load, _rates


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Runs the command with an empty cache on a quiet machine of fixed speed: (exit code, stdout, stderr)."""
    times = [2 * _calibration.SIZE**3 / 1.25e11, 2 * _calibration.COPIED / 2e10, _calibration.STEPS * 1e-5]
    monkeypatch.setattr(_calibration, "_repeat", lambda tasks: [[its] * 15 for its in times])
    monkeypatch.setattr(_load.Watch, "others", lambda self: 0.0)
    monkeypatch.setenv("QUADFORM_CACHE", str(tmp_path))
    threads = torch.get_num_threads()
    _rates.forget()

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quadform", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    yield command
    torch.set_num_threads(threads)
    _rates.forget()


def test_the_table_and_the_file(run, tmp_path):
    code, out, err = run("calibrate")
    assert (code, err) == (0, "")
    assert "125.0 GFLOP/s" in out and "20.0 GB/s" in out and "10.0 µs" in out
    assert f"File: {tmp_path / 'calibration.json'}\n" in out
    assert (tmp_path / "calibration.json").exists()


def test_json(run, tmp_path):
    code, out, err = run("calibrate", "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["rates"]["bytes_per_second"] == pytest.approx(2e10) and data["threads"] == torch.get_num_threads()
    assert data["file"] == str(tmp_path / "calibration.json")


def test_each_number_of_threads_has_its_own(run, tmp_path):
    assert json.loads(run("calibrate", "--json")[1])["threads"] == 1
    assert json.loads(run("calibrate", "--json", "--threads", "2")[1])["threads"] == 2
    assert [kept.threads for kept in _rates.read(tmp_path / "calibration.json")] == [1, 2]


def test_explain_uses_it(run):
    explain = ("explain", "All()", "Softmax()", "-n", "64")
    assert json.loads(run(*explain, "--json")[1])["rates"]["source"] == "static"
    assert "quadform calibrate" in run(*explain)[1]
    date = json.loads(run("calibrate", "--json")[1])["date"]
    assert json.loads(run(*explain, "--json")[1])["rates"]["source"] == f"calibrated {date}"
    assert date in run(*explain)[1]


def test_a_busy_machine_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(_load.Watch, "others", lambda self: 99.0)
    code, out, err = run("calibrate")
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert err.startswith("quadform: this machine is not quiet enough to calibrate: other processes keep 99.0 of")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_one_line_and_force_replaces_it(run, tmp_path):
    file = tmp_path / "calibration.json"
    file.write_text("garbage")
    code, out, err = run("calibrate")
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert err.startswith(f"quadform: {file} is not a calibration") and file.read_text() == "garbage"
    assert run("calibrate", "--force")[0] == 0
    assert len(_rates.read(file)) == 1
