"""The graph form: its two products, and what message passing promises beyond the laws."""

from __future__ import annotations

import pytest
import torch

import quadform as qf
from quadform.forms.graph._products import Structure, sddmm, spmm


def structure(edges: int, queries: int = 5, keys: int = 6) -> Structure:
    return Structure(torch.randint(0, queries, (edges,)), torch.randint(0, keys, (edges,)), queries, keys)


@pytest.mark.parametrize("edges", [0, 1, 17, 60])
def test_products_equal_their_definition_and_have_two_derivatives(edges):
    s = structure(edges)
    a, b, v = (torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 6, 6))
    w = torch.randn(2, 3, edges, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(sddmm(s, a, b), (a[:, :, s.receiver] * b[:, :, s.sender]).sum(-1))
    expected = torch.zeros(2, 3, 5, 4, dtype=torch.float64).index_add(2, s.receiver, w[..., None] * v[:, :, s.sender])
    assert torch.allclose(spmm(s, w, v), expected)
    if edges == 17:
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(lambda *x: sddmm(s, *x), (a, b)) and check(lambda *x: spmm(s, *x), (w, v))


def attention(graph: qf.Graph, heads: int = 8, dim: int = 32) -> tuple[torch.Tensor, list[torch.Tensor]]:
    n = graph.sizes[0]
    generator = torch.Generator().manual_seed(0)
    qkv = [torch.randn(1, heads, n, dim, generator=generator, requires_grad=True) for _ in range(3)]
    y = qf.attend(*qkv, graph, qf.Softmax(), form="graph")
    return y, list(torch.autograd.grad(y.square().sum(), qkv))


def test_the_same_bits_twice():
    graph = qf.Graph(torch.randint(0, 200, (2, 3000)), 200)
    first, second = attention(graph), attention(graph)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_nothing_of_size_edges_times_dim():
    edges, heads, dim = 20000, 8, 32
    graph = qf.Graph(torch.randint(0, 200, (2, edges)), 200)
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.layout == torch.strided:
                largest = max(largest, out.numel())
            return out

    with Largest():
        attention(graph, heads, dim)
    assert largest <= 2 * heads * edges < edges * heads * dim


def test_duplicates_count_and_empty_rows_are_zero():
    graph = qf.Graph([[0, 0, 1, 3], [2, 2, 2, 0]], 4)
    q, k, v = (torch.randn(1, 1, 4, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    y = qf.attend(q, k, v, graph, qf.Softmax(), form="graph")
    e = torch.exp((q[0, 0, 2] * k[0, 0]).sum(-1) * 2**-0.5)
    assert torch.allclose(y[0, 0, 2], (2 * e[0] * v[0, 0, 0] + e[1] * v[0, 0, 1]) / (2 * e[0] + e[1]))
    assert torch.equal(y[0, 0, 0], v[0, 0, 3])
    assert y[0, 0, 1].abs().sum() == y[0, 0, 3].abs().sum() == 0
    (grad,) = torch.autograd.grad(y.sum(), q)
    assert grad[0, 0, 1].abs().sum() == 0 and grad.isfinite().all()


def test_scores_of_minus_infinity_give_zero():
    graph = qf.Graph([[0, 1], [1, 1]], 2)
    v = torch.randn(1, 1, 2, 3, requires_grad=True)
    bias = torch.full((1, 1, 2), -torch.inf)
    y = qf.attend(v, v, v, graph, qf.Softmax(bias=qf.EdgeBias()), tensors={"bias": bias}, form="graph")
    assert y.abs().sum() == 0
    assert torch.autograd.grad(y.sum(), v)[0].abs().sum() == 0


def test_bipartite_graphs_and_edge_biases_with_gradient():
    graph = qf.Graph(torch.stack([torch.randint(0, 7, (30,)), torch.randint(0, 4, (30,))]), (7, 4))
    q = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, 7, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias = torch.randn(1, 2, 30, dtype=torch.float64, requires_grad=True)
    inputs = (q, k, v, bias)

    def run(form: str) -> list[torch.Tensor]:
        y = qf.attend(q, k, v, graph, qf.Softmax(bias=qf.EdgeBias()), tensors={"bias": bias}, form=form)
        return [y, *torch.autograd.grad(y.square().sum(), inputs)]

    for a, b in zip(run("graph"), run("dense"), strict=True):
        assert (a - b).abs().max() < 1e-12
