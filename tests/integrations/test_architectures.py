"""Every architecture of the table is captured exactly or refused with a sentence; docs/models.md says which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.architectures import Architecture, architectures, ids, noise
from torch import Tensor

from quadform import QuadformError
from quadform.inspect import Captured
from quadform.integrations.hugging_face import HuggingFaceCapture
from quadform.integrations.hugging_face._capture import attention_modules

CAPTURE = HuggingFaceCapture()
TABLE = architectures()
ROUTED = [pytest.param(item, id=item.name) for item in TABLE if item.refused is None]
REFUSED = [pytest.param(item, id=item.name) for item in TABLE if item.refused is not None]
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", [None, "eager"])


def capture(model, inputs) -> list[Captured]:
    calls: list[Captured] = []
    with torch.no_grad():
        CAPTURE.run(model, inputs, calls.append)
    return calls


@torch.no_grad()
def weights(call: Captured) -> Tensor:
    """(B, H, N, M) in float64, from the definition in `Captured`; rows that see nothing are 0."""
    groups = call.q.shape[1] // call.k.shape[1]
    scores = torch.einsum("bhnd,bhmd->bhnm", call.q.double(), call.k.double().repeat_interleave(groups, 1))
    scores = scores * call.scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias.double()
    scores = scores.masked_fill(~call.keep, -torch.inf)
    highest = scores.amax(-1, keepdim=True).clamp(min=-1e9)
    if call.sink is not None:
        highest = highest.maximum(call.sink.double().view(-1, 1, 1))
    parts = (scores - highest).exp()
    total = parts.sum(-1, keepdim=True)
    if call.sink is not None:
        total = total + (call.sink.double().view(-1, 1, 1) - highest).exp()
    return parts / total.clamp(min=1e-300)


def mix(call: Captured, shares: Tensor) -> Tensor:
    """(B, H, N, E): the values mixed by some weights, at valid queries."""
    values = call.v.double().repeat_interleave(call.q.shape[1] // call.v.shape[1], 1)
    return (shares @ values) * call.valid[:, None, :, None]


def relative(ours: Tensor, theirs: Tensor) -> float:
    norm = float(theirs.norm())
    return float((ours - theirs).norm()) / norm if norm else float(ours.norm())


def has(calls: list[Captured]) -> set[str]:
    """What the captured calls have, in the words of the table."""
    found = {
        "grouped-query": any(call.q.shape[1] != call.k.shape[1] for call in calls),
        "bias": any(call.bias is not None for call in calls),
        "softcap": any(call.softcap is not None for call in calls),
        "sinks": any(call.sink is not None for call in calls),
        "grid": any(call.place.dims > 1 for call in calls),
        "window": any(call.structured for call in calls),
        "several calls of a module": any(call.call for call in calls),
        "values of their own width": any(call.v.shape[-1] != call.k.shape[-1] for call in calls),
    }
    return {name for name, there in found.items() if there}


def test_the_table_is_wide_and_names_are_unique():
    assert len({item.name for item in TABLE}) == len(TABLE)
    assert len(ROUTED) >= 70 and len(REFUSED) >= 20


@IMPLEMENTATIONS
@pytest.mark.parametrize("item", ROUTED)
def test_a_routed_architecture_is_captured_exactly(item: Architecture, implementation: str | None):
    model, inputs = item.build(implementation), item.inputs()
    with torch.no_grad():
        assert CAPTURE.check(model, inputs) <= 1e-6
    calls = capture(model, inputs)
    assert set(attention_modules(model)) == {call.module for call in calls}
    assert len(calls) == item.calls
    assert has(calls) == set(item.has)
    furthest = 0.0
    for call in calls:
        role = "cross" if call.cross else "causal" if call.causal else "bidirectional"
        assert (call.module, role) == (call.module, item.role(call.module))
        output = call.output.double() * call.valid[:, None, :, None]
        assert bool(torch.isfinite(output).all())
        assert relative(mix(call, weights(call)), output) <= 1e-4
        uniform = call.keep.double() / call.keep.sum(-1, keepdim=True).clamp(min=1)
        furthest = max(furthest, relative(mix(call, uniform), output))
    assert furthest > 0.05, "uniform attention would not show a wrong scale, bias or cap"


def in_order(calls: list[Captured], item: Architecture, returned: dict[str, Any]) -> Iterator[tuple[Captured, Tensor]]:
    """The captured calls beside the weights that transformers returns for them, layer by layer."""
    parts: dict[str, list[Captured]] = {"attentions": calls}
    if "decoder_attentions" in returned:
        parts = {key: [] for key in ("encoder_attentions", "decoder_attentions", "cross_attentions")}
        for call in calls:
            side = "decoder" if "decoder" in call.module else "encoder"
            parts[f"{'cross' if item.role(call.module) == 'cross' else side}_attentions"].append(call)
    for key, part in parts.items():
        yield from zip(part, returned[key], strict=True)


@pytest.mark.parametrize(
    "item", [pytest.param(item, id=item.name) for item in TABLE if item.shows and not item.refused]
)
def test_the_weights_are_those_that_the_model_returns(item: Architecture):
    """With "eager" transformers returns the weights of every layer: as many as were captured, and the same."""
    model, inputs = item.build("eager"), item.inputs()
    calls = capture(model, inputs)
    with torch.no_grad():
        returned = model(**inputs, output_attentions=True)
    for call, theirs in in_order(calls, item, returned):
        rows = call.valid[:, None, :, None]
        assert relative(weights(call) * rows, theirs[..., : call.k.shape[-2]].double() * rows) <= 1e-4


@pytest.mark.parametrize(
    "item", [pytest.param(item, id=item.name) for item in TABLE if "grid" in item.has and not item.refused]
)
def test_tokens_stand_where_the_grid_says(item: Architecture):
    """A change in one patch of the images changes the keys of the first layer most at the token of that patch."""
    model, inputs = item.build(), item.inputs()
    changed = inputs["pixel_values"].clone()
    before = next(call for call in capture(model, inputs) if call.place.dims > 1)
    rows, columns = before.place.sizes
    height, width = (side // cells for side, cells in zip(changed.shape[-2:], before.place.sizes, strict=True))
    if item.model == "SwinModel":
        height, width = height // 2, width // 2  # windows of half the image's side
    row, column = rows // 2, columns // 2 - 1
    changed[0, :, row * height : (row + 1) * height, column * width : (column + 1) * width] += 3.0
    after = next(call for call in capture(model, {**inputs, "pixel_values": changed}) if call.place.dims > 1)
    moved = (after.k - before.k)[0].norm(dim=-1).sum(0)
    at = int(moved.argmax()) - before.place.special
    reach = 1 if "backbone_config" in item.config else 0  # convolutions reach into the neighbouring cells
    assert at >= 0 and max(abs(at // columns - row), abs(at % columns - column)) <= reach


LOWER = torch.ones(12, 12, dtype=torch.bool).tril()
TOKENS = ids(padding=0)["input_ids"]
GIVEN: dict[str, dict[str, Tensor]] = {
    "no mask": {},
    "padding on the left": {"attention_mask": (torch.arange(12)[None] >= torch.tensor([[0], [4]])).long()},
    "holes": {"attention_mask": (torch.arange(12) % 5 != 3).long().expand(2, 12)},
    "packed": {"position_ids": torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2]).expand(2, 12)},
    "4d": {"attention_mask": torch.zeros(2, 1, 12, 12).masked_fill(~LOWER, torch.finfo(torch.float32).min)},
    "4d of scores": {"attention_mask": noise(2, 1, 12, 12)},
    "one token": {"input_ids": TOKENS[:, :1]},
}


@IMPLEMENTATIONS
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma 2", "GPT-OSS", "BERT"])
def test_every_kind_of_mask(name: str, given: str, implementation: str | None):
    model = next(item for item in TABLE if item.name == name).build(implementation)
    inputs = {"input_ids": TOKENS, **GIVEN[given]}
    with torch.no_grad():
        assert CAPTURE.check(model, inputs) <= 1e-6
    calls = capture(model, inputs)
    for call in calls:
        assert relative(mix(call, weights(call)), call.output.double() * call.valid[:, None, :, None]) <= 1e-4
    assert any(call.bias is not None for call in calls) == (given == "4d of scores")


@pytest.mark.parametrize("item", REFUSED)
def test_a_refused_architecture_says_why(item: Architecture):
    model, sentence = item.build(), f"^{re.escape(item.refused or '')}"
    with torch.no_grad(), pytest.raises(QuadformError, match=sentence):
        CAPTURE.check(model, item.inputs())
    with torch.no_grad(), pytest.raises(QuadformError, match=sentence):
        CAPTURE.run(model, item.inputs(), lambda _: None)


def test_the_page_lists_exactly_the_table():
    """scripts/architectures.py writes it."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    rows = [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in page.splitlines() if line[:2] == "| "]
    assert len(rows) == len(TABLE) + 1
    for item, (name, model, attention, captured) in zip(TABLE, rows[1:], strict=True):
        assert (name, model) == (item.name, f"`{item.model}`")
        assert attention == ("" if item.refused else item.attention())
        assert captured.startswith(f"no: {item.refused}") if item.refused else captured == "yes, <= 1e-6"
    assert f"with {len(TABLE)} architectures" in page
    assert f"{len(ROUTED)} are captured, and {len(REFUSED)} are\nrefused" in page


