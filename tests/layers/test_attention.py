"""The layer of every mixer: at once, in chunks and step by step; padding; beams; what it owns and what it refuses."""

from __future__ import annotations

import inspect
import itertools
import random
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform.laws._table import ROWS

E, HEADS = 8, 4
CAUSAL = [
    (mixer.build(random.Random(0), 5, 5), mixer.weights)
    for row in ROWS
    if row.recurrent
    for mixer in row.mixers
    if not mixer.on_graph and mixer.build(random.Random(0), 5, 5).is_causal
]
CAUSAL += [(qf.Causal(), qf.Additive()), (qf.Causal(), qf.AdditiveV2()), (qf.Window(3), qf.Additive())]
every_causal = pytest.mark.parametrize(("edges", "weights"), CAUSAL, ids=str)
FEW = [
    (qf.Causal(), qf.Kernel("elu1")),
    (qf.Causal(), qf.Kernel("elu1", decay="scalar")),
    (qf.Causal(), qf.Softmax(bias=qf.Alibi())),
    (qf.Window(3, sinks=1), qf.Softmax()),
    (qf.Causal(), qf.Hybrid(qf.Window(2), qf.Kernel("exp"))),
    (qf.Stencil(3, padding="causal"), qf.Dynamic()),
]
some_causal = pytest.mark.parametrize(("edges", "weights"), FEW, ids=str)


def layer_of(edges: Any, weights: Any, **more: Any) -> qf.Attention:
    """A layer in float64 whose denominators stay away from 0."""
    torch.manual_seed(0)
    return qf.Attention(E, HEADS, edges, weights, **more).double().eval()


