"""Feature maps: exact where they are said to be exact, positive, stable, blind to the future; and a map of one's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import quadform as qf
from quadform.algebra import FeatureMap, TensorSpec
from quadform.algebra._description import _CLASSES
from quadform.algebra.features._products import FEW

B, H, N, D = 2, 4, 90, 4
FORMS = ("dense", "graph", "recurrent")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tokens(n: int = N, kv_heads: int = H, dim: int = D) -> Any:
    return normal(B, H, n, dim), normal(B, kv_heads, n, dim, seed=1), normal(B, kv_heads, n, 3, seed=2)


def streamed(qkv: Any, weights: qf.Weights, tensors: Any, splits: tuple[int, ...]) -> tuple[Tensor, Any]:
    state, parts, start = None, [], 0
    for size in splits:
        q, k, v = (x[:, :, start : start + size] for x in qkv)
        y, state = qf.prefill(q, k, v, qf.Causal(), weights, tensors=tensors, state=state)
        parts.append(y)
        start += size
    return torch.cat(parts, 2), state


def agree(qkv: Any, weights: qf.Weights, tensors: dict[str, Tensor], expected: Tensor) -> None:
    """Every form, and a stream in pieces, on causal edges."""
    q, k, v = qkv
    for form in FORMS:
        y = qf.attend(q, k, v, qf.Causal(), weights, tensors=tensors, form=form)
        assert (y - expected).abs().max() < 1e-11 * expected.abs().max(), form
    y, _ = streamed(qkv, weights, tensors, (1, 3, q.shape[2] - 6, 1, 1))
    assert (y - expected).abs().max() < 1e-11 * expected.abs().max()


def causal(w: Tensor, v: Tensor) -> Tensor:
    w = w.tril()
    return (w / w.sum(-1, keepdim=True)) @ v


def test_elu1_keeps_the_digits_of_negative_values():
    x = torch.linspace(-80, 5, 1001)
    low = x[x <= 0]
    assert torch.equal(qf.Elu1()(low), torch.exp(low))
    assert torch.equal(qf.Elu1()(x[x > 0]), x[x > 0] + 1)
    assert (qf.Elu1()(x) > 0).all()
    point = torch.tensor([-30.0, 0.0, 2.0], requires_grad=True)
    (slope,) = torch.autograd.grad(qf.Elu1()(point).sum(), point)
    assert torch.equal(slope, torch.tensor([math.exp(-30.0), 1.0, 1.0]))


@pytest.mark.parametrize("normalise", [True, False])
def test_exp_is_a_sum_of_exponentials(normalise):
    qkv = tokens()
    w = torch.exp(qkv[0][..., :, None, :] + qkv[1][..., None, :, :]).sum(-1)
    expected = causal(w, qkv[2]) if normalise else w.tril() @ qkv[2]
    agree(qkv, qf.Kernel("exp", normalise=normalise), {}, expected)


@pytest.mark.parametrize("form", FORMS)
def test_queries_of_any_size_are_finite(form):
    q, k, v = (x.float() for x in tokens(20))
    far = 300 * q
    w = torch.logsumexp(far.double()[..., :, None, :] + k.double()[..., None, :, :], -1)
    expected = torch.softmax(w.masked_fill(~torch.ones(20, 20, dtype=torch.bool).tril(), -torch.inf), -1) @ v.double()
    y = qf.attend(far, k, v, qf.Causal(), qf.Kernel("exp"), form=form)
    assert (y - expected).abs().max() < 1e-4
    rows = {"feature_projection": qf.favor_projection(H, 16, D, seed=0)}
    assert qf.attend(far, k, v, qf.Causal(), qf.Kernel(qf.Favor(16)), tensors=rows, form=form).isfinite().all()


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
@pytest.mark.parametrize("offset", [0.0, 0.4, 1.0])
def test_a_polynomial_has_each_monomial_once(degree, offset):
    phi = qf.Polynomial(degree, offset)
    q, k = normal(5, D), normal(6, D, seed=1)
    variables = D + (offset > 0)
    assert phi(q).shape[-1] == phi.features(D) == math.comb(variables + degree - 1, degree)
    expected = (offset + q @ k.T * D**-0.5) ** degree
    assert (phi(q) @ phi(k).T - expected).abs().max() < 1e-13 * max(1, expected.abs().max())
    assert phi.positive == (degree % 2 == 0)


@pytest.mark.parametrize("phi", [qf.Taylor2(), qf.Polynomial(2), qf.Polynomial(3, 0.0), qf.Polynomial(4)], ids=str)
def test_features_of_a_token_do_not_depend_on_how_many_there_are(phi):
    x = normal(2, FEW, D)
    every = phi(x)
    assert torch.equal(every[:, :3], phi(x[:, :3])) and every.shape == (2, FEW, phi.features(D))
    assert phi(x[:, :0]).shape == (2, 0, phi.features(D))
    few = normal(1, 2, D).requires_grad_()
    assert torch.autograd.gradcheck(phi, few)
    assert torch.autograd.gradgradcheck(phi, few)


@pytest.mark.parametrize("offset", [0.3, 1.0])
def test_a_polynomial_kernel_is_its_similarity_with_any_offset(offset):
    q, k, v = tokens()
    qkv = (q / 6, k, v)  # offset + s stays away from 0
    similarity = qf.Similarity("polynomial", 4, offset=offset)
    expected = qf.attend(*qkv, qf.Causal(), similarity, form="dense")
    agree(qkv, qf.Kernel(qf.Polynomial(4, offset)), {}, expected)


def test_taylor_is_as_close_to_exp_as_it_says():
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    phi = qf.Taylor2(1.0)
    error = ((phi(s[:, None]) @ phi(one).T)[:, 0] / s.exp() - 1).abs()
    near = s.abs() < 0.5
    assert error[near].max() < 0.04 and 0.35 < error.max() < 0.36
    assert "4 %" in phi.validity and "36 %" in phi.validity


@pytest.mark.parametrize("normalise", [True, False])
def test_taylor_about_a_fixed_key(normalise):
    qkv, c = tokens(), normal(H, D, seed=5)
    q, k, v = qkv
    t = q @ (k - c[:, None]).mT * D**-0.5
    w = torch.exp(q @ c[:, :, None] * D**-0.5) * (1 + t + t * t / 2)
    expected = causal(w, v) if normalise else w.tril() @ v
    agree(qkv, qf.Kernel(qf.Taylor2(centre="fixed"), normalise=normalise), {"key_centre": c}, expected)


def test_taylor_about_the_mean_score_of_the_past():
    qkv = tokens()
    q, k, v = qkv
    s = q @ k.mT * D**-0.5
    mean = s.tril().sum(-1, keepdim=True) / torch.arange(1, N + 1)[:, None]
    t = s - mean
    agree(qkv, qf.Kernel(qf.Taylor2(centre="running")), {}, causal(1 + t + t * t / 2, v))


@pytest.mark.parametrize("edges", [qf.Causal(), qf.All(), qf.Window(7, 2), qf.Window(9)], ids=str)
def test_a_running_centre_does_not_notice_a_constant_added_to_all_keys(edges):
    q, k, v = tokens()
    moved = k + 3 * normal(H, 1, D, seed=6)
    weights = qf.Kernel(qf.Taylor2(centre="running"))
    forms = FORMS if edges != qf.Window(7, 2) else FORMS[:2]
    for form in forms:
        y, z = (qf.attend(q, x, v, edges, weights, form=form) for x in (k, moved))
        assert (y - z).abs().max() < 1e-11
    exact = qf.attend(q, moved, v, edges, qf.Softmax())
    centred, plain = (
        qf.attend(q, moved, v, edges, qf.Kernel(phi)) for phi in (qf.Taylor2(centre="running"), qf.Taylor2())
    )
    assert (centred - exact).pow(2).mean() < 0.5 * (plain - exact).pow(2).mean()


def test_a_running_centre_counts_neither_padding_nor_holes():
    q, k, v = tokens(30)
    keep = torch.ones(B, 30, dtype=torch.bool)
    keep[0, :5] = keep[1, 25:] = keep[:, 12] = False
    weights = qf.Kernel(qf.Taylor2(centre="running"))
    expected = qf.attend(q, k, v, qf.Causal(), weights, key_mask=keep, form="dense")
    _, state = qf.prefill(q, k, v, qf.Causal(), weights, key_mask=keep)
    assert state.tensors["z"][0, 0, 0] == 24 and state.tensors["z"][1, 0, 0] == 24
    y = qf.attend(q, k, v, qf.Causal(), weights, key_mask=keep, form="recurrent")
    assert (y - expected).abs().max() < 1e-12


def test_a_memory_for_cross_attention_has_its_mean_too():
    q, k, v = tokens(20)
    weights = qf.Kernel(qf.Taylor2(centre="running"))
    expected = qf.attend(q, k, v, qf.All(), weights, form="dense")
    y, state = qf.prefill(q[:, :, :7], k, v, qf.All(), weights)
    rest, _ = qf.prefill(q[:, :, 7:], k[:, :, :0], v[:, :, :0], qf.All(), weights, state=state)
    assert (torch.cat([y, rest], 2) - expected).abs().max() < 1e-12


def test_hedgehog_learns_and_its_keys_may_have_weights_of_their_own():
    qkv = tokens(40)
    names = {
        name: normal(H, 3, D, seed=i).requires_grad_() for i, name in enumerate(["feature_weight", "feature_weight_k"])
    }
    q, k = (
        torch.softmax(torch.cat([y, -y], -1), -1) for y in (x @ w.mT for x, w in zip(qkv, names.values(), strict=False))
    )
    agree(qkv, qf.Kernel(qf.Hedgehog(3)), names, causal(q @ k.mT, qkv[2]).detach())
    phi = qf.Hedgehog(3)(30 * qkv[0], names["feature_weight"])
    assert (phi >= 0).all() and (phi.sum(-1) - 1).abs().max() < 1e-12

    def run(*weights: Tensor) -> Tensor:
        given = dict(zip(names, weights, strict=True))
        q, k, v = (x[:1, :, :5] for x in qkv)
        y: Tensor = qf.attend(q, k, v, qf.Causal(), qf.Kernel(qf.Hedgehog(3)), tensors=given)
        return y

    assert torch.autograd.gradcheck(run, tuple(names.values()))


def test_hedgehog_can_be_distilled():
    q, k, v = tokens(30)
    exact = qf.attend(q, k, v, qf.Causal(), qf.Softmax())
    weight = torch.eye(D, dtype=torch.float64).repeat(H, 1, 1).requires_grad_()
    optimiser = torch.optim.Adam([weight], 0.03)
    losses = []
    for _ in range(60):
        y = qf.attend(q, k, v, qf.Causal(), qf.Kernel("hedgehog"), tensors={"feature_weight": weight})
        loss = (y - exact).pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]


def test_favor_is_unbiased_with_the_variance_that_it_states():
    q, k = 0.3 * normal(1, 1, 6, D), 0.3 * normal(1, 1, 5, D, seed=1)
    exact = torch.exp(q @ k.mT * D**-0.5)
    phi, draws, m = qf.Favor(8), 20000, 8

    def estimates(orthogonal: bool) -> Tensor:
        rows = qf.favor_projection(draws, m, D, seed=3, orthogonal=orthogonal, dtype=torch.float64)
        return phi(q.expand(1, draws, -1, -1), rows) @ phi(k.expand(1, draws, -1, -1), rows).mT

    for how in (True, False):
        found = estimates(how)
        assert ((found.mean(1) - exact).abs() < 5 * found.std(1) / draws**0.5)[0].all()
    squares = (q[..., :, None, :] + k[..., None, :, :]).pow(2).sum(-1) * D**-0.5
    stated = ((squares.exp() - 1) / m).sqrt()
    light = stated < 0.4  # beyond, the tails are too heavy for a sample's deviation
    independent, orthogonal = ((estimates(how) / exact).std(1)[light[0]] for how in (False, True))
    assert light.sum() > 15 and ((independent / stated[light] - 1).abs() < 0.1).all()
    assert (orthogonal < independent).double().mean() > 0.8


@pytest.mark.parametrize("normalise", [True, False])
def test_favor_is_the_same_in_every_form(normalise):
    qkv, rows = tokens(), qf.favor_projection(H, 10, D, seed=1, dtype=torch.float64)
    phi = qf.Favor(10)
    w = phi(qkv[0], rows) @ phi(qkv[1], rows).mT
    expected = causal(w, qkv[2]) if normalise else w.tril() @ qkv[2]
    agree(qkv, qf.Kernel(phi, normalise=normalise), {"feature_projection": rows}, expected)


def test_features_of_keys_are_bounded_by_the_projection():
    rows = qf.favor_projection(H, 10, D, seed=1)
    k = normal(1, H, 500, D, dtype=torch.float32) * torch.logspace(-2, 4, 500)[:, None]
    bound = torch.exp(rows.pow(2).sum(-1) / 2)[:, None] / 10**0.5
    assert (qf.Favor(10)(k, rows) <= bound * 1.0001).all()


def test_a_projection_is_orthogonal_within_each_block_and_repeats():
    rows = qf.favor_projection(3, 10, D, seed=5, dtype=torch.float64)
    assert rows.shape == (3, 10, D)
    for block in (rows[:, :4], rows[:, 4:8], rows[:, 8:]):
        gram = block @ block.mT
        off = gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
        assert off.abs().max() < 1e-12
    many = qf.favor_projection(64, 64, 16, seed=5, dtype=torch.float64)
    assert abs(float(many.pow(2).sum(-1).mean()) / 16 - 1) < 0.02
    assert many.mean().abs() < 0.02 and abs(float(many.std()) - 1) < 0.02
    assert torch.equal(rows, qf.favor_projection(3, 10, D, seed=5, dtype=torch.float64))
    assert not torch.equal(rows, qf.favor_projection(3, 10, D, seed=6, dtype=torch.float64))


def test_maps_with_a_head_s_own_tensors_have_a_state_for_each_head():
    q, k, v = qkv = tokens(20, kv_heads=2)
    weight = {"feature_weight": normal(H, D, D, seed=4)}
    kernel = qf.Kernel("hedgehog")
    expected = qf.attend(q, k, v, qf.Causal(), kernel, tensors=weight, form="dense")
    y, state = streamed(qkv, kernel, weight, (7, 6, 7))
    assert (y - expected).abs().max() < 1e-12
    assert state.tensors["S"].shape[1] == H
    cost = qf.explain(q, k, v, qf.Causal(), kernel, tensors=weight).costs["recurrent"]
    assert cost.state == sum(state.tensors[name].numel() * 8 for name in ("S", "z"))
    assert streamed(qkv, qf.Kernel("elu1"), {}, (20,))[1].tensors["S"].shape[1] == 2
    empty = qf.init_state(qf.Causal(), kernel, batch=B, heads=H, kv_heads=2, head_dim=D, dtype=torch.float64)
    assert empty.tensors["S"].shape == (B, H, 2 * D, D)


@dataclass(frozen=True)
class Squares(FeatureMap):
    """sim(q, k) = sum_f q_f^2 k_f^2 + bias: a map of one's own."""

    bias: float = 0.5

    def features(self, head_dim: int) -> int:
        return head_dim + 1

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([x * x, torch.full_like(x[..., :1], self.bias**0.5)], -1)


