"""The planted heads: an oracle of its own, in float64, says that each is of its kind; the inspector names each."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.cli import planted as verb
from quadform.inspect import planted
from quadform.inspect.planted import KINDS, Confusion, Named, Planted

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "data" / "planted-heads.safetensors"
N, FORMS = 96, ("mean", "convolution", "window", "window + sinks", "fixed graph", "kernel", "top-k", "low rank")
"""In the order in which a head is asked for them."""
NAMES = sorted(planted.generate())


@lru_cache
def made(seed: int, noise: float) -> dict[str, Planted]:
    return planted.generate(seed, noise)


def weights(head: Planted) -> Tensor:
    """(8, N, N): the weights of all sequences."""
    q, k = (torch.cat([getattr(head.fit, side), getattr(head.measured, side)])[:, 0].double() for side in "qk")
    return softmax(q @ k.transpose(-1, -2), visible(head))


def visible(head: Planted) -> Tensor:
    keep = torch.ones(N, N, dtype=torch.bool)
    return keep.tril() if head.causal else keep


def softmax(scores: Tensor, edges: Tensor) -> Tensor:
    return scores.masked_fill(~edges, -math.inf).softmax(-1)


def offsets() -> Tensor:
    return torch.arange(N) - torch.arange(N)[:, None]


def near(head: Planted) -> Tensor:
    return (offsets() <= 0) & (offsets() > -32) if head.causal else offsets().abs() <= 16


def sinks(head: Planted) -> Tensor:
    at = torch.arange(N)
    return at < 4 if head.causal else (at == 0) | (at == N - 1)


def oracle(head: Planted) -> dict[str, float]:
    """Held-out error of every form, as the naming counts it, without any code of the inspector."""
    q, k, v = (torch.cat([getattr(head.fit, side), getattr(head.measured, side)])[:, 0].double() for side in "qkv")
    keep, scores = visible(head), q @ k.transpose(-1, -2)
    fit, held_out = slice(0, 4), slice(4, 8)
    a = softmax(scores, keep)
    y = a @ v
    taps = torch.arange(-14, 1) if head.causal else torch.arange(-7, 8)
    shifted = torch.stack([(offsets() == tap).double() @ v for tap in taps], -1)
    kernel = torch.linalg.lstsq(shifted[fit].reshape(-1, 15), y[fit].reshape(-1, 1)).solution[:, 0]
    senders = a[fit].mean(0).topk(16, -1).indices
    graph = torch.zeros(N, N, dtype=torch.bool).scatter_(-1, senders, True)
    strongest = scores.masked_fill(~keep, -math.inf).topk(16, -1).indices
    top = torch.zeros(scores.shape, dtype=torch.bool).scatter_(-1, strongest, True)
    left = torch.linalg.svd(a).U[..., :16]
    small = q @ (k - k[fit].mean((0, 1))).transpose(-1, -2)
    taylor = (1 + small + small**2 / 2) * keep
    forms = {
        "mean": keep.double() / keep.sum(-1, keepdim=True) @ v,
        "convolution": shifted @ kernel,
        "window": softmax(scores, near(head) & keep) @ v,
        "window + sinks": softmax(scores, (near(head) | sinks(head)) & keep) @ v,
        "fixed graph": softmax(scores, graph & keep) @ v,
        "kernel": taylor / taylor.sum(-1, keepdim=True) @ v,
        "top-k": softmax(scores, top & keep) @ v,
        "low rank": left @ (left.transpose(-1, -2) @ y),
    }
    centred = (y - y.mean(1, keepdim=True))[held_out].norm()
    return {
        name: float((form - y)[held_out].norm() / (y[held_out].norm() if name == "mean" else centred))
        for name, form in forms.items()
    }


@pytest.mark.parametrize("noise, own, others", [(0.0, 0.055, 0.14), (0.1, 0.095, 0.14)])
@pytest.mark.parametrize("name", NAMES)
def test_a_head_is_of_its_kind_and_of_no_simpler_one(name: str, noise: float, own: float, others: float) -> None:
    for seed in range(3):
        head = made(seed, noise)[name]
        errors = oracle(head)
        if head.kind == "mixed":
            assert min(errors.values()) > others, (seed, errors)
            continue
        assert errors[head.kind] < own, (seed, errors)
        simpler = FORMS[: FORMS.index(head.kind)]
        assert all(errors[form] > others for form in simpler), (seed, errors)


@pytest.mark.parametrize("causal", [False, True])
def test_what_each_kind_looks_like(causal: bool) -> None:
    """Facts of the data card, on the weights themselves."""
    heads = {head.kind: head for head in planted.load() if head.causal == causal}
    a = {kind: weights(head) for kind, head in heads.items()}
    inner = slice(20, -10)
    band = a["convolution"][:, inner, 1:]
    torch.testing.assert_close(band[:, 1:, 1:], band[:, :-1, :-1], rtol=1e-4, atol=1e-8)
    assert float(band.amax(-1).min()) > 0.3
    window = a["window"] * ~near(heads["window"])
    assert float(window.sum(-1).max()) < 0.03
    assert float(torch.special.entr(a["window"]).sum(-1).exp()[:, inner].mean()) > 10
    share = (a["window + sinks"] * sinks(heads["window + sinks"])).sum(-1)[:, 40:80]
    assert 0.4 < float(share.mean()) < 0.6
    assert float(share.std()) > 0.05
    always = a["fixed graph"].amin(0).topk(10, -1).indices.sort(-1).values
    assert float(a["fixed graph"].gather(-1, always.expand(8, -1, -1)).sum(-1).mean()) > 0.97
    assert float(a["top-k"].topk(8, -1).values.sum(-1).min()) > 0.97
    one, other = a["top-k"][0].topk(4, -1).indices, a["top-k"][1].topk(4, -1).indices
    assert float((one[..., None] == other[..., None, :]).any(-1)[inner].double().mean()) < 0.3
    uniform = visible(heads["mean"]).double()
    torch.testing.assert_close(a["mean"], (uniform / uniform.sum(-1, keepdim=True)).expand(8, -1, -1), rtol=0.2, atol=0)
    if not causal:
        low_rank = torch.linalg.svdvals(a["low rank"])
        assert float(low_rank[:, 4:].max()) < 1e-6 * float(low_rank[:, 0].min())
        assert float(low_rank[:, 3].min()) > 1e-3


def test_every_kind_is_planted_with_and_without_a_mask() -> None:
    heads = planted.load()
    assert {head.kind for head in heads} == set(KINDS)
    assert {head.kind for head in heads if head.causal} == set(KINDS) - {"low rank"}
    assert len({head.name.rsplit("-", 1)[0] for head in heads if head.kind == "mixed"}) >= 3
    for head in heads:
        for part in (head.fit, head.measured):
            assert part.q.shape == part.k.shape and part.q.shape[:3] == (4, 1, N)
            assert part.v.shape == (4, 1, N, 8)
            assert part.causal == head.causal
            assert {part.q.dtype, part.k.dtype, part.v.dtype} == {torch.float32}


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_the_noise_of_the_scores_is_as_asked_for(noise: float) -> None:
    clean, noisy = planted.generate(), planted.generate(noise=noise)
    for name, head in noisy.items():
        q, k = (torch.cat([getattr(head.fit, side), getattr(head.measured, side)]).double() for side in "qk")
        assert torch.equal(head.fit.q[..., :-4], clean[name].fit.q[..., :-4])
        assert float((q[..., -4:] @ k[..., -4:].transpose(-1, -2)).std()) == pytest.approx(noise, rel=1e-4)


def test_a_seed_gives_one_file_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        planted.save(tmp_path / name, seed)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "same").read_bytes()
    assert not torch.equal(load_file(tmp_path / "one")["values"], load_file(tmp_path / "other")["values"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other", "same"]
    expected = planted.generate(3, 0.3)
    for head in planted.load(tmp_path / "one", 0.3):
        for part in ("q", "k", "v", "output", "keep"):
            assert torch.equal(getattr(head.fit, part), getattr(expected[head.name].fit, part))
            assert torch.equal(getattr(head.measured, part), getattr(expected[head.name].measured, part))


def test_the_published_file_is_seed_0() -> None:
    heads, again = planted.load(DATA), planted.generate()
    assert [(head.name, head.kind, head.causal) for head in heads] == [
        (head.name, head.kind, head.causal) for head in again.values()
    ]
    for head in heads:
        for side in ("q", "k", "v"):
            found, expected = getattr(head.measured, side), getattr(again[head.name].measured, side)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def rewritten(path: Path, change: dict[str, Tensor | None], **metadata: str) -> Path:
    """The published file with some tensors and metadata replaced."""
    heads = {head.name: {"kind": head.kind, "causal": head.causal} for head in planted.load()}
    tensors = load_file(DATA) | {name: value for name, value in change.items() if value is not None}
    kept = {name: value for name, value in tensors.items() if name not in change or change[name] is not None}
    save_file(kept, path, {"schema": planted.SCHEMA, "seed": "0", "heads": json.dumps(heads)} | metadata)
    return path


@pytest.mark.parametrize(
    "change, metadata, message",
    [
        ({}, {"schema": "quadform/planted/9"}, "quadform/planted/1.*quadform/planted/9"),
        ({}, {"heads": "["}, 'metadata "heads"'),
        ({}, {"heads": "[1]"}, 'metadata "heads"'),
        ({}, {"heads": "{}"}, "at least one head"),
        ({}, {"heads": '{"a": {"kind": "spiral", "causal": true}}'}, "kinds among convolution.*spiral"),
        ({}, {"heads": '{"a": {"kind": ["mean"], "causal": true}}'}, "kinds among convolution"),
        ({}, {"heads": '{"a": {"kind": "mean", "causal": true}}'}, "tensors a.q, a.k"),
        ({"values": None}, {}, "tensors values"),
        ({"kernel-causal.k": None}, {}, "tensors kernel-causal.k"),
        ({"noise.q": torch.full((8, 1, N, 4), math.nan)}, {}, "noise.q: expected finite float32"),
        ({"noise.k": torch.zeros(8, 1, N, 4)}, {}, "noise.q and noise.k: expected scores that vary"),
        ({"values": torch.zeros(8, 1, N, 8, dtype=torch.float64)}, {}, "values: expected finite float32.*float64"),
        ({"mean-causal.q": torch.zeros(8, N, 4)}, {}, "mean-causal.q: expected finite float32"),
        ({"mean-causal.q": torch.zeros(8, 1, N - 1, 4)}, {}, r"mean-causal.q: expected \(8, 1, 96, D\)"),
        ({"mean-causal.q": torch.zeros(3, 1, N, 4)}, {}, r"mean-causal.q: expected \(8, 1, 96, D\)"),
        ({"mean-causal.q": torch.zeros(8, 1, N, 5)}, {}, "mean-causal.q: expected .*the same D"),
        ({"values": torch.zeros(1, 1, N, 8)}, {}, "values: expected .*at least 2"),
    ],
)
def test_a_malformed_file_is_refused(
    tmp_path: Path, change: dict[str, Tensor | None], metadata: dict[str, str], message: str
) -> None:
    path = rewritten(tmp_path / "heads.safetensors", change, **metadata)
    with pytest.raises(ArgumentError, match=message):
        planted.load(path)


def test_what_is_no_file_of_heads_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no tensors here")
    for path, message in ((text, "safetensors file"), (tmp_path / "missing", "missing"), (tmp_path, "path: expected")):
        with pytest.raises(ArgumentError, match=message):
            planted.load(path)
    with pytest.raises(ArgumentError, match="directory that exists"):
        planted.save(tmp_path / "nowhere" / "file")
    assert text.read_text() == "no tensors here"


@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf])
def test_a_noise_that_is_no_standard_deviation_is_refused(noise: float) -> None:
    with pytest.raises(ArgumentError, match="noise: expected a finite"):
        planted.load(noise=noise)


@pytest.mark.parametrize("seed", [-1, 2**31, 0.5, True])
def test_a_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    with pytest.raises(ArgumentError, match="seed: expected a whole number"):
        planted.generate(seed)


def test_the_inspector_names_every_head() -> None:
    sets = [lambda noise, seed=seed: list(planted.generate(seed, noise).values()) for seed in (0, 11)]
    confusion = planted.name_all(sets, levels=(0.0, 0.1))
    assert len(confusion.found) == 2 * 2 * len(NAMES)
    assert not confusion.wrong
    for (kind, _), row in confusion.rows().items():
        right = "none" if kind == "mixed" else kind
        assert {name for name, count in row.items() if count} == {right}
    for (kind, _), (own, simpler) in confusion.margins().items():
        assert math.isinf(own) if kind == "mixed" else own < 0.095, kind
        assert simpler > 0.12, kind


def test_the_inspector_agrees_with_the_oracle() -> None:
    """Both measure the same forms, each in its own code."""
    same = {"mean": "mean", "convolution": "convolution-15", "window": "window-32", "window + sinks": "window-32+sinks"}
    same |= {"fixed graph": "graph-16", "top-k": "top-16", "low rank": "rank-16"}
    for head in planted.generate(5, 0.3).values():
        found, expected = planted.name_head(head, 0.3).errors, oracle(head)
        for kind, form in same.items():
            assert found[form] == pytest.approx(expected[kind], rel=0.02, abs=1e-3), (head.name, form)


def named(kind: str, noise: float, name: str | None) -> Named:
    return Named("head", kind, noise, name, {"mean": 0.5, "window-32": 0.2, "kernel-taylor2": 0.3, "rank-16": 0.4})


def test_what_counts_as_wrong() -> None:
    right = [named("window", 0.1, "window"), named("mixed", 1.0, None), named("window", 0.3, None)]
    wrong = [named("window", 0.1, None), named("window", 0.0, "kernel"), named("mixed", 0.3, "hybrid")]
    confusion = Confusion((*right, *wrong))
    assert confusion.wrong == tuple(wrong)
    assert confusion.columns()[-2:] == ("hybrid", "none")
    assert confusion.rows()["window", 0.1] == dict.fromkeys(confusion.columns(), 0) | {"window": 1, "none": 1}
    assert confusion.margins()["window", 0.1] == (0.2, 0.5)
    assert confusion.margins()["mixed", 0.3] == (math.inf, 0.2)
    assert named("low rank", 0.0, None).own == 0.4
    assert named("kernel", 0.0, None).simpler == 0.2
    json.dumps(confusion.to_dict(), allow_nan=False)
    assert "3 heads are named wrongly." in planted.page(confusion, "seed 0", "quadform planted")


def command(**options: Any) -> None:
    verb.planted(**{"data": None, "seeds": 1, "write": None, "page_file": None, "as_json": False} | options)


def test_the_command_names_the_published_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(data=DATA, as_json=True, page_file=tmp_path / "page.md")
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["wrong"] == [] and said.err == ""
    assert {(row["kind"], row["noise"]) for row in result["rows"]} == {(k, x) for k in KINDS for x in planted.LEVELS}
    assert "| mixed | 1 |  |  |  |  |  |  |  |  | 6 |" in (tmp_path / "page.md").read_text()


def test_the_command_fails_when_a_head_is_not_as_its_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = {"window-causal": {"kind": "mixed", "causal": True}, "mean-causal": {"kind": "kernel", "causal": True}}
    path = rewritten(tmp_path / "heads.safetensors", {}, heads=json.dumps(heads))
    with pytest.raises(typer.Exit) as caught:
        command(data=path)
    assert caught.value.exit_code == 1
    said = capsys.readouterr()
    assert "what planted heads are called" in said.out
    assert "window-causal (mixed) at noise 1 is called window" in said.err
    assert "mean-causal (kernel) at noise 0 is called mean" in said.err


def test_the_command_writes_the_published_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(write=tmp_path / "heads.safetensors")
    assert capsys.readouterr().out == ""
    assert (tmp_path / "heads.safetensors").stat().st_size == DATA.stat().st_size
    with pytest.raises(ArgumentError, match="--data"):
        command(data=DATA, seeds=2)
    with pytest.raises(ArgumentError, match="--page"):
        command(page_file=tmp_path)


def test_the_published_page_holds_what_is_promised() -> None:
    rows = [line.split("|")[1:-1] for line in (ROOT / "docs" / "planted.md").read_text().splitlines()]
    header, *table = [[cell.strip() for cell in row] for row in rows if len(row) >= len(KINDS)]
    counted = [row for row in table if row[1] in ("0", "0.1")]
    assert [row[0] for row in counted] == [kind for kind in KINDS for _ in range(2)]
    for row in counted:
        expected = "none" if row[0] == "mixed" else row[0]
        assert [name for name, count in zip(header[2:], row[2:], strict=True) if count] == [expected]
