"""Decay as the docstring defines it: loops over receivers, senders and the gates between them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import quadform as qf

N, D = 7, 3


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loops(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, q_pos: list[int], k_pos: list[int], normalise: bool
) -> Tensor:
    """One head; gates (m,) or (m, D): the gate of a sender applies to all senders before it, up to the receiver."""
    a, b = (qf.Elu1()(x) for x in (q, k))
    y = q.new_zeros(len(q_pos), v.shape[-1])
    for i, here in enumerate(q_pos):
        total = 0.0
        for j, there in enumerate(k_pos):
            if there > here:
                continue
            between = [t for t, p in enumerate(k_pos) if there < p <= here]
            decay = gates[between].sum(0).exp()
            w = float((a[i] * b[j] * decay).sum())
            y[i] += w * v[j]
            total += w
        if normalise and total:
            y[i] /= total
    return y


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("kind", ["scalar", "feature"])
@pytest.mark.parametrize(
    ("q_pos", "k_pos", "given"),
    [
        (list(range(N)), list(range(N)), False),
        (list(range(4, N)), list(range(N)), False),
        ([1, 4, 9, 30], [0, 2, 3, 9, 11, 12, 20], True),
        ([5, 2], [6, 0, 4, 1, 2, 3, 5], True),
    ],
)
def test_decay_is_the_sum_of_the_gates_between(
    normalise: bool, kind: Any, q_pos: list[int], k_pos: list[int], given: bool
) -> None:
    q, k, v = normal(len(q_pos), D, seed=0), normal(N, D, seed=1), normal(N, 2, seed=2)
    gates = -normal(*((N,) if kind == "scalar" else (N, D)), seed=3).abs()
    options = {"positions": (torch.tensor(q_pos), torch.tensor(k_pos))} if given else {}
    tensors = {"log_decay": gates[None, None]}
    weights = qf.Kernel("elu1", normalise, kind)
    expected = loops(q, k, v, gates, q_pos, k_pos, normalise)
    x, y, z = (t[None, None] for t in (q, k, v))
    for form in qf.explain(x, y, z, qf.Causal(), weights, tensors=tensors, **options).costs:  # type: ignore[arg-type]
        found = qf.attend(x, y, z, qf.Causal(), weights, tensors=tensors, form=form, **options)  # type: ignore[arg-type]
        torch.testing.assert_close(found[0, 0], expected, rtol=1e-10, atol=1e-12, msg=form)


def test_masked_positions_keep_their_gates_to_themselves() -> None:
    """A sender that is masked out sends nothing and applies no gate."""
    q, k, v = normal(N, D, seed=0), normal(N, D, seed=1), normal(N, 2, seed=2)
    gates, keep = -normal(N, seed=3).abs(), torch.tensor([True, True, False, True, False, True, True])
    silent = torch.where(keep, gates, 0)
    index = keep.nonzero()[:, 0].tolist()
    expected = torch.stack([loops(q[i : i + 1], k[keep], v[keep], silent[keep], [i], index, True)[0] for i in range(N)])
    arguments = (q[None, None], k[None, None], v[None, None], qf.Causal(), qf.Kernel("elu1", decay="scalar"))
    tensors = {"log_decay": gates[None, None]}
    found = qf.attend(*arguments, tensors=tensors, key_mask=keep[None], form="dense")
    torch.testing.assert_close(found[0, 0], expected)
    assert math.isfinite(float(found.sum()))


def decayed(q: Tensor, k: Tensor, v: Tensor, weights: qf.Weights, gates: Tensor, form: str) -> Tensor:
    y: Tensor = qf.attend(q, k, v, qf.Causal(), weights, tensors={"log_decay": gates}, form=form)
    return y


@pytest.mark.parametrize("form", ["dense", "graph", "recurrent"])
@pytest.mark.parametrize("kind", ["scalar", "feature"])
@pytest.mark.parametrize("reset", [-1e4, -math.inf])
def test_a_gate_that_forgets_everything_costs_no_digits(form: str, kind: Any, reset: float) -> None:
    n = 150
    q, k, v = (normal(1, 2, n, D, seed=s) for s in range(3))
    gates = -normal(1, 2, n, *([] if kind == "scalar" else [D]), seed=3).abs()
    gates[:, :, ::7] = reset
    weights = qf.Kernel("elu1", decay=kind)
    parts = []
    for a in range(0, n, 7):
        q_part, k_part, v_part = (x[:, :, a : a + 7] for x in (q, k, v))
        parts.append(decayed(q_part, k_part, v_part, weights, gates[:, :, a : a + 7], "dense"))
    expected = torch.cat(parts, 2)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        qkv = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        y = decayed(qkv[0], qkv[1], qkv[2], weights, gates.to(dtype), form)
        assert (y - expected).abs().max() <= tolerance * expected.abs().max()
        assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), qkv))
