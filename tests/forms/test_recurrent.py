"""The recurrent form: what its states promise, beyond the laws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import quadform as qf
from quadform.forms.recurrent._kernel import causal_prefix, empty_sums

STREAMS = [
    (qf.Causal(), qf.Kernel("elu1")),
    (qf.Causal(), qf.Kernel("taylor2", normalise=False)),
    (qf.Causal(), qf.Hybrid(qf.Window(5, sinks=2), qf.Kernel("elu1"))),
    (qf.Window(6, sinks=1), qf.Softmax()),
    (qf.Causal(), qf.Softmax()),
    (qf.Causal(), qf.Uniform("mean")),
]


def tokens(n: int, *, batch: int = 2, dtype: torch.dtype = torch.float64) -> Any:
    """q with four heads, k and v with two."""
    return tuple(torch.randn(batch, heads, n, 3, dtype=dtype) for heads in (4, 2, 2))


def cut(qkv: Any, first: int, end: int) -> Any:
    return tuple(x[:, :, first:end] for x in qkv)


@pytest.mark.parametrize(("edges", "weights"), STREAMS, ids=str)
def test_steps_equal_one_pass(edges, weights):
    qkv = tokens(150)
    expected = qf.attend(*qkv, edges, weights, form="dense")
    y, state = qf.prefill(*cut(qkv, 0, 130), edges, weights)
    parts = [y]
    for t in range(130, 150):
        y, state = qf.step(*cut(qkv, t, t + 1), edges, weights, state)
        parts.append(y)
    assert (torch.cat(parts, 2) - expected).abs().max() < 1e-11
    assert state.length.tolist() == [150, 150]


@pytest.mark.parametrize(("edges", "weights"), STREAMS, ids=str)
def test_padding_on_either_side_then_steps_is_the_shorter_sequence(edges, weights):
    qkv, more = tokens(9), tokens(4)
    left = torch.ones(2, 9, dtype=torch.bool)
    left[0, :3] = False
    moved: Any = tuple(torch.cat([x[:1].roll(-3, 2), x[1:]]) for x in qkv)
    _, a = qf.prefill(*qkv, edges, weights, key_mask=left)
    _, b = qf.prefill(*moved, edges, weights, lengths=torch.tensor([6, 9]))
    alone: Any = tuple(torch.cat([x[:1, :, 3:], y[:1]], 2) for x, y in zip(qkv, more, strict=True))
    expected = qf.attend(*alone, edges, weights, form="dense")[:, :, 6:]
    for state in (a, b):
        assert state.length.tolist() == [6, 9]
        y, _ = qf.prefill(*more, edges, weights, state=state)
        assert (y[:1] - expected).abs().max() < 1e-12


@pytest.mark.parametrize(("edges", "weights"), STREAMS, ids=str)
def test_a_state_is_a_value_that_survives_the_disk(edges, weights, tmp_path):
    qkv, more = tokens(20), tokens(7)
    _, state = qf.prefill(*qkv, edges, weights)
    before = {name: t.clone() for name, t in state.tensors.items()}
    first, _ = qf.prefill(*more, edges, weights, state=state)
    again, _ = qf.prefill(*more, edges, weights, state=state)
    assert torch.equal(first, again)
    assert all(torch.equal(t, before[name]) for name, t in state.tensors.items())
    tensors, metadata = state.to_tensors()
    save_file(tensors, tmp_path / "state.safetensors", metadata)
    with safe_open(tmp_path / "state.safetensors", "pt") as file:
        restored = qf.State.from_tensors({name: file.get_tensor(name) for name in file.keys()}, file.metadata())  # noqa: SIM118
    assert torch.equal(qf.prefill(*more, edges, weights, state=restored)[0], first)
    order = torch.tensor([1, 1, 0])
    chosen: Any = tuple(x[order] for x in more)
    assert (qf.prefill(*chosen, edges, weights, state=state.reorder(order))[0] - first[order]).abs().max() < 1e-12


@pytest.mark.parametrize(("edges", "weights", "constant"), [(*s, s != STREAMS[4]) for s in STREAMS], ids=str)
def test_memory_is_constant_but_for_a_growing_cache(edges, weights, constant):
    sizes = []
    state = None
    for _ in range(3):
        _, state = qf.prefill(*tokens(100), edges, weights, state=state)
        sizes.append(state.nbytes)
    assert (len(set(sizes)) == 1) == constant


def test_states_are_kept_for_each_key_value_head():
    _, state = qf.prefill(*tokens(5), qf.Causal(), qf.Kernel("elu1"))
    assert state.tensors["S"].shape == (2, 2, 3, 3)


def test_sums_are_float32_whatever_the_dtype():
    one = torch.ones(1, 1, 3000, 1, dtype=torch.bfloat16)
    _, state = qf.prefill(one, one, one, qf.Causal(), qf.Kernel("relu"))
    for _ in range(5):
        _, state = qf.step(*(one[:, :, :1],) * 3, qf.Causal(), qf.Kernel("relu"), state)
    assert state.tensors["z"].dtype == torch.float32
    assert state.tensors["z"].item() == 3005.0


def test_a_step_reads_nothing_of_size_n():
    _, state = qf.prefill(*tokens(5000), qf.Causal(), qf.Hybrid(qf.Window(8), qf.Kernel("elu1")))
    assert max(t.numel() for t in state.tensors.values()) <= 2 * 2 * 8 * 3


@pytest.mark.parametrize("gates", [None, 1, 3])
def test_the_chunked_prefix_is_the_recurrence(gates):
    q, k = (torch.rand(1, 2, 21, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(1, 2, 21, 2, dtype=torch.float64, requires_grad=True)
    g = None if gates is None else (-torch.rand(1, 2, 21, gates, dtype=torch.float64)).requires_grad_()
    inputs = [x for x in (q, k, v, g) if x is not None]

    def chunked(*x: Any) -> torch.Tensor:
        prefix = causal_prefix(x[0], x[1], x[2], x[3] if gates else None, 0, empty_sums(x[1], x[2]), True, chunk=8)
        return prefix[0]

    S: Any = 0.0
    z: Any = 0.0
    rows = []
    for t in range(21):
        fade: Any = 1.0 if g is None else g[:, :, t, :, None].exp()
        S, z = fade * S + k[:, :, t, :, None] * v[:, :, t, None, :], fade * z + k[:, :, t, :, None]
        rows.append((q[:, :, t, None] @ S) / (q[:, :, t, None] @ z))
    assert (chunked(*inputs) - torch.cat(rows, 2)).abs().max() < 1e-13
    assert torch.autograd.gradcheck(chunked, inputs)
    if gates is None:
        assert torch.autograd.gradgradcheck(chunked, inputs)


@pytest.mark.parametrize(("edges", "weights", "reason"), [
    (qf.All(), qf.Softmax(), "is not causal"),
    (qf.Causal() & qf.TopK(3), qf.Softmax(), "known only at its end"),
    (qf.All(), qf.Via(2, qf.Uniform("mean"), qf.Softmax()), "mixes the whole sequence"),
    (qf.Graph([[0], [1]], 6), qf.Softmax(), "no order to walk along"),
    (qf.Causal(), qf.Hybrid(qf.Window(3, dilation=2), qf.Kernel("elu1")), "leaves gaps"),
    (qf.Window(2, 1), qf.Softmax(), "is not causal"),
], ids=str)  # fmt: skip
def test_refusals_are_reasons(edges, weights, reason):
    with pytest.raises(qf.Refused, match=reason):
        qf.attend(*tokens(6), edges, weights, form="recurrent")


def test_bad_states_are_named():
    qkv = tokens(4)
    _, state = qf.prefill(*qkv, qf.Causal(), qf.Softmax())
    with pytest.raises(qf.ArgumentError, match=r"^state: expected a state of Softmax\(\) on Window\(3\), got one of"):
        qf.step(*qkv, qf.Window(3), qf.Softmax(), state)
    with pytest.raises(qf.ArgumentError, match="^state: expected a state of 3 rows, got 2 rows"):
        qf.step(*tokens(1, batch=3), qf.Causal(), qf.Softmax(), state)
    with pytest.raises(qf.ArgumentError, match="^q: expected 4 queries"):
        qf.step(qkv[0][:, :, :1], *qkv[1:], qf.Causal(), qf.Softmax(), state)
    empty = qf.init_state(qf.Causal(), qf.Kernel("elu1"), batch=2, heads=4, kv_heads=2, head_dim=3)
    assert empty.length.tolist() == [0, 0] and empty.tensors["S"].abs().sum() == 0


@pytest.mark.parametrize("edges", [
    qf.Window(6, sinks=2) & qf.Buckets(2, 4),
    qf.Causal() & (qf.Window(3) | qf.Global(indices=(7,))) & qf.Buckets(2, 4),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("padding", [0, 5])
def test_hash_buckets_beside_sinks_and_global_tokens(edges, padding):
    qkv = tokens(40)
    call: Any = {"tensors": {"rotations": torch.randn(4, 2, 3, 2, dtype=torch.float64)}}
    call["key_mask"] = torch.arange(40)[None] >= padding
    y = qf.attend(*qkv, edges, qf.Softmax(), form="recurrent", **call)
    assert (y - qf.attend(*qkv, edges, qf.Softmax(), form="dense", **call)).abs().max() < 1e-12
