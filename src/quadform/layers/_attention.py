"""The layer of every mixer: projections around the operator, at once or as a recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadform._errors import ArgumentError
from quadform.algebra import All, Edges, Softmax, Weights, rotary
from quadform.forms import States
from quadform.layers._head_group import HeadGroup
from quadform.layers._positions import positions_of

Group = tuple[Sequence[int], Edges, Weights]


class Attention(nn.Module):
    """(B, N, E) -> (B, N, E):  y = W_o [y_1 ... y_H],  y_h = the mixer of W_q x, W_k x and W_v x of head h.

    Any mixer of quadform, causal or not; a causal one is a recurrent network as well:

        state = layer.init_state(batch)
        y, state = layer.prefill(x[:, :100], state)     # any number of tokens
        y, state = layer.step(x[:, 100], state)         # one token, (B, E)

    Args:
        embed_dim: E.
        num_heads: H, query heads.
        edges: who talks to whom; All() unless given.
        weights: how much; Softmax() unless given. The layer owns the tensors that they declare: parameters, and as buffers of
            the state_dict what is drawn from `seed` or fixed. What has a value for each token, such as log-gates, is a
            linear map of the token.
        groups: in the place of edges and weights where heads differ: (key-value heads, edges, weights) for each group.
        num_kv_heads: key-value heads, a divisor of H; H unless given.
        head_dim, value_dim: of a head's queries and keys, and of its values; E / H and head_dim unless given.
        context_dim: of the senders of cross-attention; E unless given.
        bias: whether the projections have one.
        rotary_base: rotary positions with that base (10000, say) on queries and keys; None for none.
        normalise_qk: whether each head's queries and keys are divided by their root mean square, with learned gains.
        max_length: the longest sequence, for weights with a column for each position (Linformer).
        seed: of the buffers that are drawn, see `redraw`.

    Shapes: x (B, N, E). `lengths` (B,) counts the tokens that exist (padding on the right); `key_mask` (B, N) is True where
    a token is kept (padding on either side, or holes). With `context` (B, M, context_dim) they describe its rows.

    Errors: ArgumentError for sizes that do not fit; Refused where no form computes the mixer, or where it keeps no state.
    Source: Vaswani et al. 2017; Ainslie et al. 2023 for grouped queries; Katharopoulos et al. 2020 for the recurrence.

    Reference:

        q, k, v = (linear(x).unflatten(-1, (H, D)).transpose(1, 2) for linear in (layer.query, layer.key, layer.value))
        y = attend(q, k, v, edges, weights)
        y = layer.out(y.transpose(1, 2).flatten(2))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        edges: Edges | None = None,
        weights: Weights | None = None,
        *,
        groups: Sequence[Group] | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        context_dim: int | None = None,
        bias: bool = True,
        rotary_base: float | None = None,
        normalise_qk: bool = False,
        max_length: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        head_dim = _head_dim(embed_dim, num_heads, kv_heads, head_dim)
        value_dim = head_dim if value_dim is None else value_dim
        context_dim = embed_dim if context_dim is None else context_dim
        for name, value in (("value_dim", value_dim), ("context_dim", context_dim)):
            _check_size(name, value)
        if rotary_base is not None and head_dim % 2:
            raise ArgumentError("head_dim", "an even number where there are rotary positions", head_dim)
        if groups is not None and (edges is not None or weights is not None):
            raise ArgumentError("groups", "None where edges or weights are given", groups)
        plan = [(range(kv_heads), edges or All(), weights or Softmax())] if groups is None else list(groups)
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv_heads
        self.head_dim, self.value_dim, self.rotary_base = head_dim, value_dim, rotary_base
        share = num_heads // kv_heads
        self.groups = nn.ModuleList(
            HeadGroup(embed_dim, context_dim, tuple(heads), share, head_dim, own_edges, own_weights, max_length, seed)
            for heads, own_edges, own_weights in plan
        )
        taken = [head for group in self._all() for head in group.kv_heads]
        if sorted(taken) != list(range(kv_heads)):
            raise ArgumentError("groups", f"each of the {kv_heads} key-value heads once", str(taken))
        self._back = None if taken == list(range(kv_heads)) else _inverse(taken, share)
        content = share > 1 or any(group.content for group in self._all())
        self.query = nn.Linear(embed_dim, num_heads * head_dim, bias=bias) if content else None
        self.key = nn.Linear(context_dim, kv_heads * head_dim, bias=bias) if content else None
        self.value = nn.Linear(context_dim, kv_heads * value_dim, bias=bias)
        self.out = nn.Linear(num_heads * value_dim, embed_dim, bias=bias)
        normalised = content and normalise_qk
        self.query_norm = nn.RMSNorm(head_dim) if normalised else None
        self.key_norm = nn.RMSNorm(head_dim) if normalised else None

    def _all(self) -> list[HeadGroup]:
        return [group for group in self.groups if isinstance(group, HeadGroup)]

    def redraw(self, seed: int) -> None:
        """Draws the seeded buffers anew (FAVOR+'s projection, LSH rotations); the same seed gives the same ones.

        States of before belong to the old buffers: begin new streams.
        """
        for group in self._all():
            group.declared.redraw(seed)

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        context: Tensor | None = None,
        state: States | None = None,
        return_state: bool = False,
        form: str = "auto",
    ) -> Tensor | tuple[Tensor, States]:
        """y (B, N, E), or (y, state) where asked for.

        Args:
            x: (B, N, E) tokens; with a state, those that continue its sequence.
            lengths, key_mask: which of the senders exist.
            positions: (N,) or (B, N) integers in the place of 0, 1, 2, ...; not with a state, which counts them itself.
            context: (B, M, context_dim) senders of cross-attention. A kernel on All() reduces them to its state, and later
                calls pass none.
            state: what an earlier call returned; it is not changed.
            form: as in `attend`.
        """
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            raise ArgumentError("x", f"a tensor (B, N, {self.embed_dim})", str(tuple(x.shape)))
        if state is not None and (not isinstance(state, States) or len(state.parts) != len(self.groups)):
            raise ArgumentError(
                "state", f"the states of {len(self.groups)} head groups, as this layer returns", type(state).__name__
            )
        senders = self._senders(x, context, state)
        q, k = self._content(x, senders, positions, lengths, key_mask, state)
        v = _heads(self.value(senders), self.num_kv_heads)
        call: dict[str, Any] = {"lengths": lengths, "key_mask": key_mask, "positions": positions, "form": form}
        if context is not None and lengths is not None:
            call["lengths"] = (torch.full_like(lengths, x.shape[1]), lengths)
        parts, states = [], []
        for i, group in enumerate(self._all()):
            before = None if state is None else state.parts[i]
            y, after = group(x, senders, q, k, v, state=before, return_state=return_state, **call)
            parts.append(y)
            states.append(after)
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        y = y if self._back is None else y[:, self._back]
        y = self.combine(y, x)
        return (y, States(tuple(states))) if return_state else y

    def combine(self, y: Tensor, x: Tensor) -> Tensor:
        """The outputs of the heads (B, H, N, Dv) as tokens (B, N, E)."""
        return self.out(y.transpose(1, 2).flatten(2))

    def init_state(self, batch: int) -> States:
        """The state of a stream that has seen nothing, on the device and in the dtype of the parameters.

        Errors: Refused where the mixer does not stream.
        """
        weight = self.value.weight
        empty = weight.new_empty(batch, 0, self.embed_dim)
        context = (
            None if self.value.in_features == self.embed_dim else weight.new_empty(batch, 0, self.value.in_features)
        )
        with torch.no_grad():
            return self.prefill(empty, context=context)[1]

    def prefill(
        self,
        x: Tensor,
        state: States | None = None,
        *,
        lengths: Tensor | None = None,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> tuple[Tensor, States]:
        """(y (B, n, E), state) of n tokens that continue a stream; without a state they begin one."""
        out = self(x, lengths=lengths, key_mask=key_mask, context=context, state=state, return_state=True)
        assert isinstance(out, tuple)
        return out

    def step(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        """(y (B, E), state) of one more token x (B, E): the layer as the cell of a recurrent network."""
        if x.dim() != 2:
            raise ArgumentError("x", f"one token of each row, (B, {self.embed_dim})", str(tuple(x.shape)))
        y, after = self.prefill(x[:, None], state)
        return y[:, 0], after

    def _senders(self, x: Tensor, context: Tensor | None, state: States | None) -> Tensor:
        if context is not None:
            if context.dim() != 3 or context.shape[-1] != self.value.in_features:
                raise ArgumentError("context", f"a tensor (B, M, {self.value.in_features})", str(tuple(context.shape)))
            return context
        if state is not None and all(group.edges == All() for group in self._all()):
            return x.new_empty(x.shape[0], 0, self.value.in_features)
        return x

    def _content(
        self,
        x: Tensor,
        senders: Tensor,
        positions: Tensor | None,
        lengths: Tensor | None,
        key_mask: Tensor | None,
        state: States | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        if self.query is None or self.key is None:
            return None, None
        q, k = _heads(self.query(x), self.num_heads), _heads(self.key(senders), self.num_kv_heads)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = _normed(self.query_norm, q), _normed(self.key_norm, k)
        if self.rotary_base is None:
            return q, k
        if senders is not x:
            raise ArgumentError("context", "None where there are rotary positions", str(tuple(senders.shape)))
        if positions is None:
            before = None if state is None else state.length
            positions = positions_of(x, lengths, key_mask, before)
        return rotary(q, positions, base=self.rotary_base), rotary(k, positions, base=self.rotary_base)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"


def _heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, H D) -> (B, H, N, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """In the dtype of the norm's gains, which under autocast is not that of x."""
    return norm(x.to(norm.weight.dtype)).to(x.dtype)


def _check_size(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(name, "an integer of at least 1", repr(value))


def _head_dim(embed_dim: int, num_heads: int, kv_heads: int, head_dim: int | None) -> int:
    for name, value in (("embed_dim", embed_dim), ("num_heads", num_heads), ("num_kv_heads", kv_heads)):
        _check_size(name, value)
    if num_heads % kv_heads:
        raise ArgumentError("num_kv_heads", f"a divisor of the {num_heads} heads", kv_heads)
    if head_dim is None and embed_dim % num_heads:
        raise ArgumentError("head_dim", f"a size, since {embed_dim} is no multiple of {num_heads} heads", "None")
    head_dim = embed_dim // num_heads if head_dim is None else head_dim
    _check_size("head_dim", head_dim)
    return head_dim


def _inverse(kv_heads: list[int], share: int) -> list[int]:
    """Where each query head stands among those of all groups."""
    order = [head * share + g for head in kv_heads for g in range(share)]
    return sorted(range(len(order)), key=order.__getitem__)
