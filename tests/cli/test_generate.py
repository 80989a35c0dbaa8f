"""The command `quadform generate`: tokens as they come, states in files, and one line for everything that goes wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tests.integrations.causal import decoder, save_decoder
from tests.integrations.models import save_with_tokenizer, story

import quadform as qf
from quadform.cli import main
from quadform.integrations.hugging_face import load_model, read_mixers, with_mixers

KERNEL = "Causal(); Kernel('elu1')"
PROMPT = "ba bo bane hiko"


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return save_decoder(tmp_path_factory.mktemp("model"), story())


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return save_with_tokenizer(tmp_path_factory.mktemp("encoder"), story())


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    """A decoder with 16 positions."""
    return save_decoder(tmp_path_factory.mktemp("short"), story(), "gpt2", max_position_embeddings=16)


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Runs the command in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quadform", "generate", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_the_text_is_that_of_the_model_with_mixers(run, directory):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    model = load_model(directory, "AutoModelForCausalLM")
    with with_mixers(model, (qf.Causal(), qf.Kernel("elu1"))):
        expected = model.generate(**inputs, max_new_tokens=15, do_sample=False, use_cache=False)
    code, out, err = run(directory, PROMPT, "--tokens", 15, "--mixer", KERNEL)
    assert (code, err) == (0, "")
    assert out == f"{tokenizer.decode(expected[0, inputs['input_ids'].shape[1] :])}\n"
    assert run(directory, PROMPT, "--tokens", 15)[1] != out, "without mixers it is the model's own text"


def test_statistics_go_to_stderr(run, directory):
    code, out, err = run(directory, PROMPT, "-n", 7, "--mixer", KERNEL, "--stats")
    assert code == 0 and len(out.split()) == 7
    found = re.fullmatch(
        r"7 tokens, [\d.]+ tokens/s after the first; 6 tokens read and the first one written in [\d.]+ s; "
        r"state of ([\d,]+) bytes\n",
        err,
    )
    assert found and found[1] == "1,168", "2 layers: 2 heads of 8 (8 + 1) sums of 4 bytes, and a length of 8"


def test_json_holds_the_text_and_the_statistics(run, directory):
    text = run(directory, PROMPT, "-n", 7, "--mixer", KERNEL)[1]
    found = json.loads(run(directory, PROMPT, "-n", 7, "--mixer", KERNEL, "--json")[1])
    assert found.pop("text") == text[:-1]
    assert (found.pop("tokens"), found.pop("prompt"), found.pop("state_bytes")) == (7, 6, 1168)
    assert set(found) == {"first_seconds", "seconds", "tokens_per_second"}


@pytest.mark.parametrize("options", [["--mixer", KERNEL], []])
def test_a_state_goes_on_in_another_process(run, directory, tmp_path, options: list[str]):
    whole = run(directory, PROMPT, "--tokens", 12, *options)[1]
    first = run(directory, PROMPT, "--tokens", 5, "--state", "state", *options)[1]
    command = [
        sys.executable,
        "-m",
        "quadform.cli",
        "generate",
        directory,
        "--tokens",
        7,
        "--state",
        "state",
        "--resume",
    ]
    code = "import sys; from quadform.cli import main; sys.argv = ['quadform', *sys.argv[1:]]; main()"
    command = [sys.executable, "-W", "error", "-c", code, *command[3:], *options]
    rest = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (first + rest.stdout).split() == whole.split()
    assert [path.name for path in tmp_path.iterdir()] == ["state"], "nothing else is left"


def test_a_resumed_text_takes_a_further_prompt(run, directory):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    first = run(directory, PROMPT, "--tokens", 5, "--state", "state", "--mixer", KERNEL)[1]
    rest = run(directory, "lulu mu", "--tokens", 5, "--state", "state", "--resume", "--mixer", KERNEL)[1]
    start = tokenizer(PROMPT)["input_ids"]
    ids = torch.tensor([start + tokenizer(first + " lulu mu", add_special_tokens=False)["input_ids"]])
    model = load_model(directory, "AutoModelForCausalLM")
    with with_mixers(model, (qf.Causal(), qf.Kernel("elu1"))):
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, use_cache=False
        )
    assert rest.split() == str(tokenizer.decode(expected[0, ids.shape[1] :])).split()


def test_sampling_follows_its_seed(run, directory):
    texts = [run(directory, PROMPT, "--tokens", 20, "--temperature", 2, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_tokens_come_one_by_one(run, directory, monkeypatch):
    """Each piece is flushed when it is written: there are about as many as words."""
    pieces: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *args, **options: pieces.append(args[0] if args else "\n"))
    run(directory, PROMPT, "--tokens", 20, "--mixer", KERNEL)
    assert len([piece for piece in pieces if piece.strip()]) >= 15


def test_the_prompt_comes_from_standard_input(run, directory, monkeypatch, tmp_path):
    expected = run(directory, PROMPT, "--tokens", 5)
    (tmp_path / "prompt").write_text(PROMPT)
    with (tmp_path / "prompt").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert run(directory, "-", "--tokens", 5) == expected


def test_mixers_from_a_file(run, directory, tmp_path):
    mixers = {
        "*": KERNEL,
        "0": [
            {"heads": [1], "edges": "Window(4)", "weights": qf.Softmax().to_dict()},
            {
                "heads": [0],
                "edges": "Stencil(2, padding='causal')",
                "weights": "Taps()",
                "tensors": {"taps": [[0.5, 1], [1, 0]]},
            },
        ],
    }
    file = tmp_path / "mixers.json"
    file.write_text(json.dumps(mixers))
    read = read_mixers(str(file))
    assert isinstance(read, dict) and read["*"] == (qf.Causal(), qf.Kernel("elu1"))
    code, out, err = run(directory, PROMPT, "--tokens", 15, "--mixer", file)
    assert code == 0 and err == "" and len(out.split()) == 15
    assert out != run(directory, PROMPT, "--tokens", 15, "--mixer", KERNEL)[1]
    file.write_text(json.dumps({"*": KERNEL, "0": None, "1": None}))
    assert run(directory, PROMPT, "--tokens", 9, "--mixer", file) == run(directory, PROMPT, "--tokens", 9)


@pytest.mark.parametrize(
    "content, message",
    [
        ("[", "a JSON file of mixers"),
        ("[]", "a JSON object of layers"),
        ('{"0": 3}', "edges, weights and perhaps tensors for layer 0"),
        ('{"0": {"edges": "Causal()"}}', "edges, weights and perhaps tensors for layer 0"),
        ('{"0": [{"edges": "Causal()", "weights": "Softmax()"}]}', 'a list "heads"'),
        ('{"0": {"edges": "Causal()", "weights": "Kernel()", "tensors": {"x": ["a"]}}}', "lists of numbers by name"),
        ('{"0": {"edges": "Causal()", "weights": "Kernel()", "tensors": {"x": [1.0]}}}', "tensors: expected names"),
        ('{"0": "Softmax(); Causal()"}', "edges and then weights"),
        ('{"7": "Causal(); Kernel()"}', "layers from 0 to 1"),
        ('{"0": "All(); Kernel()"}', "causal edges for"),
        ('{"0": "TopK(2) & Causal(); Softmax()"}', "keeps no state"),
    ],
)
def test_wrong_mixers_are_one_line(run, directory, tmp_path, content: str, message: str):
    (tmp_path / "mixers.json").write_text(content)
    code, out, err = run(directory, PROMPT, "--mixer", "mixers.json")
    assert code == 1 and out == ""
    assert err.startswith("quadform: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--mixer", "Causal()"], "a JSON file of mixers"),
        (["--mixer", "Causal(); Kernel('cosine')"], "feature_map"),
        (["--resume"], "--state: expected a file to resume from"),
        (["--state", "missing/state"], "a folder that exists"),
        (["--state", "nothing", "--resume"], "a file that save_cache wrote"),
    ],
)
def test_wrong_arguments_are_one_line(run, directory, arguments: list[str], message: str):
    code, out, err = run(directory, PROMPT, *arguments)
    assert code == 1 and out == ""
    assert err.startswith("quadform: ") and err.count("\n") == 1 and message in err


def test_states_of_other_mixers_and_models_are_refused(run, directory, tmp_path):
    run(directory, PROMPT, "--tokens", 3, "--state", "state", "--mixer", KERNEL)
    code, _, err = run(directory, "--state", "state", "--resume")
    assert code == 1 and err.count("\n") == 1
    assert "state: expected for layer and group 0.0 one of Softmax(scale=" in err and "got Kernel(" in err
    other = tmp_path / "other"
    shutil.copytree(directory, other)
    decoder(
        "llama", load_model(directory, "AutoModelForCausalLM").config.vocab_size, rms_norm_eps=1e-5
    ).save_pretrained(other)
    model = load_model(other, "AutoModelForCausalLM")
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    model.save_pretrained(other)
    code, _, err = run(other, "--state", "state", "--resume", "--mixer", KERNEL)
    assert code == 1 and "a file that this model wrote" in err
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-9])
    code, _, err = run(directory, "--state", "state", "--resume", "--mixer", KERNEL)
    assert code == 1 and err.count("\n") == 1 and "a file that save_cache wrote" in err


def test_models_that_do_not_fit(run, encoder, short):
    code, _, err = run(encoder, PROMPT)
    assert code == 1 and err.count("\n") == 1 and "MODEL: expected" in err
    assert run(short, PROMPT, "--tokens", 11)[0] == 0
    code, _, err = run(short, PROMPT, "--tokens", 12)
    assert code == 1 and err == "quadform: --tokens: expected a text of at most 17 tokens, prompt included, got 18\n"
