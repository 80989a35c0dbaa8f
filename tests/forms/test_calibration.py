"""calibrate: what it measures, what it keeps, and what it refuses to measure or to read."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import quadform as qf
from quadform.forms import Calibration, Cost, Rates, _calibration, _load, _rates, cache_file, rates

FAST = Rates(flops_per_second=1e12, bytes_per_second=2e11, seconds_per_step=1e-6)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The file of an empty cache, forgotten before and after."""
    monkeypatch.setenv("QUADFORM_CACHE", str(tmp_path / "cache"))
    _rates.forget()
    yield tmp_path / "cache" / "calibration.json"
    _rates.forget()


@pytest.fixture
def measured(monkeypatch):
    """A quiet machine whose timings are those of `FAST`; the value counts the measurements."""
    count: list[int] = []

    def repeat(tasks):
        count.append(len(tasks))
        seconds = [2 * _calibration.SIZE**3 / 1e12, 2 * _calibration.COPIED / 2e11, _calibration.STEPS * 1e-6]
        return [[its] * 15 for its in seconds[: len(tasks)]]

    monkeypatch.setattr(_calibration, "_repeat", repeat)
    monkeypatch.setattr(_load.Watch, "others", lambda self: 0.0)
    return count


def here(**changes):
    """A calibration of this process."""
    machine, version, threads = _rates.this_key()
    return Calibration(
        **{"rates": FAST, "machine": machine, "torch": version, "threads": threads, "date": "2026-01-31"} | changes
    )


def close(a: Rates, b: Rates) -> bool:
    pairs = [
        (getattr(a, name), getattr(b, name)) for name in ("flops_per_second", "bytes_per_second", "seconds_per_step")
    ]
    return all(x == pytest.approx(y) for x, y in pairs)


def test_without_a_calibration_the_rates_are_static(file):
    assert rates() == qf.forms.STATIC and not file.parent.exists()


def test_what_is_measured_is_kept_and_read_again(file, measured):
    found = qf.calibrate()
    assert close(found.rates, FAST) and found.threads == torch.get_num_threads() and found.torch == torch.__version__
    assert rates() == found.rates
    _rates.forget()
    assert rates() == found.rates
    assert qf.calibrate() == found and len(measured) == 1
    assert [path.name for path in file.parent.iterdir()] == ["calibration.json"]


def test_force_measures_again_and_keeps_the_calibrations_of_others(file, measured):
    file.parent.mkdir()
    other = here(machine="another machine")
    _rates.write(file, [other, here(date="2025-12-31")])
    assert qf.calibrate().date == "2025-12-31" and not measured
    found = qf.calibrate(force=True)
    assert found.date > "2025-12-31" and len(measured) == 1
    assert _rates.read(file) == [other, found]


@pytest.mark.parametrize(
    "changes", [{"machine": "another"}, {"torch": "1.0"}, {"threads": torch.get_num_threads() + 1}]
)
def test_a_calibration_of_something_else_is_not_used(file, changes):
    file.parent.mkdir()
    _rates.write(file, [here(**changes)])
    assert rates() == qf.forms.STATIC


def test_costs_and_the_choice_follow_the_rates(file):
    cost = Cost(flops=6e10, bytes=4e10, steps=100, efficiency=0.5)
    assert cost.seconds == pytest.approx(4.0 + 100 * 2e-5)
    qkv = [torch.empty(1, 8, 256, 64, device="meta")] * 3
    assert qf.explain(*qkv, qf.Window(63), qf.Softmax()).chosen == "convolution"
    _rates.remember(here(rates=Rates(1e10, 1e9, 1e-2)))
    assert cost.seconds == pytest.approx(40.0 + 1.0)
    assert qf.explain(*qkv, qf.Window(63), qf.Softmax()).chosen == "dense"


def test_explain_says_what_its_times_rest_on(file):
    qkv = [torch.empty(1, 2, 16, 4, device="meta")] * 3
    before = qf.explain(*qkv, qf.All(), qf.Softmax())
    assert before.to_dict()["rates"]["source"] == "static" and "static" in str(before)
    _rates.remember(here())
    after = qf.explain(*qkv, qf.All(), qf.Softmax())
    assert after.to_dict()["rates"] == {
        "flops_per_second": 1e12, "bytes_per_second": 2e11, "seconds_per_step": 1e-6, "source": "calibrated 2026-01-31",
    }  # fmt: skip
    assert "calibrated 2026-01-31" in str(after)


