"""The chunked causal kernel: its written backward pass against the recurrence, token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadform as qf
from quadform.forms.recurrent._kernel import Sums, causal_prefix

WIDTHS = {"none": 0, "scalar": 1, "feature": 3}


def inputs(width: int, senders: int, receivers: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v, the sums carried in, and log-gates; m = 3, Dv = 2."""
    shapes: list[tuple[int, ...]] = [
        (2, 2, receivers, 3),
        (2, 2, senders, 3),
        (2, 2, senders, 2),
        (2, 2, 3, 2),
        (2, 2, 3, 1),
    ]
    x = [torch.rand(shape, dtype=dtype) + 0.1 for shape in shapes]
    x[2] = x[2] - 0.5
    return x + ([-torch.rand(2, 2, senders, width, dtype=dtype)] if width else [])


def chunked(x: Any, shift: int = 0, normalise: bool = True, chunk: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, S, z, *gates = x
    y, after = causal_prefix(q, k, v, gates[0] if gates else None, shift, Sums(S, z), normalise, chunk)
    return y, after.S, after.z


def recurrence(x: Any, shift: int = 0, normalise: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, S, z, *gates = x
    rows = []
    for t in range(max(k.shape[2], q.shape[2] + shift)):
        if t < k.shape[2]:
            fade = gates[0][:, :, t, :, None].exp() if gates else 1.0
            S, z = fade * S + k[:, :, t, :, None] * v[:, :, t, None], fade * z + k[:, :, t, :, None]
        if 0 <= t - shift < q.shape[2]:
            at = q[:, :, t - shift, None]
            rows.append(at @ S / (at @ z) if normalise else at @ S)
    return torch.cat(rows, 2), S, z


@pytest.mark.parametrize(
    ("senders", "receivers", "shift"), [(21, 21, 0), (16, 16, 0), (5, 5, 0), (21, 6, 15), (9, 12, 2), (12, 3, 4)]
)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_every_output_and_every_gradient_is_the_recurrence(width, normalise, senders, receivers, shift):
    x = [t.requires_grad_() for t in inputs(width, senders, receivers)]
    expected, found = recurrence(x, shift, normalise), chunked(x, shift, normalise)
    into = [torch.randn_like(y) for y in expected]
    wanted = torch.autograd.grad(expected, x, into)
    for a, b in zip((*found, *torch.autograd.grad(found, x, into)), (*expected, *wanted), strict=True):
        assert (a - b).abs().max() <= 1e-12 * (1 + b.abs().max())


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_derivatives_of_both_orders(width, normalise):
    x = [t[:1, :1].clone().requires_grad_() for t in inputs(width, 7, 7)]
    assert torch.autograd.gradcheck(lambda *x: chunked(x, 0, normalise, 4), x)
    assert torch.autograd.gradgradcheck(lambda *x: chunked(x, 0, normalise, 4), x)


@pytest.mark.parametrize("decay", [None, "scalar", "feature"])
@pytest.mark.parametrize("name", ["elu1", "relu", "exp"])
def test_derivatives_through_the_feature_map(name, decay):
    x = [torch.randn(1, 2, 70, 3, dtype=torch.float64).requires_grad_() for _ in range(3)]
    tensors = {}
    if decay:
        gates = -torch.rand(1, 2, 70, 3, dtype=torch.float64)
        tensors["log_decay"] = (gates[..., 0] if decay == "scalar" else gates).requires_grad_()
    weights = qf.Kernel(name, decay=decay)
    wanted = [*x, *tensors.values()]
    first, second = [], []
    for form in ("recurrent", "dense"):
        y = qf.attend(*x, qf.Causal(), weights, tensors=tensors, form=form)
        first.append(torch.autograd.grad(y, wanted, x[0] * x[2].detach(), create_graph=True))
        again = torch.autograd.grad(sum((g * g).sum() for g in first[-1]), wanted)
        plain = torch.autograd.grad(
            qf.attend(*x, qf.Causal(), weights, tensors=tensors, form=form), wanted, x[0] * x[2]
        )
        second.append((*again, *plain))
    for a, b in zip((*first[0], *second[0]), (*first[1], *second[1]), strict=True):
        assert (a - b).abs().max() < 1e-10 * (1 + b.abs().max())


def gradients(x: list[Tensor], into: Tensor) -> tuple[Tensor, ...]:
    y = chunked(x)[0]
    return torch.autograd.grad(y, x, into.to(y.dtype).expand(y.shape))


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_strided_tensors_and_expanded_gradients_are_exact(width):
    plain = inputs(width, 21, 21)
    strided = [torch.stack([t, t + 1], -1).mT.contiguous().mT[..., 0] for t in plain]
    strided[1] = strided[1][:1, :1].expand(2, 2, -1, -1)
    same = [t.clone(memory_format=torch.contiguous_format).requires_grad_() for t in strided]
    strided = [t.requires_grad_() for t in strided]
    for a, b in zip(gradients(same, torch.ones(())), gradients(strided, torch.ones(())), strict=True):
        assert (a - b).abs().max() <= 1e-13 * b.abs().max()
    into = torch.randn(2, 2, 2, 21, dtype=torch.float64).mT
    pairs = zip(gradients(same, into), gradients(same, into.contiguous()), strict=True)
    assert all((a - b).abs().max() <= 1e-13 * b.abs().max() for a, b in pairs)


@pytest.mark.parametrize("width", [1, 3])
def test_a_hard_reset_loses_no_digits(width):
    x = inputs(width, 40, 40, torch.float32)
    x[5][:, :, [11, 24]] = -1000.0
    x = [t.requires_grad_() for t in x]
    wide = [t.detach().double().requires_grad_() for t in x]
    found, expected = chunked(x)[0], recurrence(wide)[0]
    into = torch.randn_like(expected)
    here, there = torch.autograd.grad(found, x, into.float()), torch.autograd.grad(expected, wide, into)
    for a, b in zip((found, *here), (expected, *there), strict=True):
        assert (a - b).abs().max() < 2e-6 * (b.abs().max() + 1)
    alone = [t[:, :, 24:] if t.shape[2] == 40 else torch.zeros_like(t) for t in x]
    assert (found[:, :, 24:] - chunked(alone)[0]).abs().max() < 1e-6


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_rows_without_senders_are_zero_with_gradient_zero(width):
    x = inputs(width, 21, 21)
    x[1][:, :, :10] = 0
    x[3], x[4] = torch.zeros_like(x[3]), torch.zeros_like(x[4])
    x = [t.requires_grad_() for t in x]
    found = gradients(x, torch.ones(()))
    assert chunked(x)[0][:, :, :10].abs().max() == 0 and found[0][:, :, :10].abs().max() == 0
    assert all(g.isfinite().all() for g in found)


def test_features_far_below_one_have_no_bias():
    q = torch.full((1, 1, 300, 4), -40.0)
    y = qf.attend(q, q, torch.ones(1, 1, 300, 2), qf.Causal(), qf.Kernel("elu1"), form="recurrent")
    assert (y - 1).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_long_run_stays_at_its_digits(dtype, cases):
    n = 4096 if cases is None else max(4096, min(64 * cases, 1 << 16))
    q, k = (torch.randn(1, 1, n, 8).to(dtype) for _ in range(2))
    v = torch.randn(1, 1, n, 4).to(dtype) + 1
    exact, after = qf.prefill(q.double(), k.double(), v.double(), qf.Causal(), qf.Kernel("elu1"))
    state = qf.init_state(qf.Causal(), qf.Kernel("elu1"), batch=1, heads=1, head_dim=8, value_dim=4, dtype=dtype)
    parts = []
    for t in range(n):
        y, state = qf.step(
            q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], qf.Causal(), qf.Kernel("elu1"), state
        )
        parts.append(y)
    error = (torch.cat(parts, 2) - exact).abs().max() / exact.abs().max()
    assert error < max(1e-5, torch.finfo(dtype).eps)
    assert state.tensors["S"].dtype == torch.float32
    assert (state.tensors["S"] - after.tensors["S"]).abs().max() < 3e-5 * after.tensors["S"].abs().max()


def test_saved_memory_is_linear_in_the_tokens():
    def saved(n: int) -> int:
        x = [t.requires_grad_() for t in inputs(0, n, n)]
        seen: dict[int, int] = {}

        def pack(t: Tensor) -> Tensor:
            seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            chunked(x, chunk=64)
        return sum(seen.values())

    assert saved(4096) <= 8 * saved(512)
