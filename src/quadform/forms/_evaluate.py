"""One view to one output, fused where SDPA computes exactly that."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import All, Edges, Operands, Pairs, Slots, Softmax, Weights
from quadform.forms._normalise import pair_weights


def is_plain(weights: Weights) -> bool:
    """Softmax of q'k and nothing else, which SDPA computes."""
    return isinstance(weights, Softmax) and weights.content and weights.bias is None and weights.softcap is None


def aggregate(weights: Weights, view: Pairs | Slots, prepared: Operands) -> Tensor:
    """sum_j w_ij v_j of prepared operands on a view that holds all senders of its receivers: (B, H, n, Dv)."""
    if is_plain(weights) and isinstance(view, Pairs):
        return _sdpa(prepared, additive_mask(view, prepared.v.dtype))
    return view.combine(pair_weights(weights, view, prepared), prepared.v)


def evaluate(operands: Operands, edges: Edges, weights: Weights) -> Tensor:
    """y of operands that already have H heads and the compute dtype."""
    prepared = weights.prepare(operands)
    if is_plain(weights) and edges == All() and operands.layout.k_valid is None:
        return _sdpa(prepared, None)
    return aggregate(weights, edges.view(operands.layout, weights.per_edge), prepared)


def additive_mask(view: Pairs, dtype: torch.dtype) -> Tensor:
    """The edges as a bool mask, or as log-counts where an edge counts more than once."""
    if view.count.dtype == torch.bool:
        return view.count
    return view.count.to(torch.promote_types(dtype, torch.float32)).log().to(dtype)


def _sdpa(prepared: Operands, mask: Tensor | None) -> Tensor:
    q, k = prepared.require("q"), prepared.require("k")
    return F.scaled_dot_product_attention(q, k, prepared.v, attn_mask=mask, scale=1.0)
