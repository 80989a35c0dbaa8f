"""quadform explain, run as a program."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import quadform

COMMAND = [sys.executable, "-c", "from quadform.cli import main; main()", "explain"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)


def test_json_names_every_form():
    done = run("Window(127, sinks=4)", "Softmax()", "--length", "4096", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["chosen"] == "convolution"
    assert set(data["forms"]) == {"dense", "convolution", "graph", "recurrent"}


def test_the_table_says_why_a_form_refuses():
    done = run("Causal()", 'Kernel("elu1")', "-n", "512")
    assert done.returncode == 0, done.stderr
    assert "refuses:" in done.stdout and "chosen by auto" in done.stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (("Causl()",), "description: expected a call of one of"),
    (("Window(-1)",), "Window.left: expected an integer of at least 0, got -1"),
    (("Causal()", "Causal()"), "weights: expected weights such as Softmax()"),
    (("Causal()", "--dtype", "int8"), "--dtype: expected float64"),
    (("__import__('os').getcwd()",), "description: expected"),
])  # fmt: skip
def test_bad_input_is_one_line_on_stderr(arguments, message):
    done = run(*arguments)
    assert done.returncode != 0 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_the_version():
    done = subprocess.run([*COMMAND[:-1], "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == f"quadform {quadform.__version__}\n"