@dataclass(frozen=True)
class Gauges(FeatureMap):
    """Another, with weights of the call and other features for queries than for keys."""

    def features(self, head_dim: int) -> int:
        return 5

    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("gauge", ("H", "5", "D"), "rows of a linear map"),)

    def __call__(self, x: Tensor, gauge: Tensor) -> Tensor:
        return torch.relu(x @ gauge.mT) + 0.1

    def query(self, q: Tensor, tensors: Any) -> tuple[Tensor, Tensor | None]:
        return self(-q, tensors["gauge"]), q.sum(-1)


def test_a_map_of_one_s_own_runs_in_every_form():
    qkv = tokens()
    w = (qkv[0] ** 2) @ (qkv[1] ** 2).mT + 0.25
    agree(qkv, qf.Kernel(Squares(0.25)), {}, causal(w, qkv[2]))
    assert (
        Squares() == Squares(0.5)
        and hash(Squares()) == hash(Squares(0.5))
        and str(Squares(0.25)) == "Squares(bias=0.25)"
    )
    gauge = normal(H, 5, D, seed=8)
    q, k, v = qkv
    w = (torch.relu(-q @ gauge.mT) + 0.1) @ (torch.relu(k @ gauge.mT) + 0.1).mT
    agree(qkv, qf.Kernel(Gauges()), {"gauge": gauge}, causal(w, v))
    factor = q.sum(-1, keepdim=True).exp()
    agree(qkv, qf.Kernel(Gauges(), normalise=False), {"gauge": gauge}, (factor * w).tril() @ v)


