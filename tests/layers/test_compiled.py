"""The step of a layer under torch.compile: one graph, compiled once."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.eval_frame import is_dynamo_supported

import quadform as qf

LAYERS = {
    "gated kernel": lambda: qf.LinearAttention(8, 4, decay="scalar", num_kv_heads=2),
    "FAVOR+": lambda: qf.LinearAttention(8, 4, qf.Favor(5)),
    "ring, rotary positions": lambda: qf.Attention(8, 4, qf.Window(6), rotary_base=100.0, normalise_qk=True),
    "ring, sinks": lambda: qf.Attention(8, 4, qf.Window(6, sinks=2)),
    "hybrid": lambda: qf.Attention(8, 4, qf.Causal(), qf.Hybrid(qf.Window(6), qf.Kernel("elu1"))),
}


@pytest.mark.skipif(not is_dynamo_supported(), reason="torch.compile does not run here")
@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_step_is_one_graph_that_is_compiled_once(name):
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = LAYERS[name]().double()
    compiled = torch.compile(layer.step, fullgraph=True, backend="eager")
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        _, state = layer.prefill(torch.randn(2, 20, 8, dtype=torch.float64))
        plain = state
        for _ in range(50):
            x = torch.randn(2, 8, dtype=torch.float64)
            y, state = compiled(x, state)
            expected, plain = layer.step(x, plain)
            assert (y - expected).abs().max() < 1e-12
    torch._dynamo.reset()
