"""Which mixer computes which heads of an attention module, and their computation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from quadform._errors import ArgumentError, QuadformError, Refused
from quadform.algebra import (
    And,
    Causal,
    Edges,
    FeatureMap,
    Global,
    Or,
    Softmax,
    Stencil,
    Weights,
    Window,
    from_sliding_window,
)
from quadform.forms import State, attend, init_state, prefill
from quadform.integrations.hugging_face._beside import Watch

Mixer = tuple[Edges, Weights] | tuple[Edges, Weights, Mapping[str, Tensor]]
Layer = Mixer | Sequence[tuple[Sequence[int], Mixer]]
Mixers = Mixer | Mapping[int | str, Layer | None]
W = TypeVar("W", bound=Weights | FeatureMap)


@dataclass(frozen=True, eq=False)
class Group:
    """A mixer and the key-value heads that it computes, with their queries.

    Attributes:
        heads: key-value heads, sorted.
        tensors: what the mixer declares, for the query heads of these heads alone; a size of 1 in place of the tokens
            holds for every token.
        given: False where nobody named these heads, so that they stay the model's own softmax.
    """

    heads: tuple[int, ...]
    edges: Edges
    weights: Weights
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    given: bool = True


@dataclass(frozen=True)
class Sizes:
    """What an attention module calls its attention with."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scaling: float | None
    window: int | None
    softcap: float | None


class ModuleMixers:
    """The mixers of one attention module; its sizes are those of its first call.

    Attributes:
        groups: (head group, mixer), every key-value head in one of them; weights have the module's own scale.
        sizes: None until the module has been called.
        active: whether the model still calls these mixers.
        watch: what looks for attention beside the mixers, while the model is being prepared.
    """

    def __init__(self, name: str, given: Layer | None) -> None:
        self.name = name
        self.asked = _groups(name, given)
        self.groups: tuple[Group, ...] = ()
        self.sizes: Sizes | None = None
        self.order: Tensor | None = None
        self.active = True
        self.watch: Watch | None = None

    def bind(self, sizes: Sizes) -> None:
        """Fills in what the module's call says.

        Raises:
            ArgumentError: a head that does not exist or has two mixers.
            QuadformError: a mixer that would see beyond the module's sliding window, or that ignores its soft cap.
        """
        if self.sizes == sizes:
            return
        named = [head for group in self.asked for head in group.heads or range(sizes.kv_heads)]
        if sorted(named) != sorted(set(named)) or any(head >= sizes.kv_heads for head in named):
            expected = f"each of the {sizes.kv_heads} key-value heads of {self.name} once at most"
            raise ArgumentError("mixers", expected, str(named))
        groups = [self._fitted(group, sizes) for group in self.asked]
        if rest := tuple(head for head in range(sizes.kv_heads) if head not in named):
            groups.append(self._fitted(Group(rest, Causal(), Softmax(), given=False), sizes))
        self.groups = tuple(groups)
        order = torch.tensor([head for group in groups for head in group.heads]).argsort()
        shared = sizes.heads // sizes.kv_heads
        order = (order[:, None] * shared + torch.arange(shared)).flatten()
        self.order = None if torch.equal(order, torch.arange(sizes.heads)) else order
        self.sizes = sizes

    def _fitted(self, group: Group, sizes: Sizes) -> Group:
        weights, edges = group.weights, group.edges
        if sizes.scaling is not None:
            weights = scaled(weights, sizes.scaling)
        if sizes.softcap is not None:
            if not isinstance(weights, Softmax) or not weights.content:
                raise QuadformError(
                    f"{self.name}: its scores have a soft cap of {sizes.softcap:g}, which {weights} does not have"
                )
            if weights.softcap is None:
                weights = dataclasses.replace(weights, softcap=sizes.softcap)
        if sizes.window is not None:
            if not group.given:
                edges = from_sliding_window(sizes.window)
            reach = _reach(edges)
            if reach is None or reach >= sizes.window:
                raise QuadformError(
                    f"{self.name} has a sliding window of {sizes.window} keys, and {edges} reaches beyond it; "
                    f"Window({sizes.window - 1}) is the widest that does not"
                )
        heads = group.heads or tuple(range(sizes.kv_heads))
        return dataclasses.replace(group, heads=heads, edges=edges, weights=weights)

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, dropout: float, states: list[State] | None
    ) -> tuple[Tensor, list[State] | None]:
        """(y (B, H, n, Dv), the states after it); without a list of states a whole sequence at once.

        An empty list begins a stream.
        """
        parts, after = [], []
        shared = q.shape[1] // k.shape[1]
        for at, group in enumerate(self.groups):
            queries = q if shared == 1 else q.unflatten(1, (-1, shared))
            mine, keys, values = (_pick(x, group.heads) for x in (queries, k, v))
            mine = mine if shared == 1 else mine.flatten(1, 2)
            read = "k" in group.weights.reads or group.edges.content
            tensors = spread(group, keys.shape[2])
            call: dict[str, Any] = {"tensors": tensors, "key_mask": key_mask}
            if states is None:
                y = _whole(mine, keys if read else None, values, group, dropout_p=dropout, **call)
            else:
                before = states[at] if states else None
                y, state = prefill(
                    mine, keys if read else None, values, group.edges, group.weights, state=before, **call
                )
                after.append(state)
            parts.append(y)
        output = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if self.order is not None:
            output = output.index_select(1, self.order.to(output.device))
        return output, None if states is None else after

    def check_streams(self) -> None:
        """Errors: Refused where a mixer keeps no state, with the module's name and the reason."""
        for group in self.groups:
            self._begin(group)

    def _begin(self, group: Group) -> State:
        assert self.sizes is not None
        shared = self.sizes.heads // self.sizes.kv_heads
        try:
            return init_state(
                group.edges,
                group.weights,
                batch=1,
                heads=len(group.heads) * shared,
                kv_heads=len(group.heads),
                head_dim=self.sizes.head_dim,
                value_dim=self.sizes.value_dim,
                tensors=spread(group, 0),
            )
        except Refused as reason:
            raise Refused(f"{self.name}: {group.weights} on {group.edges} keeps no state: {reason}") from None