class ByHand(torch.nn.Module):
    """A model with an attention layer of its own behind it; heads are folded into the batch."""

    def forward(self, states: Tensor) -> Tensor:
        scores = states @ states.transpose(1, 2)
        return scores.softmax(-1).to(states.dtype).reshape(scores.shape) @ states


class Router(torch.nn.Module):
    """A choice of experts by a softmax over three dimensions, which is no attention."""

    def forward(self, states: Tensor) -> Tensor:
        return states * states.softmax(-1)


@pytest.mark.parametrize("kind, refused", [(ByHand, True), (Router, False)])
def test_attention_beside_the_interface_is_refused_and_nothing_else(kind: type[torch.nn.Module], refused: bool):
    bert = next(item for item in TABLE if item.name == "BERT")
    model = bert.build()
    model.encoder.layer[1].output.add_module("beside", kind())
    model.encoder.layer[1].output.register_forward_hook(lambda module, _, states: module.beside(states))
    if refused:
        with (
            torch.no_grad(),
            pytest.raises(QuadformError, match=r"^encoder\.layer\.1\.output\.beside computes attention"),
        ):
            CAPTURE.check(model, bert.inputs())
    else:
        with torch.no_grad():
            assert CAPTURE.check(model, bert.inputs()) <= 1e-6
    assert model.config._attn_implementation == "sdpa"
    assert torch.ones(1, 1, 1, 2).softmax(-1).sum() == 1, "nothing is watched any more"
