"""attend: the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra import Edges, Weights
from quadform.forms._call import build_call
from quadform.forms._registry import choose


def attend(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    edges: Edges,
    weights: Weights,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    lengths: Tensor | tuple[Tensor, Tensor] | None = None,
    key_mask: Tensor | None = None,
    positions: Tensor | tuple[Tensor, Tensor] | None = None,
    grid: tuple[int, ...] | None = None,
    dropout_p: float = 0.0,
    form: str = "auto",
    state: Any = None,
    return_state: bool = False,
    return_weights: bool = False,
) -> Any:
    """y_i = g_i * sum over j in E(i) of w_ij v_j, per head.

    Args:
        q: (B, H, n, D) queries of the receivers; None where neither the weights nor the edges read it.
        k: (B, Hk, m, D) keys of the senders; None likewise. H is a multiple of Hk (grouped queries).
        v: (B, Hk, m, Dv) values.
        edges: who talks to whom, such as `Causal()`.
        weights: how much, such as `Softmax()`.
        tensors: the tensors that weights and edges declare, by name; and `row_scale` (B, H, n) for g_i.
        lengths: (B,) integers, or (query lengths, key lengths): rows are padded on the right.
        key_mask: (B, m) bool, True = keep. Padding at either end equals the shorter sequence; holes remove senders.
        positions: integer positions (n,) or (B, n), or (query positions, key positions).
        grid: sizes of an n-D grid of senders, in row-major order.
        dropout_p: probability of dropping a weight (kept ones are scaled by 1 / (1 - p)).
        form: "auto", "dense", "convolution", "graph" or "recurrent".
        state: what an earlier call returned; q, k and v then continue its sequence (recurrent form).
        return_state: also return the state after this call (recurrent form).
        return_weights: also return w (B, H, n, m), 0 off the edges (dense form).

    Returns:
        y (B, H, n, Dv) in the dtype of v; (y, state) or (y, weights) where asked for. A row without edges is 0.

    Errors: ArgumentError names the argument, what was expected and what came; Refused gives a form's reason. The queries
    stand at the end of the keys (torch's `is_causal` aligns the starts). Scores are computed in float32 at least.

    Reference:

        w = torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf), -1)   # Softmax()
        y = w @ v
    """
    if return_state and return_weights:
        raise ArgumentError("return_weights", "False where return_state is True: a stream has no weight matrix", "True")
    streaming = state is not None or return_state
    call = build_call(
        q,
        k,
        v,
        edges,
        weights,
        tensors,
        lengths,
        key_mask,
        positions,
        grid,
        dropout_p=dropout_p,
        return_weights=return_weights,
        return_state=return_state,
        state=state,
    )
    y, extra = choose(call, "recurrent" if streaming and form == "auto" else form).run(call)
    if "row_scale" in call.tensors:
        y = y * call.tensors["row_scale"].to(y.dtype)[..., None]
    return (y, extra) if return_state or return_weights else y