def _whole(q: Tensor, k: Tensor | None, v: Tensor, group: Group, **call: Any) -> Tensor:
    """The outputs of n queries at the end of all keys; a stencil, whose receivers are its senders, computes them all."""
    n, missing = q.shape[2], v.shape[2] - q.shape[2]
    if missing and isinstance(group.edges, Stencil):
        q = nn.functional.pad(q, (0, 0, missing, 0))
    y: Tensor = attend(q, k, v, group.edges, group.weights, **call)
    return y[:, :, y.shape[2] - n :]


def scaled(weights: W, scale: float) -> W:
    """The weights (or feature map) with this scale of q'k wherever they leave it open: their own, their map's, their parts'."""
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(weights):  # type: ignore[arg-type]
        value = getattr(weights, item.name)
        if item.name == "scale" and value is None and getattr(weights, "content", True):
            changes["scale"] = scale
        elif isinstance(value, Weights | FeatureMap):
            changes[item.name] = scaled(value, scale)
    return dataclasses.replace(weights, **changes) if changes else weights  # type: ignore[type-var]


def spread(group: Group, n: int) -> dict[str, Tensor]:
    """The tensors of a call of n tokens: what has size 1 in place of the tokens is repeated."""
    dims = {spec.name: spec.dims for spec in group.weights.specs()}
    out = {}
    for name, x in group.tensors.items():
        sizes = list(x.shape)
        for axis, dim in enumerate(dims.get(name, ())):
            if dim in ("K", "Q") and axis < x.dim() and x.shape[axis] == 1:
                sizes[axis] = n
        out[name] = x.expand(sizes)
    return out


def _pick(x: Tensor, heads: tuple[int, ...]) -> Tensor:
    if len(heads) == x.shape[1]:
        return x
    if heads[-1] - heads[0] == len(heads) - 1:
        return x[:, heads[0] : heads[-1] + 1]
    return x[:, list(heads)]


def _reach(edges: Edges) -> int | None:
    """How many positions back causal edges see at most; None for all."""
    if isinstance(edges, And | Or):
        left, right = _reach(edges.left), _reach(edges.right)
        both = [reach for reach in (left, right) if reach is not None]
        if isinstance(edges, And):
            return min(both) if both else None
        return max(both) if len(both) == 2 else None
    if isinstance(edges, Global) or (isinstance(edges, Window) and edges.sinks):
        return None
    return edges.band[0]


def _groups(name: str, given: Layer | None) -> tuple[Group, ...]:
    if given is None:
        return ()
    if _is_mixer(given):
        return (_group(name, (), given),)
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ArgumentError("mixers", f"(edges, weights, tensors) or a list of (heads, mixer) for {name}", repr(given))
    groups = []
    for item in given:
        if not isinstance(item, tuple) or len(item) != 2 or not _is_mixer(item[1]):
            raise ArgumentError("mixers", f"pairs (key-value heads, mixer) for {name}", repr(item)[:80])
        heads = item[0]
        if isinstance(heads, str) or not isinstance(heads, Sequence) or not heads or not all(map(_is_head, heads)):
            raise ArgumentError("mixers", f"numbers of key-value heads for {name}", repr(heads)[:80])
        groups.append(_group(name, tuple(sorted(heads)), item[1]))
    return tuple(groups)


def _group(name: str, heads: tuple[int, ...], mixer: Any) -> Group:
    edges, weights = mixer[:2]
    if not edges.is_causal:
        raise ArgumentError("mixers", f"causal edges for {name}, which must not see the future", str(edges))
    tensors = dict(mixer[2]) if len(mixer) == 3 else {}
    return Group(heads, edges, weights, tensors)


def _is_mixer(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) in (2, 3)
        and isinstance(value[0], Edges)
        and isinstance(value[1], Weights)
        and (len(value) == 2 or isinstance(value[2], Mapping))
    )


def _is_head(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
