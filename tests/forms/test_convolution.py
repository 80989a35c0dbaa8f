"""The convolution form against the dense oracle and against torch's own convolutions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quadform as qf
from quadform.algebra import Stencil

BORDERS = ("zeros", "renormalise", "replicate", "circular", "reflect")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def worst_difference(edges, weights, *, n, tensors=None, q_heads=2, heads=2, queries=None, **call) -> float:
    """Largest difference to form="dense" in the output and in every gradient."""
    q = normal(2, q_heads, queries or n, 3) if weights.reads or queries else None
    k = normal(2, heads, n, 3) if weights.reads else None
    v = normal(2, heads, n, 4)
    tensors = {name: x.double().requires_grad_() for name, x in (tensors or {}).items()}
    inputs = [x for x in (q, k, v, *tensors.values()) if x is not None]
    outputs = [
        qf.attend(q, k, v, edges, weights, tensors=tensors, form=form, **call) for form in ("dense", "convolution")
    ]
    gradient = torch.randn_like(outputs[0])
    results = [
        [y, *torch.autograd.grad(y, inputs, gradient, allow_unused=True, materialize_grads=True)] for y in outputs
    ]
    pairs = zip(*results, strict=True)
    return max((float((a - b).detach().abs().max()) for a, b in pairs if a.numel()), default=0.0)


def masks(n: int):
    """No padding, padding on either side, holes, a row without keys, and lengths."""
    sides = torch.ones(2, n, dtype=torch.bool)
    sides[0, : min(3, n)] = False
    sides[1, max(n - 2, 0) :] = False
    holes = sides.clone()
    holes[:, n // 2] = False
    empty = sides.clone()
    empty[0] = False
    lengths = torch.tensor([max(n - 4, 0), n])
    return [{}, {"key_mask": sides}, {"key_mask": holes}, {"key_mask": empty}, {"lengths": lengths}]


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize(("kernel", "stride", "dilation", "padding"), [
    (3, 1, 1, "same"), (4, 1, 2, "same"), (3, 2, 1, "same"), (3, 1, 1, "causal"), (2, 3, 1, (2, 0)), (5, 1, 1, 7),
])  # fmt: skip
@pytest.mark.parametrize("n", [1, 2, 13])
def test_taps_on_a_stencil_agree_with_dense(border, kernel, stride, dilation, padding, n):
    edges = qf.Stencil(kernel, stride, dilation, padding, border)
    count = edges.count_queries(n, None)
    for call in masks(n):
        assert worst_difference(edges, qf.Taps(), n=n, tensors={"taps": torch.randn(2, kernel)}, **call) < 1e-12
        logits = torch.randn(2, 2, count, kernel) * 3
        assert worst_difference(edges, qf.Dynamic(), n=n, tensors={"logits": logits}, **call) < 1e-12
        for aggregate in ("mean", "sum"):
            assert worst_difference(edges, qf.Uniform(aggregate), n=n, **call) < 1e-12
        if stride == 1:
            table = qf.Softmax(content=False, bias=qf.Table(9, 9))
            assert worst_difference(edges, table, n=n, tensors={"table": torch.randn(2, 19) * 9}, **call) < 1e-11
        if (back := edges.count_senders(n, None)) > 0:
            taps = {"taps": torch.randn(2, kernel)}
            assert worst_difference(edges.T, qf.Taps(), n=n, tensors=taps, queries=back, **call) < 1e-12


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("grid", [(3, 4), (2, 3, 4), (4, 1)])
def test_stencils_on_grids_agree_with_dense(border, grid):
    g, n = len(grid), math.prod(grid)
    edges = qf.Stencil((3, 2, 2)[:g], (1, 2, 1)[:g], (1, 1, 2)[:g], "same", border)
    gaussian = qf.Softmax(content=False, bias=qf.Quadratic())
    for call in ({}, {"key_mask": torch.rand(2, n) > 0.3}):
        taps = {"taps": torch.randn(2, edges.taps)}
        assert worst_difference(edges, qf.Taps(), n=n, tensors=taps, grid=grid, **call) < 1e-12
        logits = {"logits": torch.randn(2, 2, edges.count_queries(n, grid), edges.taps)}
        assert worst_difference(edges, qf.Dynamic(), n=n, tensors=logits, grid=grid, **call) < 1e-12
        peak = {"centre": torch.randn(2, g), "alpha": torch.tensor([0.5, 50.0])}
        near = qf.Stencil((3, 2, 2)[:g], border=border)
        assert worst_difference(near, gaussian, n=n, tensors=peak, grid=grid, **call) < 1e-11
        assert worst_difference(qf.All(), gaussian, n=n, tensors=peak, grid=grid, **call) < 1e-11


@pytest.mark.parametrize("edges", [
    qf.All(), qf.Causal(), qf.Window(3, 2), qf.Window(2, 1, 2),
    qf.Window(3, 3) & qf.Causal(), qf.Window(1) | qf.Window(4, 4, 2),
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("bias", "tensors"), [
    (qf.Table(4, 3), {"table": torch.linspace(-9, 9, 16).view(2, 8)}),
    (qf.Quadratic(), {"centre": torch.tensor([[4.0], [-3.5]]), "alpha": torch.tensor([0.5, 90.0])}),
    (qf.Alibi(), {"slopes": torch.tensor([0.1, 2.0])}),
    (qf.T5Buckets(8, 10), {"table": torch.linspace(-2, 2, 16).view(2, 8)}),
], ids=["table", "peaked", "alibi", "t5"])  # fmt: skip
def test_position_only_weights_are_a_normalised_convolution(edges, bias, tensors):
    weights = qf.Softmax(content=False, bias=bias)
    for call in masks(13):
        assert worst_difference(edges, weights, n=13, tensors=tensors, **call) < 1e-11
    assert worst_difference(edges, weights, n=13, queries=5, tensors=tensors) < 1e-11
    assert worst_difference(edges, weights, n=5, queries=13, tensors=tensors) < 1e-11


@pytest.mark.parametrize("edges", [
    qf.Window(3), qf.Window(70, 9), qf.Window(3, 2, sinks=2), qf.Window(2, 1, 2) | qf.Global(first=1, last=1, indices=(4,)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("weights", [
    qf.Softmax(), qf.Softmax(softcap=2.0), qf.Similarity("cauchy"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("n", [0, 1, 7, 200])
def test_windows_agree_with_dense(edges, weights, n):
    for call in masks(n) if n else [{}]:
        assert worst_difference(edges, weights, n=n, q_heads=4, **call) < 1e-12


def test_windows_with_fewer_queries_than_keys_stand_at_the_end():
    assert worst_difference(qf.Window(10, 3, sinks=2), qf.Softmax(), n=300, queries=20) < 1e-12
    bias = {"bias": torch.randn(1, 2, 20, 300)}
    assert worst_difference(qf.Window(10, 3), qf.Softmax(bias=qf.PairBias()), n=300, queries=20, tensors=bias) < 1e-12


@pytest.mark.parametrize("nodes", [1, 3, 20])
def test_pooling_agrees_with_dense(nodes):
    for call in masks(13):
        assert worst_difference(qf.All(), qf.Via(nodes, qf.Uniform("mean"), qf.Softmax()), n=13, **call) < 1e-12


@pytest.mark.parametrize(("border", "mode"), [("zeros", "constant"), *((b, b) for b in BORDERS[2:])])
def test_taps_equal_torch(border, mode):
    v, taps = torch.randn(2, 3, 11, 5, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    y = qf.attend(
        None, None, v, Stencil(4, 2, 2, (3, 2), border), qf.Taps(), tensors={"taps": taps}, form="convolution"
    )
    channels = v.movedim(3, 1).reshape(10, 3, 11)
    expected = F.conv1d(F.pad(channels, (3, 2), mode=mode), taps[:, None], stride=2, dilation=2, groups=3)
    assert torch.equal(y, expected.reshape(2, 5, 3, -1).movedim(1, 3))


@pytest.mark.parametrize("weights", [qf.Softmax(), qf.Similarity("polynomial")], ids=str)
@pytest.mark.parametrize("sinks", [0, 1])
def test_window_has_second_derivatives(weights, sinks):
    q, k, v = (normal(1, 1, 9, 2) for _ in range(3))

    def window(*x: Any) -> Any:
        return qf.attend(*x, qf.Window(2, 1, sinks=sinks), weights, form="convolution")

    assert torch.autograd.gradcheck(window, (q, k, v))
    assert torch.autograd.gradgradcheck(window, (q, k, v))


def test_a_window_makes_nothing_of_size_n_squared():
    n = 4096
    q = torch.randn(1, 1, n, 4, requires_grad=True)
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.untyped_storage().nbytes() // out.element_size())
            return out

    with Largest():
        qf.attend(q, q, q, qf.Window(63, sinks=4), qf.Softmax(), form="convolution").sum().backward()
    assert largest <= n * 4 * 16
