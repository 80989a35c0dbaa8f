"""Some key-value heads of a layer and the mixer that they share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quadform._errors import ArgumentError
from quadform.algebra import Edges, Weights
from quadform.forms import State, attend, prefill
from quadform.layers._declared import Declared


class HeadGroup(nn.Module):
    """The operator on the key-value heads `kv_heads` and the `share` query heads of each.

    Attributes:
        declared: the tensors of the mixer.
        content: whether the mixer reads queries and keys.
    """

    def __init__(
        self,
        embed_dim: int,
        context_dim: int,
        kv_heads: tuple[int, ...],
        share: int,
        head_dim: int,
        edges: Edges,
        weights: Weights,
        max_length: int | None,
        seed: int,
    ) -> None:
        super().__init__()
        if not isinstance(edges, Edges):
            raise ArgumentError("edges", "edges such as Causal()", repr(edges)[:80])
        if not isinstance(weights, Weights):
            raise ArgumentError("weights", "weights such as Softmax()", repr(weights)[:80])
        self.kv_heads, self.edges, self.weights = kv_heads, edges, weights
        self.content = bool(weights.reads) or edges.content
        self.declared = Declared(
            embed_dim, context_dim, len(kv_heads) * share, head_dim, edges, weights, max_length, seed
        )
        self._query_heads = [head * share + g for head in kv_heads for g in range(share)]
        self._kv_heads = list(kv_heads)
        self._share = share

    def forward(
        self,
        x: Tensor,
        senders: Tensor,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor,
        *,
        state: State | None,
        return_state: bool,
        **call: Any,
    ) -> tuple[Tensor, State | None]:
        """(y (B, heads of the group, N, Dv), state or None) of all heads' q, k and v."""
        keys = v.shape[1]
        if not self.content and self._share == 1:
            q = k = None
        if len(self._kv_heads) != keys or self._kv_heads != list(range(keys)):
            q = None if q is None else q[:, self._query_heads]
            k = None if k is None else k[:, self._kv_heads]
            v = v[:, self._kv_heads]
        tensors = self.declared(x, senders)
        if not torch.is_autocast_enabled(v.device.type):
            return self._mix(q, k, v, tensors, state, return_state, call)
        with torch.autocast(v.device.type, enabled=False):  # the operator chooses its own precision
            q, k = (None if content is None else content.to(v.dtype) for content in (q, k))
            return self._mix(q, k, v, tensors, state, return_state, call)

    def _mix(
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor,
        tensors: dict[str, Tensor],
        state: State | None,
        return_state: bool,
        call: dict[str, Any],
    ) -> tuple[Tensor, State | None]:
        if return_state and call["form"] in ("auto", "recurrent"):
            call.pop("form")
            return prefill(q, k, v, self.edges, self.weights, tensors=tensors, state=state, **call)
        out = attend(q, k, v, self.edges, self.weights, tensors=tensors, state=state, return_state=return_state, **call)
        return out if return_state else (out, None)

    def extra_repr(self) -> str:
        return f"heads {self._kv_heads}: {self.weights} on {self.edges}"
