"""Models and texts from the user's disk: found without imports or network, and refused with one clear line."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.integrations.models import albert_directory, save_with_tokenizer, story

from quadform import ArgumentError
from quadform.integrations.hugging_face import (
    TextSplit,
    load_model,
    load_tokenizer,
    python_documentation,
    read_text,
    token_batches,
)
from quadform.integrations.hugging_face._loading import find_directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_with_tokenizer(tmp_path / "model", story(40))


def test_a_package_is_searched_and_not_imported():
    before = set(sys.modules)
    assert find_directory("rxnmapper") == albert_directory()
    assert find_directory("rxnmapper:models/transformers/albert_heads_8_uspto_all_1310k") == albert_directory()
    assert not {name for name in set(sys.modules) - before if name.startswith("rxnmapper")}


def test_a_package_with_several_models_lists_them(tmp_path: Path, monkeypatch):
    for name in ("large", "small"):
        (tmp_path / "twomodels" / name).mkdir(parents=True)
        (tmp_path / "twomodels" / name / "config.json").write_text("{}")
        (tmp_path / "twomodels" / name / "model.safetensors").write_bytes(b"")
    (tmp_path / "twomodels" / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ArgumentError, match="expected one of twomodels:large, twomodels:small, got twomodels"):
        find_directory("twomodels")
    assert find_directory("twomodels:small") == tmp_path / "twomodels" / "small"
    with pytest.raises(ArgumentError, match="expected a directory inside twomodels"):
        find_directory("twomodels:../..")


def test_a_directory_loads_in_evaluation_mode(directory: Path):
    model = load_model(directory)
    assert not model.training and model.dtype == torch.float32
    assert load_tokenizer(directory)("ba be")["input_ids"][0] == 2


@pytest.mark.parametrize("name", ["no-such-model", "nosuchpackage", "org/model", ""])
def test_a_model_that_is_not_there(name: str):
    with pytest.raises(ArgumentError, match="MODEL: expected"):
        load_model(name)


def test_a_package_without_a_model():
    with pytest.raises(ArgumentError, match="got the package rich"):
        load_model("rich")


def test_a_directory_without_a_configuration(tmp_path: Path):
    with pytest.raises(ArgumentError, match="expected a directory with a config.json"):
        load_model(tmp_path)


def test_a_directory_without_weights(directory: Path):
    (directory / "model.safetensors").unlink()
    with pytest.raises(ArgumentError, match=r"expected a directory with weights"):
        load_model(directory)


def test_a_truncated_file_of_weights(directory: Path):
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArgumentError, match="expected a model that transformers can load"):
        load_model(directory)


def test_a_configuration_that_is_no_json(directory: Path):
    (directory / "config.json").write_text("{")
    with pytest.raises(ArgumentError, match="expected a model that transformers can load"):
        load_model(directory)


def edit(directory: Path, change) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def test_weights_that_do_not_cover_the_model(directory: Path):
    edit(directory, lambda tensors: tensors.pop("encoder.layer.1.attention.self.query.weight"))
    with pytest.raises(ArgumentError, match=r"without encoder\.layer\.1\.attention\.self\.query\.weight"):
        load_model(directory)


def test_weights_with_nan(directory: Path):
    edit(directory, lambda tensors: tensors["encoder.layer.0.output.dense.bias"].fill_(torch.nan))
    with pytest.raises(ArgumentError, match=r"NaN or infinity in encoder\.layer\.0\.output\.dense\.bias"):
        load_model(directory)


def test_a_directory_without_a_tokenizer():
    with pytest.raises(ArgumentError, match=r"expected a directory with a tokenizer"):
        load_tokenizer("rxnmapper")


def test_sequences_have_exactly_the_length_and_parts_share_no_document(directory: Path):
    split = TextSplit("two", ("ba be bi bo bu " * 200,), ("ca ce ci co cu " * 200,))
    tokenizer = load_tokenizer(directory)
    fit, measured = token_batches(tokenizer, split, 24, 20)
    seen = []
    for part in (fit, measured):
        ids = torch.cat([batch["input_ids"] for batch in part])
        assert ids.shape == (20, 24)
        assert (ids[:, 0] == 2).all() and (ids[:, -1] == 3).all()
        seen.append(set(ids[:, 1:-1].flatten().tolist()) - {1})
    assert not seen[0] & seen[1]


def test_a_long_text_is_sampled_over_its_whole_length(directory: Path):
    tokenizer = load_tokenizer(directory)
    words = [word for word in ("ba", "be", "bi", "bo") if tokenizer.convert_tokens_to_ids(word) != 1]
    text = "".join(f"{word} " * 20000 for word in words)
    fit, _ = token_batches(tokenizer, TextSplit("long", (text,), (text,)), 16, 8)
    seen = {token for batch in fit for token in batch["input_ids"].flatten().tolist()}
    assert {tokenizer.convert_tokens_to_ids(word) for word in words} <= seen


def test_a_text_that_is_too_short(directory: Path):
    split = TextSplit("a file", ("ba be bi " * 20,), ("ba be",))
    with pytest.raises(ArgumentError, match="at least two sequences of 24 tokens for measuring, got 0 in a file"):
        token_batches(load_tokenizer(directory), split, 24, 8)


def test_files_alternate_and_one_file_is_cut_between_paragraphs(tmp_path: Path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text(f"{name} one\n\n{name} two\n\n{name} three")
    assert read_text([str(tmp_path / "a")]) == TextSplit("a", ("a one", "a two"), ("a three",))
    split = read_text([str(tmp_path / name) for name in "abc"])
    assert [text[0] for text in split.fit] == ["a", "c"] and [text[0] for text in split.measured] == ["b"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n\ny"))
    assert read_text(["-"]) == TextSplit("standard input", ("x",), ("y",))


@pytest.mark.parametrize(
    "content, message", [(b"", "two paragraphs"), (b"one line", "two paragraphs"), (b"\xff\n\n\xfe", "UTF-8")]
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        read_text([str(path)])


def test_a_text_that_is_not_there():
    with pytest.raises(ArgumentError, match="--text: expected a file"):
        read_text(["no-such-file"])


def test_pythons_documentation_is_english_in_disjoint_parts():
    split = python_documentation()
    lots = [{part.strip() for text in lot for part in text.split("\n\n")} for lot in (split.fit, split.measured)]
    assert not lots[0] & lots[1]
    assert min(sum(map(len, lot)) for lot in lots) > 100_000
    assert "\n****" not in "".join(split.fit)
    assert "topics of the documentation of Python" in split.source
