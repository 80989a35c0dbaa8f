"""What does not stream, and why."""

from __future__ import annotations

from quadform.algebra import (
    All,
    And,
    Causal,
    Edges,
    Global,
    Graph,
    Hybrid,
    Kernel,
    Or,
    TopK,
    Transposed,
    Uniform,
    Via,
    Weights,
    Window,
)
from quadform.forms._call import Call


def refusal(call: Call) -> str | None:
    """Why the recurrent form does not compute a call; None where it does."""
    edges, weights = call.edges, call.weights
    streaming = call.state is not None or call.return_state
    if call.return_weights or call.dropout_p:
        return "the weights of single pairs are not kept here, so they can be neither returned nor dropped"
    if call.given_positions:
        return "the state counts positions itself, so they cannot be given"
    if isinstance(weights, Via):
        return (
            "a causal projection is ill-defined: each extra node already mixes the whole sequence, its future included"
        )
    for part in parts(edges):
        if isinstance(part, TopK):
            return "the k best senders of the whole sequence are known only at its end"
        if isinstance(part, Graph):
            return "the nodes of a graph have no order to walk along"
    if len(call.layout.grid) > 1:
        return f"a stream has one dimension, and the grid has {len(call.layout.grid)}"
    if edges == All() and isinstance(weights, Kernel | Hybrid):
        return _everything(call, weights, streaming)
    if not edges.is_causal:
        return f"{edges} is not causal: a receiver would need senders that come after it"
    if isinstance(weights, Uniform) and weights.aggregate == "symmetric":
        return "the degree of a sender counts receivers that come after it"
    if isinstance(weights, Hybrid):
        if edges != Causal():
            return f"the sums of the far part reach all of the past, and {edges} does not"
        return _hybrid(weights) or (_near_stream(weights) if streaming else None)
    return _stream(edges, weights) if streaming else None


def parts(edges: Edges) -> list[Edges]:
    """The edge sets that `&`, `|` and `.T` combine."""
    if isinstance(edges, And | Or):
        return parts(edges.left) + parts(edges.right)
    return parts(edges.inner) if isinstance(edges, Transposed) else [edges]


def _everything(call: Call, weights: Weights, streaming: bool) -> str | None:
    if isinstance(weights, Hybrid):
        if streaming:
            return "every query reads every key, so no state can be carried on before the last key has come"
        return _hybrid(weights)
    if call.state is not None and call.layout.keys:
        return (
            "every query reads every key, so the answers already given would have needed the new keys: "
            "a state on All() is read by further queries alone"
        )
    return None


def _hybrid(weights: Hybrid) -> str | None:
    for part in parts(weights.near):
        if isinstance(part, Window) and part.dilation > 1:
            return "a dilated near window leaves gaps, whose keys a ring cannot pass on to the far sums in order"
    left, right = weights.near.band
    if left is None or right is None:
        return f"the near edges {weights.near} are not a bounded window"
    return None


def _near_stream(weights: Hybrid) -> str | None:
    left, _ = weights.near.band
    for part in parts(weights.near):
        if isinstance(part, Global) and part.last:
            return _LAST
        if isinstance(part, Global) and max(part.indices, default=0) > (left or 0):
            return (
                f"the global token {max(part.indices)} sees all of its past exactly, and a stream keeps only the last "
                f"{left} keys apart from its sums"
            )
    return None


def _stream(edges: Edges, weights: Weights) -> str | None:
    if not _all_past(edges) and any(isinstance(part, Global) and part.last for part in parts(edges)):
        return _LAST
    for spec in weights.specs():
        if "Q" in spec.dims and "K" in spec.dims:
            return f"the tensor {spec.name!r} names pairs of tokens, and a stream has no fixed set of them"
    return None


def _all_past(edges: Edges) -> bool:
    """Whether the edges hold every pair of `Causal()`, whatever else they name."""
    if isinstance(edges, Or):
        return _all_past(edges.left) or _all_past(edges.right)
    if isinstance(edges, And):
        return _all_past(edges.left) and _all_past(edges.right)
    return edges in (All(), Causal())


_LAST = "which tokens are the last is known only at the end of the stream"
