"""The dense form: every pair, as a matrix. The oracle of the other forms, and SDPA wherever that is exact."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import All, Causal, Pairs, Softmax, Via
from quadform.forms._call import Call
from quadform.forms._evaluate import additive_mask, evaluate, is_plain
from quadform.forms._form import Cost, score_width
from quadform.forms._normalise import pair_weights
from quadform.forms._via import via


class Dense:
    """y = W v with W (B, H, n, m) in memory, or fused by `scaled_dot_product_attention`."""

    name = "dense"

    def refusal(self, call: Call) -> str | None:
        if call.state is not None or call.return_state:
            return "the dense form keeps no state; ask for form='recurrent'"
        if isinstance(call.weights, Via) and (call.return_weights or call.dropout_p):
            return "two hops have no single weight matrix to return or to drop from"
        return None

    def cost(self, call: Call) -> Cost:
        n, m = call.layout.queries, call.layout.keys
        nodes = call.weights.nodes if isinstance(call.weights, Via) else None
        pairs = call.v.shape[0] * call.heads * (n * m if nodes is None else nodes * (n + m))
        size = call.v.element_size()
        flops = pairs * 2.0 * (score_width(call) + call.v.shape[-1])
        if fusable(call):
            fraction = 0.5 if call.edges == Causal() and n == m else 1.0
            moved = size * (call.v.numel() * 2 + 2 * call.v.shape[0] * call.heads * n * call.v.shape[-1])
            mask = 0 if fraction < 1 or call.edges == All() else n * m
            return Cost(flops * fraction, moved + mask, efficiency=1.0 if not mask else 0.7)
        return Cost(flops, pairs * size * 8.0, steps=8)

    def run(self, call: Call) -> tuple[Tensor, Any]:
        call = call.resolved()
        if fusable(call):
            return fused(call), None
        operands = call.operands()
        if isinstance(call.weights, Via):
            return via(operands, call.weights, evaluate).to(call.v.dtype), None
        view = call.edges.view(call.layout, call.weights.per_edge)
        w = pair_weights(call.weights, view, call.weights.prepare(operands))
        w = w.expand(call.v.shape[0], call.heads, *w.shape[2:])
        dropped = F.dropout(w, call.dropout_p) if call.dropout_p else w
        y = view.combine(dropped, operands.v).to(call.v.dtype)
        return y, view.matrix(dropped, call.layout.keys).to(call.v.dtype) if call.return_weights else None


def fusable(call: Call) -> bool:
    """Whether SDPA computes exactly this: softmax of q'k alone over a set of pairs, each counted once."""
    contents = call.q is not None and call.k is not None
    return is_plain(call.weights) and contents and not call.edges.by_slots and not call.return_weights


def fused(call: Call) -> Tensor:
    """Softmax attention by SDPA, which gives 0 to a row without edges."""
    assert call.q is not None and call.k is not None and isinstance(call.weights, Softmax)
    at = call.layout
    q, k, v = call.q, call.k, call.v
    if call.groups > 1:
        k, v = (x.repeat_interleave(call.groups, 1) for x in (k, v))
    causal = call.edges == Causal() and at.shift == 0 and not at.padded and at.queries == at.keys
    mask: Tensor | None = None
    if not causal and (call.edges != All() or at.k_valid is not None):
        view = call.edges.view(at)
        assert isinstance(view, Pairs)
        mask = additive_mask(view, q.dtype)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=call.dropout_p, is_causal=causal, scale=call.weights.scale
    )