def tokens(batch: int, n: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, n, E, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / 2


def worst(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


def stepwise(layer: qf.Attention, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    state, parts = layer.init_state(x.shape[0]) if state is None else state, []
    for token in x.unbind(1):
        y, state = layer.step(token, state)
        parts.append(y)
    return torch.stack(parts, 1), state


@every_causal
def test_at_once_in_chunks_and_step_by_step(edges, weights):
    layer, x = layer_of(edges, weights), tokens(2, 19)
    expected = layer(x, form="dense")
    assert worst(layer(x), expected) < 1e-10
    first, state = layer.prefill(x[:, :11])
    second, state = layer.prefill(x[:, 11:13], state)
    third, state = layer.prefill(x[:, 13:], state)
    assert worst(torch.cat([first, second, third], 1), expected) < 1e-10
    assert state.length.tolist() == [19, 19]
    assert worst(stepwise(layer, x)[0], expected) < 1e-10


@every_causal
def test_padding_on_either_side_is_the_shorter_sequence(edges, weights):
    layer, x, n = layer_of(edges, weights), tokens(1, 9), 5
    alone, _ = stepwise(layer, x[:, :n])
    junk = torch.full((1, 4, E), torch.nan, dtype=torch.float64)
    left = torch.cat([junk, x[:, :n]], 1)
    right = torch.cat([x[:, :n], junk], 1)
    kept = torch.arange(9)[None] < n
    found = {
        "left": layer(left, key_mask=kept.flip(1))[:, 4:],
        "right": layer(right, key_mask=kept)[:, :n],
        "lengths": layer(right, lengths=torch.tensor([n]))[:, :n],
        "left, streamed": layer.prefill(left, key_mask=kept.flip(1))[0][:, 4:],
        "right, streamed": layer.prefill(right, lengths=torch.tensor([n]))[0][:, :n],
    }
    for how, y in found.items():
        assert worst(y, alone) < 1e-10, how


@some_causal
@pytest.mark.parametrize("more", [{}, {"rotary_base": 100.0, "normalise_qk": True}], ids=["plain", "rotary"])
def test_rows_of_several_lengths_go_on_from_their_own_ends(edges, weights, more):
    layer, x = layer_of(edges, weights, **more), tokens(3, 12)
    lengths = torch.tensor([7, 3, 0])
    _, right = layer.prefill(x[:, :7], lengths=lengths)
    shifted = torch.stack([row[:7].roll(7 - int(n), 0) for row, n in zip(x, lengths, strict=True)])
    _, left = layer.prefill(shifted, key_mask=torch.arange(7) >= 7 - lengths[:, None])
    for state in (right, left):
        y, after = stepwise(layer, x[:, 7:], state)
        assert after.length.tolist() == [12, 8, 5]
        for row, n in enumerate(lengths.tolist()):
            whole = torch.cat([x[row, :n], x[row, 7:]])[None]
            assert worst(y[row], layer(whole)[0, n:]) < 1e-10


@some_causal
def test_beams_that_are_reordered_are_beams_computed_again(edges, weights):
    layer, x = layer_of(edges, weights), tokens(3, 8)
    _, state = layer.prefill(x[:, :5])
    index = torch.tensor([2, 0, 0, 1])
    y, _ = stepwise(layer, x[index, 5:], state.reorder(index))
    assert worst(y, layer(x[index])[:, 5:]) < 1e-10


@some_causal
def test_forks_diverge_and_neither_sees_the_other(edges, weights):
    layer, x, other = layer_of(edges, weights), tokens(2, 12), tokens(2, 12, 2)
    _, state = stepwise(layer, x[:, :6])
    fork = state.fork()
    kept = [{name: t.clone() for name, t in part.tensors.items()} for part in state.parts]
    a, b, ours, theirs = [], [], state, fork
    for i in range(6, 12):  # in turns, so that each writes beside the other
        y, ours = layer.step(x[:, i], ours)
        z, theirs = layer.step(other[:, i], theirs)
        a.append(y)
        b.append(z)
    assert worst(torch.stack(a, 1), layer(x)[:, 6:]) < 1e-10
    assert worst(torch.stack(b, 1), layer(torch.cat([x[:, :6], other[:, 6:]], 1))[:, 6:]) < 1e-10
    for part, before in zip(state.parts, kept, strict=True):
        assert all(torch.equal(t, before[name]) for name, t in part.tensors.items())
    again, _ = stepwise(layer, x[:, 6:], state)
    assert torch.equal(again, torch.stack(a, 1))


def test_heads_that_differ_are_the_layers_of_each_group():
    groups: Any = [
        ((1, 3), qf.Causal(), qf.Kernel("exp")),
        ((0,), qf.Window(2), qf.Softmax()),
        ((2,), qf.Causal(), qf.Softmax(bias=qf.Alibi())),
    ]
    layer = layer_of(None, None, groups=groups)
    x = tokens(2, 9)
    assert layer.query is not None and layer.key is not None
    q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (layer.query, layer.key, layer.value))
    y = torch.empty_like(v)
    for heads, edges, weights in groups:
        tensors = {"slopes": torch.tensor([2.0**-8], dtype=torch.float64)} if weights.specs() else None
        pick = list(heads)
        y[:, pick] = qf.attend(q[:, pick], k[:, pick], v[:, pick], edges, weights, tensors=tensors)
    expected = layer.out(y.transpose(1, 2).flatten(2))
    assert worst(layer(x), expected) < 1e-12
    streamed, state = stepwise(layer, x)
    assert worst(streamed, expected) < 1e-12
    assert [part.kind for part in state.parts] == ["kernel", "tail", "tail"]


@pytest.mark.parametrize("weights", [qf.Softmax(), qf.Kernel("hedgehog"), qf.Kernel("elu1", decay="feature")], ids=str)
def test_grouped_queries_share_their_key_value_head(weights):
    layer = layer_of(qf.Causal(), weights, num_kv_heads=2, head_dim=6, value_dim=3)
    x = tokens(2, 7)
    y, _ = stepwise(layer, x)
    assert worst(y, layer(x, form="dense")) < 1e-11


def test_cross_attention_reads_its_context_once():
    layer = layer_of(qf.All(), qf.Kernel("elu1"), context_dim=5)
    x, context = tokens(2, 6), torch.randn(2, 9, 5, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    expected = layer(x, context=context, key_mask=mask)
    assert worst(layer(x[1:], context=context[1:, :4]), expected[1:]) < 1e-12
    assert worst(layer(x, context=context, lengths=torch.tensor([9, 4])), expected) < 1e-12
    first, memory = layer.prefill(x[:, :2], context=context, key_mask=mask)
    rest, _ = layer.prefill(x[:, 2:], memory)
    assert worst(torch.cat([first, rest], 1), expected) < 1e-12


def test_rotary_positions_make_scores_depend_on_the_offset_alone():
    layer, x = layer_of(qf.All(), qf.Softmax(), rotary_base=100.0), tokens(2, 6)
    y = layer(x)
    assert worst(layer(x, positions=torch.arange(6) + 1000), y) < 1e-9
    assert worst(layer(x, positions=2 * torch.arange(6)), y) > 1e-3


def test_bidirectional_mixers():
    for edges, weights, more in (
        (qf.All(), qf.Softmax(bias=qf.T5Buckets(8, 20)), {}),
        (qf.Window(2, 2), qf.Softmax(), {}),
        (qf.All(), qf.Hybrid(qf.Window(2, 2), qf.Kernel("exp")), {}),
        (qf.Stencil(3), qf.Taps(), {}),
        (qf.Buckets(2, 4), qf.Softmax(), {}),
        (qf.TopK(2), qf.Softmax(), {}),
        (qf.All(), qf.Via(3, qf.Taps(), qf.Softmax()), {"max_length": 7}),
        (qf.All(), qf.Via(3, qf.Softmax(), qf.Softmax()), {}),
        (qf.Graph([[0, 1, 2], [1, 2, 6]], 7), qf.AdditiveV2(), {}),
    ):
        layer, x = layer_of(edges, weights, **more), tokens(2, 7)
        y = layer(x)
        assert torch.equal(y, layer(x))
        assert worst(y, layer(x, form="dense")) < 1e-11
        y.sum().backward()
        unused = {name for name, p in layer.named_parameters() if p.grad is None}
        assert not unused, (str(weights), unused)


def test_derivatives():
    layer = layer_of(qf.Causal(), qf.Kernel("hedgehog", decay="scalar"), num_kv_heads=2, rotary_base=10.0)
    x = tokens(1, 4).requires_grad_()
    parameters = list(layer.parameters())
    names = [name for name, _ in layer.named_parameters()]

    def once(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(once, (x, *parameters), fast_mode=True)


def test_gradients_flow_through_a_state():
    layer, x = layer_of(qf.Causal(), qf.Kernel("elu1", decay="scalar")), tokens(2, 6).requires_grad_()
    whole = torch.autograd.grad(layer(x).square().sum(), x)[0]
    first, state = layer.prefill(x[:, :3])
    second, _ = layer.prefill(x[:, 3:], state)
    cut = torch.autograd.grad(torch.cat([first, second], 1).square().sum(), x)[0]
    assert worst(cut, whole) < 1e-10


def test_seeded_buffers_are_in_the_state_dict_and_change_on_request_alone():
    def build(seed: int) -> nn.Module:
        return qf.LinearAttention(E, HEADS, "favor", seed=seed).double().eval()

    a, b, x = build(0), build(1), tokens(2, 5)
    assert "groups.0.declared.feature_projection" in a.state_dict()
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(x), b(x))
    assert torch.equal(a(x), a(x))
    before = a(x)
    a.redraw(3)  # type: ignore[operator]
    assert not torch.equal(a(x), before)
    b.redraw(3)  # type: ignore[operator]
    assert torch.equal(a(x), b(x))
    assert torch.equal(build(7).state_dict()["groups.0.declared.feature_projection"],
                       build(7).state_dict()["groups.0.declared.feature_projection"])  # fmt: skip


@some_causal
def test_autocast_chooses_the_precision_of_the_projections_alone(edges, weights):
    layer = layer_of(edges, weights, rotary_base=10.0, normalise_qk=True).float()
    x = tokens(2, 9).float()
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        y = layer(x)
        streamed, state = stepwise(layer, x)
    assert y.dtype == streamed.dtype == torch.bfloat16
    assert worst(y.float(), expected) < 0.05 and worst(streamed.float(), expected) < 0.05
    assert all(
        state.parts[0].tensors[name].dtype == torch.float32 for name in ("S", "z") if name in state.parts[0].tensors
    )


def test_half_precision_keeps_its_sums_in_float32():
    layer, x = layer_of(qf.Causal(), qf.Kernel("elu1")), tokens(2, 40)
    expected = layer(x)
    y, state = stepwise(layer.bfloat16(), x.bfloat16())
    assert y.dtype == torch.bfloat16 and state.parts[0].tensors["S"].dtype == torch.float32
    assert worst(y.double(), expected) < 0.05


def test_no_tokens_no_rows_and_no_memory():
    layer, x = layer_of(qf.Causal(), qf.Kernel("elu1")), tokens(2, 4)
    assert layer(x[:, :0]).shape == (2, 0, E) and layer(x[:0]).shape == (0, 4, E)
    assert layer.init_state(0).batch == 0
    with torch.device("meta"):
        empty = qf.LinearAttention(E, HEADS, "favor")
    assert empty.state_dict()["groups.0.declared.feature_projection"].is_meta
    real = empty.to_empty(device="cpu")
    real.load_state_dict(qf.LinearAttention(E, HEADS, "favor").state_dict())
    assert real(x.float()).isfinite().all()


def reference(owner: Any) -> str:
    """The code under "Reference" in a docstring."""
    block = inspect.cleandoc(owner.__doc__).partition("Reference")[2].split("\n", 2)[2]
    lines = itertools.takewhile(lambda line: not line or line.startswith("    "), block.split("\n"))
    return textwrap.dedent("\n".join(lines))


def test_the_references():
    layer, x = layer_of(qf.Causal(), qf.Softmax()), tokens(2, 5)
    found: dict[str, Any] = {}
    space = {"layer": layer, "x": x, "H": HEADS, "D": E // HEADS, "attend": qf.attend}
    exec(reference(qf.Attention), space | {"edges": qf.Causal(), "weights": qf.Softmax()}, found)
    assert worst(found["y"], layer(x)) < 1e-12
    torch.manual_seed(0)
    linear = qf.LinearAttention(E, HEADS, "exp").double()
    names = {"embed_dim": E, "num_heads": HEADS, "feature_map": "exp"}
    exec(reference(qf.LinearAttention), vars(qf) | names, found)
    same = found["layer"].double()
    same.load_state_dict(linear.state_dict())
    assert torch.equal(linear(x), same(x))


@pytest.mark.parametrize(("arguments", "more", "name"), [
    ((8, 3), {}, "head_dim"),
    ((8, 0), {}, "num_heads"),
    ((8, 4), {"num_kv_heads": 3}, "num_kv_heads"),
    ((8, 4), {"value_dim": 0}, "value_dim"),
    ((9, 3), {"rotary_base": 10.0}, "head_dim"),
    ((8, 4, qf.Causal(), "softmax"), {}, "weights"),
    ((8, 4, "causal"), {}, "edges"),
    ((8, 4, qf.All(), qf.Matrix()), {}, "weights"),
    ((8, 4, qf.All(), qf.Via(3, qf.Taps(), qf.Softmax())), {}, "max_length"),
    ((8, 4, qf.All()), {"groups": [((0,), qf.All(), qf.Softmax())]}, "groups"),
    ((8, 4), {"groups": [((0, 1), qf.All(), qf.Softmax())]}, "groups"),
    ((8, 4), {"groups": [((0, 1, 2, 3), qf.All(), qf.Softmax()), ((0,), qf.All(), qf.Softmax())]}, "groups"),
], ids=str)  # fmt: skip
def test_arguments_that_do_not_fit_are_named(arguments, more, name):
    with pytest.raises(qf.ArgumentError, match=f"^{name}: expected"):
        qf.Attention(*arguments, **more)


def test_calls_that_do_not_fit_are_named():
    layer, x = layer_of(qf.Causal(), qf.Softmax()), tokens(2, 3)
    state = layer.init_state(2)
    calls: list[tuple[Any, str]] = [
        (lambda: layer(x[0]), "x"),
        (lambda: layer(x, context=x[0]), "context"),
        (lambda: layer.step(x, state), "x"),
        (lambda: layer.prefill(x, state.parts[0]), "state"),  # type: ignore[arg-type]
        (lambda: layer.prefill(x[:1], state), "state"),
        (lambda: layer_of(qf.Causal(), qf.Softmax(), rotary_base=10.0)(x, context=x.clone()), "context"),
    ]
    for call, name in calls:
        with pytest.raises(qf.ArgumentError, match=f"^{name}: expected"):
            call()
    with pytest.raises(qf.Refused, match="not causal"):
        layer_of(qf.All(), qf.Softmax()).init_state(1)
