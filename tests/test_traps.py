"""Mistakes that widely used implementations make, each as one test of every form that computes the mixer.

Where it helps, the test also shows that the mistaken formula would be caught.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import quadform as qf


def forms_of(q: Tensor | None, k: Tensor | None, v: Tensor, edges: Any, weights: Any, **options: Any) -> list[str]:
    """The forms that accept a call; never none."""
    names = list(qf.explain(q, k, v, edges, weights, **options).costs)
    assert names
    return names


def every_form(
    q: Tensor | None, k: Tensor | None, v: Tensor, edges: Any, weights: Any, **options: Any
) -> dict[str, Tensor]:
    return {
        name: qf.attend(q, k, v, edges, weights, form=name, **options)
        for name in forms_of(q, k, v, edges, weights, **options)
    }


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def qkv(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return normal(*shape, dtype=dtype), normal(*shape, seed=1, dtype=dtype), normal(*shape, seed=2, dtype=dtype)


def relative(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected.double()).abs().max() / expected.double().abs().max())


@pytest.mark.parametrize(("shift", "least"), [(-8.0, 0.05), (-10.0, 0.8)])
@pytest.mark.parametrize("edges", [qf.All(), qf.Causal()])
def test_no_epsilon_is_added_to_a_normaliser(shift: float, least: float, edges: Any) -> None:
    q, k, v = qkv(1, 2, 8, 4)
    q, k = q + shift, k + shift
    a, b = (F.elu(x.double()) + 1 for x in (q, k))
    w = a @ b.mT
    w = w.tril() if edges == qf.Causal() else w
    exact = w @ v.double() / w.sum(-1, keepdim=True)
    mistaken = w @ v.double() / (w.sum(-1, keepdim=True) + 1e-6)
    assert relative(mistaken, exact) > least
    for name, y in every_form(q, k, v, edges, qf.Kernel("elu1")).items():
        assert relative(y, exact) < 1e-5, name


def test_elu_plus_one_keeps_its_digits_below_minus_sixteen() -> None:
    x = torch.linspace(-60, 3, 500)
    exact = torch.where(x > 0, x.double() + 1, x.double().exp())
    mistaken = F.elu(x) + 1
    assert float(((mistaken - exact) / exact).abs().max()) > 0.9
    assert float(((qf.Elu1()(x) - exact) / exact).abs().max()) < 1e-6


@pytest.mark.parametrize(
    "weights",
    [
        qf.Softmax(),
        qf.Kernel("exp"),
        qf.Kernel("taylor2"),
        qf.Hybrid(qf.Window(2), qf.Kernel("elu1")),
        qf.Softmax(softcap=3.0),
    ],
)
def test_no_maximum_and_no_mean_is_taken_over_future_keys(weights: Any) -> None:
    q, k, v = qkv(1, 1, 40, 8)
    later = k.clone()
    later[:, :, 30:] = 60.0 if isinstance(weights, qf.Softmax | qf.Hybrid) else 20.0
    before = every_form(q, k, v, qf.Causal(), weights)
    for name, y in every_form(q, later, v, qf.Causal(), weights).items():
        assert relative(y[:, :, :30], before[name][:, :, :30]) < 1e-6, name
    # a row maximum that includes the future leaves exp(-2000) everywhere: 0 / 0
    scores = (q.abs() @ (later.mT * 20)).float()
    assert bool(torch.exp(scores - scores.amax(-1, keepdim=True)).tril().sum(-1)[0, 0, :30].eq(0).any())


@pytest.mark.parametrize("weights", [qf.Softmax(), qf.Kernel("elu1"), qf.Uniform("mean"), qf.Similarity("cauchy")])
@pytest.mark.parametrize("edges", [qf.All(), qf.Causal(), qf.Window(3, 3), qf.Stencil(3, border="renormalise")])
def test_padded_keys_are_not_left_in_a_normaliser(weights: Any, edges: Any) -> None:
    q, k, v = qkv(2, 2, 9, 4)
    a, b, c = (F.pad(x, (0, 0, 0, 4), value=1.0) for x in (q, k, v))
    alone = qf.attend(q, k, v, edges, weights, form="dense")
    lengths = torch.tensor([9, 9])
    for name, y in every_form(a, b, c, edges, weights, lengths=lengths).items():
        assert relative(y[:, :, :9], alone) < 1e-5, name
    ignored = qf.attend(a, b, c, edges, weights, form="dense")[:, :, :9]
    assert edges == qf.Causal() or relative(ignored, alone) > 1e-3


@pytest.mark.parametrize("weights", [qf.Softmax(), qf.Kernel("elu1")])
def test_causal_is_aligned_to_the_end(weights: Any) -> None:
    q, k, v = normal(1, 1, 2, 4), normal(1, 1, 7, 4, seed=1), normal(1, 1, 7, 4, seed=2)
    whole = torch.cat([normal(1, 1, 5, 4, seed=3), q], 2)
    expected = qf.attend(whole, k, v, qf.Causal(), weights, form="dense")[:, :, 5:]
    for name, y in every_form(q, k, v, qf.Causal(), weights).items():
        assert relative(y, expected) < 1e-6, name
    torch_aligns_the_start = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert relative(torch_aligns_the_start[:, :, :1], v[:, :, :1]) < 1e-6


def test_each_row_is_aligned_to_its_own_end() -> None:
    q, k, v = normal(2, 1, 3, 4), normal(2, 1, 8, 4, seed=1), normal(2, 1, 8, 4, seed=2)
    lengths = (torch.tensor([3, 2]), torch.tensor([8, 5]))
    expected = qf.attend(q[1:, :, :2], k[1:, :, :5], v[1:, :, :5], qf.Causal(), qf.Softmax(), form="dense")
    for name, y in every_form(q, k, v, qf.Causal(), qf.Softmax(), lengths=lengths).items():
        assert relative(y[1:, :, :2], expected) < 1e-6, name


@pytest.mark.parametrize(
    ("edges", "weights"),
    [
        (qf.All(), qf.Softmax()),
        (qf.Causal(), qf.Kernel("elu1")),
        (qf.Causal(), qf.Kernel("elu1", decay="scalar")),
        (qf.Window(3), qf.Softmax()),
        (qf.Causal(), qf.Hybrid(qf.Window(3), qf.Kernel("elu1"))),
        (qf.Stencil(3), qf.Taps()),
        (qf.Graph([[0, 1, 2, 0], [1, 2, 0, 0]], 20), qf.Softmax()),
    ],
)
def test_the_gradient_of_a_sum_is_an_expanded_tensor(edges: Any, weights: Any) -> None:
    """out.sum().backward() passes a gradient with strides of 0, which hand-written backward passes have read as memory."""
    q, k, v = leaves = qkv(2, 2, 20, 4, dtype=torch.float64)
    for x in leaves:
        x.requires_grad_()
    tensors = {"taps": normal(2, 3, dtype=torch.float64)} if isinstance(weights, qf.Taps) else {}
    if getattr(weights, "decay", None):
        tensors = {"log_decay": -normal(2, 2, 20, dtype=torch.float64).abs()}
    found = {}
    for name in forms_of(q, k, v, edges, weights, tensors=tensors):
        for summed in (True, False):
            y = qf.attend(q, k, v, edges, weights, tensors=tensors, form=name)
            grads = (
                torch.autograd.grad(y.sum(), leaves, allow_unused=True)
                if summed
                else torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)
            )
            found[name, summed] = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True)]
        for a, b in zip(found[name, True], found[name, False], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        for a, b in zip(found[name, True], found["dense", True], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("weights", [qf.Softmax(), qf.Kernel("elu1"), qf.Uniform("mean"), qf.Similarity("gaussian")])
@pytest.mark.parametrize("edges", [qf.All(), qf.Causal(), qf.Window(2)])
def test_a_fully_masked_row_is_zero_with_zero_gradient(weights: Any, edges: Any) -> None:
    keep = torch.tensor([[True] * 6, [False] * 6])
    for name in forms_of(*qkv(2, 1, 6, 4), edges, weights, key_mask=keep):
        q, k, v = leaves = qkv(2, 1, 6, 4)
        for x in leaves:
            x.requires_grad_()
        y = qf.attend(q, k, v, edges, weights, key_mask=keep, form=name)
        assert y[1].abs().max() == 0, name
        grads = torch.autograd.grad(y.square().sum() + y.sum(), leaves, allow_unused=True)
        for g in grads:
            assert g is None or (bool(g.isfinite().all()) and g[1].abs().max() == 0), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_running_sum_is_not_kept_in_half_precision(dtype: torch.dtype) -> None:
    ones = torch.ones(1, 1, 1024, 1, dtype=dtype)
    stuck = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(1024):
        stuck = stuck + 1
    assert stuck == 256
    for name, y in every_form(ones, ones, ones, qf.Causal(), qf.Kernel("relu", normalise=False)).items():
        assert y[0, 0, 511] == 512, name
        assert y[0, 0, 1023] == 1024, name


def test_a_stream_in_half_precision_does_not_stick_either() -> None:
    one, state = torch.ones(1, 1, 64, 1, dtype=torch.bfloat16), None
    for _ in range(16):
        y, state = qf.attend(
            one,
            one,
            one,
            qf.Causal(),
            qf.Kernel("relu", normalise=False),
            form="recurrent",
            state=state,
            return_state=True,
        )
    assert y[0, 0, -1] == 1024


@pytest.mark.parametrize("edges", [qf.All(), qf.Window(6, 6), qf.Stencil(13, border="renormalise")])
@pytest.mark.parametrize("centre", [-5.0, 5.0])
def test_a_peaked_relative_head_at_a_border_is_not_zero_by_zero(edges: Any, centre: float) -> None:
    n = 12
    v = normal(1, 1, n, 3)
    tensors = {"centre": torch.tensor([[centre]]), "alpha": torch.tensor([1e4])}
    nearest = (torch.arange(n) + int(centre)).clamp(0, n - 1)
    weights = qf.Softmax(content=False, bias=qf.Quadratic())
    for name, y in every_form(None, None, v, edges, weights, tensors=tensors).items():
        torch.testing.assert_close(y, v[:, :, nearest], rtol=1e-6, atol=1e-6, msg=name)
    # one maximum for all rows leaves nothing of a row that cannot reach the peak
    delta = torch.arange(n)[None] - torch.arange(n)[:, None]
    scores = -1e4 * (delta - centre) ** 2
    assert bool(torch.exp(scores - scores.max()).sum(-1).eq(0).any())


@pytest.mark.parametrize("edges", [qf.Causal(), qf.All()])
@pytest.mark.parametrize("size", [100.0, 1000.0, -100.0, -1000.0])
def test_large_scores_in_the_near_part_of_a_hybrid_stay_finite(edges: Any, size: float) -> None:
    n = 20
    q, k, v = normal(1, 1, n, 4), normal(1, 1, n, 4, seed=1), normal(1, 1, n, 4, seed=2)
    q[..., 0], k[..., 0] = abs(size) / 10, size / 50
    weights = qf.Hybrid(qf.Window(2), qf.Kernel("elu1"), scale=1.0)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    delta = torch.arange(n)[None] - torch.arange(n)[:, None]
    near = (delta <= 0) & (delta >= -2)
    phi = [torch.where(x > 0, x.double() + 1, x.double().exp()) for x in (q, k)]
    logs = torch.where(near, q.double() @ k.double().mT, (phi[0] @ phi[1].mT).log())
    logs = logs.masked_fill(delta > 0, -torch.inf) if edges == qf.Causal() else logs
    exact = torch.softmax(logs, -1) @ v.double()
    for name, y in every_form(q, k, v, edges, weights).items():
        assert relative(y.detach(), exact.detach()) < 2e-7 * abs(size), name  # the digits of a score of that size
        assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(y.sum(), leaves)), name
