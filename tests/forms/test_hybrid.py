"""Hybrid: exact near, a kernel far, one joint normaliser; and the learned gain of the far part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import quadform as qf
from quadform.algebra import FeatureMap

FORMS = ("dense", "graph", "recurrent")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(n: int, dim: int = 3) -> Any:
    """q with four heads, k and v with two."""
    return normal(2, 4, n, dim), normal(2, 2, n, dim, seed=1), normal(2, 2, n, 3, seed=2)


def stream(qkv: Any, weights: qf.Weights, tensors: Mapping[str, Tensor], splits: tuple[int, ...]) -> Tensor:
    state, parts, start = None, [], 0
    for size in splits:
        q, k, v = (x[:, :, start : start + size] for x in qkv)
        y, state = qf.prefill(q, k, v, qf.Causal(), weights, tensors=tensors, state=state)
        parts.append(y)
        start += size
    return torch.cat(parts, 2)


def outputs(qkv: Any, edges: qf.Edges, weights: qf.Weights, **tensors: Tensor) -> dict[str, Tensor]:
    """What every form computes, and on causal edges a stream in pieces."""
    q, k, v = qkv
    out = {form: qf.attend(q, k, v, edges, weights, tensors=tensors, form=form) for form in FORMS}
    n = q.shape[2]
    if edges.is_causal:
        out["stream"] = stream(qkv, weights, tensors, (1, n // 2, n - n // 2 - 3, 1, 1))
    return out


@dataclass(frozen=True)
class OneHot(FeatureMap):
    """exp(q'k) / loss, exactly, for one-hot keys of length `size`: exp(size q_f) where the key's f-th entry is not 0."""

    size: float
    loss: float = 1.0

    def features(self, head_dim: int) -> int:
        return head_dim

    def query(self, q: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return torch.exp(self.size * q) / self.loss, None

    def key(self, k: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        return k / self.size


def one_hot_tokens(n: int) -> Any:
    q, _, v = tokens(n, 5)
    index = torch.randint(0, 5, (2, 2, n), generator=torch.Generator().manual_seed(3))
    return q, 2.0 * torch.nn.functional.one_hot(index, 5).double(), v


@pytest.mark.parametrize("edges", [qf.Causal(), qf.All()], ids=str)
@pytest.mark.parametrize("near", [qf.Window(9), qf.Window(0), qf.Window(4, 6, sinks=2)], ids=str)
def test_a_gain_of_nothing_leaves_the_window_alone(edges, near):
    qkv = tokens(150)
    gain = torch.full((4,), -torch.inf, dtype=torch.float64)
    window = qf.attend(*qkv, edges & near, qf.Softmax(), form="dense")
    for form, y in outputs(qkv, edges, qf.Hybrid(near, qf.Kernel("elu1")), far_gain=gain).items():
        assert (y - window).abs().max() < 1e-12, form


@pytest.mark.parametrize("edges", [qf.Causal(), qf.All()], ids=str)
@pytest.mark.parametrize("near", [qf.Window(9), qf.Window(70, 3, sinks=2), qf.Window(0)], ids=str)
def test_where_the_far_kernel_is_exact_up_to_its_gain_the_hybrid_is_full_attention(edges, near):
    qkv = one_hot_tokens(150)
    full = qf.attend(*qkv, edges, qf.Softmax(scale=1.0), form="dense")
    hybrid = qf.Hybrid(near, qf.Kernel(OneHot(2.0, loss=100.0)), scale=1.0)
    gain = torch.full((4,), math.log(100.0), dtype=torch.float64)
    for form, y in outputs(qkv, edges, hybrid, far_gain=gain).items():
        assert (y - full).abs().max() < 1e-12, form
    assert (qf.attend(*qkv, edges, hybrid) - full).abs().max() > 0.1


def test_the_gain_is_learned():
    qkv = one_hot_tokens(100)
    full = qf.attend(*qkv, qf.Causal(), qf.Softmax(scale=1.0))
    hybrid = qf.Hybrid(qf.Window(7), qf.Kernel(OneHot(2.0, loss=20.0)), scale=1.0)
    gain = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([gain], 0.1)
    for _ in range(150):
        y = qf.attend(*qkv, qf.Causal(), hybrid, tensors={"far_gain": gain}, form="recurrent")
        optimiser.zero_grad()
        (y - full).pow(2).mean().backward()
        optimiser.step()
    assert (gain - math.log(20.0)).abs().max() < 0.01


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("edges", [qf.Causal(), qf.All()], ids=str)
def test_the_gradient_of_the_gain_is_that_of_finite_differences(form, edges):
    q, k, v = (x[:1, :2, :70].contiguous() for x in tokens(70))
    gain = normal(2, seed=4).requires_grad_()
    q.requires_grad_()
    hybrid = qf.Hybrid(qf.Window(3, sinks=1), qf.Kernel("elu1"))

    def run(q: Tensor, gain: Tensor) -> Tensor:
        y: Tensor = qf.attend(q, k, v, edges, hybrid, tensors={"far_gain": gain}, form=form)
        return y

    assert torch.autograd.gradcheck(run, (q, gain), fast_mode=True)
    (slope,) = torch.autograd.grad(run(q, gain - torch.inf).sum(), gain)
    assert torch.equal(slope, torch.zeros_like(slope))


@pytest.mark.parametrize("form", FORMS)
def test_near_and_far_share_a_stabiliser(form):
    q, k, v = (x.float() for x in tokens(100))
    hybrid = qf.Hybrid(qf.Window(5), qf.Kernel("exp"))
    for size in (40.0, 300.0):  # near scores up to thousands, far sums up to exp of hundreds
        expected = qf.attend(size * q.double(), k.double(), v.double(), qf.Causal(), hybrid, form="dense")
        y = qf.attend(size * q, k, v, qf.Causal(), hybrid, form=form)
        assert expected.isfinite().all() and (y - expected).abs().max() < 2e-3


def test_keys_near_a_fixed_centre_are_far_pairs_without_error():
    q, k, v = tokens(200)
    centre = 4 * normal(4, 3, seed=7)
    k = centre[None, :2, None] + 0.01 * k
    q, centre = q[:, :2], centre[:2]
    full = qf.attend(q, k, v, qf.Causal(), qf.Softmax(), form="dense")
    about = qf.Hybrid(qf.Window(5), qf.Kernel(qf.Taylor2(centre="fixed")))
    for form, y in outputs((q, k, v), qf.Causal(), about, key_centre=centre).items():
        assert (y - full).abs().max() < 5e-6, form
    plain = qf.attend(q, k, v, qf.Causal(), qf.Hybrid(qf.Window(5), qf.Kernel("taylor2")))
    assert (plain - full).abs().max() > 1e-2


NEAR = [
    *(qf.Window(left) for left in (1, 62, 63, 64, 65, 200, 320, 500)),
    qf.Window(70, 5, sinks=3),
    qf.Window(5, 70),
    qf.Window(130, 130, sinks=1),
    qf.Window(40, 64),
    qf.Window(3) | qf.Window(90, 2) | qf.Global(first=2, indices=(50,)),
    qf.Window(80) & qf.Window(90, 3, sinks=2),
    qf.Window(30, 2) & (qf.Window(3) | qf.Window(0, 3)),
]


@pytest.mark.parametrize("edges", [qf.Causal(), qf.All()], ids=str)
@pytest.mark.parametrize("near", NEAR, ids=str)
def test_blocks_of_every_shape(edges, near):
    q, k, v = (x[:, :2] for x in tokens(330))
    hybrid = qf.Hybrid(near, qf.Kernel("elu1"))
    expected = qf.attend(q, k, v, edges, hybrid, form="dense")
    for n in (330, 300, 64, 1):
        y = qf.attend(q[:, :, 330 - n :], k, v, edges, hybrid, form="recurrent")
        assert (y - expected[:, :, 330 - n :]).abs().max() < 1e-12
    keep = torch.ones(2, 330, dtype=torch.bool)
    keep[0, 100:170] = keep[1, 325:] = keep[1, 0] = False
    expected = qf.attend(q, k, v, edges, hybrid, form="dense", key_mask=keep)
    y = qf.attend(q, k, v, edges, hybrid, form="recurrent", key_mask=keep)
    assert (y - expected).abs().max() < 1e-12


@pytest.mark.parametrize("edges", [qf.Causal(), qf.All()], ids=str)
def test_a_window_with_gaps_between_near_pairs(edges):
    qkv = tokens(150)
    hybrid = qf.Hybrid(qf.Stencil(3, dilation=20, padding=(40, 0)), qf.Kernel("elu1"))
    expected = qf.attend(*qkv, edges, hybrid, form="dense")
    assert (qf.attend(*qkv, edges, hybrid, form="recurrent") - expected).abs().max() < 1e-12


def test_a_row_without_senders_is_zero_whatever_the_gain():
    q, k, v = tokens(80)
    keep = torch.ones(2, 80, dtype=torch.bool)
    keep[0] = False
    for gain in (0.0, -torch.inf):
        given = torch.full((4,), gain, dtype=torch.float64)
        hybrid = qf.Hybrid(qf.Window(3, sinks=1), qf.Kernel("relu"))
        for form in FORMS:
            y = qf.attend(q, k, v, qf.All(), hybrid, tensors={"far_gain": given}, key_mask=keep, form=form)
            assert torch.equal(y[0], torch.zeros_like(y[0])) and y.isfinite().all()


def test_the_gain_is_one_number_for_each_head():
    with pytest.raises(qf.ArgumentError, match=r"^tensors\['far_gain'\]: expected a tensor \(H=4\)"):
        qf.attend(*tokens(5), qf.Causal(), qf.Hybrid(qf.Window(1), qf.Kernel()), tensors={"far_gain": torch.zeros(3)})
