"""explain, the chooser and backends."""

from __future__ import annotations

import json

import pytest
import torch

import quadform as qf


def meta(n: int, heads: int = 8, dim: int = 64) -> torch.Tensor:
    return torch.empty(1, heads, n, dim, device="meta")


def test_a_refusal_or_a_cost_for_every_form():
    found = qf.explain(meta(2048), meta(2048), meta(2048), qf.Causal(), qf.Softmax())
    assert (
        set(found.costs) | set(found.refusals) == set(qf.backends()) == {"dense", "convolution", "graph", "recurrent"}
    )
    assert "not translation-invariant" in found.refusals["convolution"]
    assert found.costs["dense"].flops == 8 * 2048**2 * 4 * 64 / 2
    assert found.chosen == "dense"
    assert json.loads(json.dumps(found.to_dict()))["chosen"] == "dense"
    assert "refuses: its weights" in str(found) and "* dense" in str(found)


@pytest.mark.parametrize(("edges", "weights", "n", "chosen"), [
    (qf.Window(63), qf.Softmax(), 8192, "convolution"),
    (qf.Causal(), qf.Softmax(), 256, "dense"),
    (qf.All(), qf.Softmax(), 8192, "dense"),
    (qf.Causal(), qf.Kernel("elu1"), 16384, "recurrent"),
])  # fmt: skip
def test_auto_takes_the_form_that_scales(edges, weights, n, chosen):
    assert qf.explain(meta(n), meta(n), meta(n), edges, weights).chosen == chosen


def test_auto_takes_the_graph_form_for_a_sparse_graph():
    n = 4096
    graph = qf.Graph(torch.randint(0, n, (2, 4 * n)), n)
    assert qf.explain(meta(n), meta(n), meta(n), graph, qf.Softmax()).chosen == "graph"


def test_auto_computes_what_it_explains():
    q, k, v = (torch.randn(1, 2, 300, 8, dtype=torch.float64) for _ in range(3))
    for edges, weights in ((qf.Window(20), qf.Softmax()), (qf.Causal(), qf.Kernel()), (qf.All(), qf.Softmax())):
        expected = qf.attend(q, k, v, edges, weights, form="dense")
        assert (qf.attend(q, k, v, edges, weights) - expected).abs().max() < 1e-12


def test_a_named_form_computes_or_refuses():
    q = torch.randn(1, 1, 4, 2)
    with pytest.raises(qf.Refused, match=r"^form='convolution' does not compute Softmax\(\) on Causal\(\): "):
        qf.attend(q, q, q, qf.Causal(), qf.Softmax(), form="convolution")
    with pytest.raises(qf.ArgumentError, match="^form: expected 'auto' or one of 'dense'"):
        qf.attend(q, q, q, qf.Causal(), qf.Softmax(), form="fast")


def test_sdpa_says_that_it_has_no_second_derivative_and_the_graph_form_has_one():
    q = torch.randn(1, 1, 4, 2, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(
        qf.attend(q, q, q, qf.Causal(), qf.Softmax(), form="dense").sum(), q, create_graph=True
    )
    with pytest.raises(RuntimeError, match="derivative for .* is not implemented"):
        torch.autograd.grad(first.sum(), q)
    assert torch.autograd.gradgradcheck(lambda x: qf.attend(x, x, x, qf.Causal(), qf.Softmax(), form="graph"), q)