def test_the_reference_of_the_docstring(file, measured):
    lines = textwrap.dedent((inspect.getdoc(qf.calibrate) or "").split("Reference:")[1])
    exec(lines, {"qf": qf, "flops": 3e12, "bytes": 1e10, "steps": 7})


GOOD = {"rates": {"flops_per_second": 1e11, "bytes_per_second": 1e10, "seconds_per_step": 1e-5},
        "machine": "m", "torch": "2", "threads": 1, "date": "2026-01-31"}  # fmt: skip


def entry(**changes) -> str:
    return json.dumps({"schema": _rates.SCHEMA, "calibrations": [GOOD | changes]})


def rate(value: str) -> str:
    return entry().replace("100000000000.0", value)


def test_the_entry_that_the_bad_ones_differ_from_is_good(file):
    file.parent.mkdir()
    file.write_text(entry())
    assert [kept.machine for kept in _rates.read(file)] == ["m"]


BAD = {
    "nothing": "",
    "not JSON": "garbage",
    "not UTF-8": "\udcff",
    "a list": "[]",
    "another schema": entry().replace("calibration/1", "calibration/2"),
    "no list": json.dumps({"schema": _rates.SCHEMA}),
    "an entry that is none": json.dumps({"schema": _rates.SCHEMA, "calibrations": [1]}),
    "deep": '{"schema": ' + "[" * 100_000,
    "large": entry() + " " * _rates.LARGEST,
    "NaN": rate("NaN"),
    "infinite": rate("1e999"),
    "negative": rate("-1e11"),
    "zero": rate("0"),
    "too fast": rate("1e15"),
    "too slow": rate("1e7"),
    "a huge integer": rate("1" + "0" * 400),
    "true": rate("true"),
    "a text": rate('"1e11"'),
    "null": rate("null"),
    "an unknown key": entry(colour="blue"),
    "no date": entry(date="yesterday"),
    "no threads": entry(threads=0),
    "half a thread": entry(threads=1.5),
    "a number for a machine": entry(machine=3),
    "no rates": entry(rates={}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_and_only_force_replaces_it(file, measured, name):
    file.parent.mkdir()
    file.write_bytes(BAD[name].encode(errors="surrogateescape"))
    message = (
        f"^{re.escape(str(file))} is not a calibration .*delete it, or replace it with `quadform calibrate --force`"
    )
    with pytest.raises(qf.QuadformError, match=message) as caught:
        qf.calibrate()
    assert "\n" not in str(caught.value) and not measured
    with pytest.warns(UserWarning, match=message):
        assert rates() == qf.forms.STATIC
    assert close(qf.calibrate(force=True).rates, FAST)
    assert len(_rates.read(file)) == 1


def test_a_bad_file_warns_once_and_changes_no_result(file):
    q = torch.randn(1, 1, 8, 4)
    expected = torch.softmax(q @ q.mT / 2, -1) @ q
    file.parent.mkdir()
    file.write_text("garbage")
    with pytest.warns(UserWarning, match="costs are predicted with static rates") as caught:
        for _ in range(3):
            assert torch.allclose(qf.attend(q, q, q, qf.All(), qf.Softmax()), expected, atol=1e-6)
    assert len(caught) == 1


def test_a_file_that_cannot_be_written_is_named(file, measured):
    file.mkdir(parents=True)
    with pytest.raises(qf.QuadformError, match=f"^{re.escape(str(file))} cannot be written .*set QUADFORM_CACHE"):
        qf.calibrate(force=True)
    assert list(file.parent.iterdir()) == [file]


def test_an_interrupted_write_leaves_the_old_file(file, measured, monkeypatch):
    qf.calibrate()
    before = file.read_bytes()

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(qf.QuadformError, match="no space left"):
        qf.calibrate(force=True)
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]


def test_a_crowded_machine_is_refused_with_the_figures(file, measured, monkeypatch):
    monkeypatch.setattr(_load.Watch, "others", lambda self: 3.25)
    monkeypatch.setattr(_load, "cores", lambda: 4)
    with pytest.raises(qf.Refused, match=r"other processes keep 3.2 of 4 cores busy, and at most 2.0 may be"):
        qf.calibrate()
    assert len(measured) == _calibration.ATTEMPTS and not file.exists() and rates() == qf.forms.STATIC


def test_times_that_vary_are_refused_with_the_figures(file, measured, monkeypatch):
    times = [1e-3] * 7 + [2e-3] * 8
    monkeypatch.setattr(_calibration, "_repeat", lambda tasks: [times] * len(tasks))
    with pytest.raises(qf.Refused, match=r"less than 1.00 ms and a quarter more than 2.00 ms, 2.00 times as long"):
        qf.calibrate()
    assert not file.exists()
    assert "2.00 times as long" in (_calibration.trouble() or "")


def test_an_attempt_may_be_disturbed(file, measured, monkeypatch):
    busy = iter([9.0, 9.0, 0.0])
    monkeypatch.setattr(_load.Watch, "others", lambda self: next(busy))
    assert close(qf.calibrate().rates, FAST) and len(measured) == 3


@pytest.mark.parametrize(
    ("cores", "threads", "most"), [(2, 1, 1.0), (2, 2, 0.5), (16, 8, 4.5), (1, 1, 0.5), (1, 4, 0.5), (64, 1, 32.0)]
)
def test_half_of_the_free_cores_may_be_busy(monkeypatch, cores, threads, most):
    monkeypatch.setattr(_load, "cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert _load.crowded(most) is None
    assert f"at most {most:.1f}" in (_load.crowded(most + 0.01) or "")


def test_the_work_of_others_is_what_this_process_did_not_do(monkeypatch):
    busy, own, wall = iter([100.0, 103.0]), iter([7.0, 8.0]), iter([50.0, 52.0])
    monkeypatch.setattr(_load, "busy_seconds", lambda: next(busy))
    monkeypatch.setattr(time, "process_time", lambda: next(own))
    monkeypatch.setattr(time, "perf_counter", lambda: next(wall))
    assert _load.Watch().others() == pytest.approx(1.0)


def test_where_the_kernel_does_not_count_the_load_average_does(monkeypatch):
    monkeypatch.setattr(_load, "busy_seconds", lambda: None)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 0.0, 0.0), raising=False)
    monkeypatch.setattr(_load, "_loaded", 1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1010.0)
    monkeypatch.setattr(time, "process_time", lambda: 30.0)
    assert _load.Watch().others() == pytest.approx(2.0)
    monkeypatch.delattr(os, "getloadavg")
    assert _load.Watch().others() == 0.0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no Linux")