def test_a_map_of_one_s_own_is_described_once_it_is_registered(monkeypatch):
    with pytest.raises(qf.ArgumentError, match="^type: expected one of"):
        qf.from_json(qf.Kernel(Squares()).to_json())
    monkeypatch.setitem(_CLASSES, "Squares", Squares)  # what `description` does
    kernel = qf.Kernel(Squares(2.0))
    assert qf.from_json(kernel.to_json()) == kernel == qf.parse(str(kernel))


def test_a_map_must_say_what_it_computes():
    @dataclass(frozen=True)
    class Unfinished(FeatureMap):
        pass

    with pytest.raises(NotImplementedError, match="Unfinished does not define features"):
        Unfinished().features(3)
    with pytest.raises(NotImplementedError, match="Unfinished does not define __call__"):
        Unfinished()(torch.zeros(1))


def test_a_missing_tensor_is_named():
    q, k, v = tokens(3)
    with pytest.raises(qf.ArgumentError, match=r"^tensors: expected 'feature_projection' \(H, 16, D\): random rows"):
        qf.attend(q, k, v, qf.Causal(), qf.Kernel(qf.Favor(16)))
    with pytest.raises(qf.ArgumentError, match=r"^tensors\['feature_weight'\]: expected a tensor \(H=4, D=4, D=4\)"):
        qf.attend(q, k, v, qf.Causal(), qf.Kernel("hedgehog"), tensors={"feature_weight": normal(H, 3, D)})
