"""The attention function that transformers calls while a model is being captured."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from quadform._errors import QuadformError
from quadform.inspect import Captured, Receive

NAME = "quadform_capture"

# Arguments that do not change softmax(scaling q k' + mask) v: bookkeeping of caches and outputs, positions that were
# already applied to q and k, and the window, which the mask that arrives contains.
HARMLESS = frozenset(
    {
        "cache",
        "cache_position",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "past_key_values",
        "position_ids",
        "sliding_window",
        "use_cache",
    }
)


CROSS = re.compile(r"cross|encoder_attn|enc_?dec", re.IGNORECASE)
"""What modules that attend from one sequence to another are called."""


class Recorder:
    """What is known during one forward pass: the modules' names, and how often each was called."""

    def __init__(self, model: nn.Module, eager: dict[int, bool], receive: Receive) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.eager, self.receive = eager, receive
        self.calls: dict[str, int] = {}

    def name(self, module: nn.Module) -> str:
        """The module's name in the model."""
        name: str | None = self.names.get(id(module))
        if name is None:
            raise QuadformError(f"{type(module).__name__}: an attention module outside the captured model was called")
        return name


active: ContextVar[Recorder | None] = ContextVar("quadform_recorder", default=None)


def register() -> None:
    """Registers the attention function together with its mask function: without the latter the mask is dropped."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The full boolean mask (B, 1, N_q, N_k), True = keep, never skipped."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """softmax(scaling q k' over kept pairs) v, handed over to the active recorder; (B, N, H, E) and no weights."""
    recorder = active.get()
    if recorder is None:
        raise QuadformError(f"attention implementation {NAME!r} works only inside quadform's capture")
    name = recorder.name(module)
    if CROSS.search(name):
        raise QuadformError(f"{name}: cross-attention is not covered; inspect the encoder alone")
    _refuse_unknown(name, dropout, kwargs)
    keep = _keep(name, module, query, key, attention_mask)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    compute = _eager if recorder.eager.get(id(getattr(module, "config", None)), False) else _fused
    output = compute(query, key, value, keep, scale)
    call = recorder.calls.get(name, 0)
    recorder.calls[name] = call + 1
    recorder.receive(Captured(name, call, query, key, value, keep, scale, output))
    return output.transpose(1, 2).contiguous(), None


def _refuse_unknown(name: str, dropout: float, kwargs: dict[str, Any]) -> None:
    unknown = sorted(key for key, value in kwargs.items() if value is not None and key not in HARMLESS)
    if unknown:
        raise QuadformError(
            f"{name}: its attention takes {', '.join(unknown)}, which capture does not know; a result without it "
            "would be wrong"
        )
    if dropout:
        raise QuadformError(f"{name}: attention dropout of {dropout} is on; call model.eval() first")


def _keep(name: str, module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None) -> Tensor:
    batch, _, queries, _ = query.shape
    if attention_mask is None:
        if getattr(module, "is_causal", False) and queries > 1:
            raise QuadformError(f"{name}: a causal module came without a mask, so what it may see is not known")
        return torch.ones(batch, 1, queries, key.shape[-2], dtype=torch.bool, device=query.device)
    kept = attention_mask
    if kept.dtype != torch.bool:
        lowest = torch.finfo(kept.dtype).min
        if not bool(((kept == 0) | (kept <= lowest / 2)).all()):
            raise QuadformError(f"{name}: its mask adds a score bias, which capture does not know")
        kept = kept == 0
    return kept[..., : key.shape[-2]].expand(batch, -1, queries, -1)


def _eager(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, scale: float) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scale
    scores = scores + torch.zeros_like(keep, dtype=scores.dtype).masked_fill(~keep, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    return weights @ value


def _fused(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, scale: float) -> Tensor:
    """As transformers' own "sdpa", which leaves the mask out where it can and so rounds differently."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    attend: Callable[..., Tensor] = nn.functional.scaled_dot_product_attention
    n = query.shape[-2]
    if bool(keep.all()):
        return attend(query, key, value, scale=scale)
    if n == key.shape[-2] and bool((keep == torch.ones_like(keep[0, 0]).tril()).all()):
        return attend(query, key, value, is_causal=True, scale=scale)
    return attend(query, key, value, attn_mask=keep, scale=scale)