def test_the_kernels_count_only_grows():
    first = _load.busy_seconds()
    assert first is not None and first >= 0 and (_load.busy_seconds() or 0) >= first


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"QUADFORM_CACHE": "mine", "XDG_CACHE_HOME": "xdg"}, "mine/calibration.json"),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, "xdg/quadform/calibration.json"),
        ("linux", {}, "home/.cache/quadform/calibration.json"),
        ("darwin", {"XDG_CACHE_HOME": "xdg"}, "home/Library/Caches/quadform/calibration.json"),
        ("win32", {"LOCALAPPDATA": "local"}, "local/quadform/Cache/calibration.json"),
        ("win32", {}, "home/AppData/Local/quadform/Cache/calibration.json"),
    ],
)
def test_where_the_file_is(monkeypatch, tmp_path, platform, variables, expected):
    for name in ("QUADFORM_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert cache_file() == tmp_path / expected


def test_without_a_home_the_static_rates_are_used(monkeypatch):
    def nowhere():
        raise RuntimeError("no home")

    for name in ("QUADFORM_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    _rates.forget()
    with pytest.warns(UserWarning, match="no home directory for a cache; set QUADFORM_CACHE"):
        assert rates() == qf.forms.STATIC
    _rates.forget()


def test_importing_reads_neither_the_file_nor_the_machine(file):
    program = """
        import sys, torch
        opened = []
        sys.addaudithook(lambda event, values: opened.append(str(values[0])) if event == "open" else None)
        import quadform
        assert opened
        print([name for name in opened if "calibration.json" in name or name.startswith("/proc")])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tasks_take_turns_and_a_slow_machine_has_fewer(monkeypatch):
    now, log = [0.0], []

    def task(name, seconds):
        def run():
            log.append(name)
            now[0] += seconds

        return run

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert _calibration._repeat([task("a", 0.001), task("b", 0.002)]) == [
        pytest.approx([0.001] * 15),
        pytest.approx([0.002] * 15),
    ]
    assert log == ["a", "b"] * 16
    assert _calibration._repeat([task("slow", 0.4)]) == [pytest.approx([0.4] * 5)]


def test_a_real_measurement_is_plausible(file, monkeypatch):
    monkeypatch.setattr(_calibration, "crowded", lambda others: None)
    monkeypatch.setattr(_calibration, "unsteady", lambda seconds: None)
    found = qf.calibrate()
    assert _rates.read(file) == [found]
