"""The attention function that transformers calls while a model is being captured."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from quadform._errors import QuadformError
from quadform.inspect import Batch, Captured, Receive
from quadform.integrations._names import named_cross
from quadform.integrations.hugging_face._beside import Watch
from quadform.integrations.hugging_face._grids import Grids

NAME = "quadform_capture"

# Arguments that do not change the attention of a call: bookkeeping of caches and outputs, positions that were already
# applied to q and k, and the window, which the mask that arrives contains.
HARMLESS = frozenset(
    {
        "cache",
        "cache_position",
        "deterministic",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "past_key_values",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)
SCORES = {"position_bias": "bias", "softcap": "softcap", "s_aux": "sink"}
"""Arguments that change the scores, and what `Captured` calls them."""

MASKED = -9e3
"""Numbers of a mask that are at most this mask: their weights are 0 beside any other score's."""


class Recorder:
    """What is known during one forward pass: the modules' names, how often each was called, and the inputs."""

    def __init__(self, model: nn.Module, batch: Batch, eager: dict[int, bool], receive: Receive) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.eager, self.receive, self.batch = eager, receive, batch
        self.grids = Grids(model, batch)
        self.watch = Watch(model)
        self.calls: dict[str, int] = {}

    def name(self, module: nn.Module) -> str:
        """The module's name in the model."""
        name: str | None = self.names.get(id(module))
        if name is None:
            raise QuadformError(f"{type(module).__name__}: an attention module outside the captured model was called")
        return name

    def queries(self, cross: bool, batch: int, n: int) -> Tensor | None:
        """(B, N): the unpadded queries of cross-attention; None where the mask of the keys says it."""
        mask = self.batch.get("decoder_attention_mask")
        if cross and isinstance(mask, Tensor) and mask.shape == (batch, n):
            return mask.bool()
        return None


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
    """Attention as in `Captured`, handed over to the active recorder; (B, N, H, E) and no weights."""
    recorder = active.get()
    if recorder is None:
        raise QuadformError(f"attention implementation {NAME!r} works only inside quadform's capture")
    with recorder.watch.paused():
        output = _record(recorder, module, query, key, value, attention_mask, dropout, scaling, kwargs)
    return output.transpose(1, 2).contiguous(), None


def _record(
    recorder: Recorder,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    kwargs: dict[str, Any],
) -> Tensor:
    name = recorder.name(module)
    _refuse_unknown(name, dropout, kwargs)
    eager = recorder.eager.get(id(getattr(module, "config", None)), False)
    keep, bias = _mask(name, module, query, key, attention_mask, None if eager else kwargs.get("is_causal"))
    call = recorder.calls.get(name, 0)
    recorder.calls[name] = call + 1
    cross = query.shape[-2] != key.shape[-2] or named_cross(name)
    given = _scores(name, query, key, kwargs)
    if bias is not None:
        given["bias"] = bias + given.get("bias", 0.0)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    compute = _eager if eager or given.keys() - {"bias"} else _fused
    output = compute(query, key, value, keep, scale, **given)
    recorder.receive(
        Captured(
            name,
            call,
            query,
            key,
            value,
            keep,
            scale,
            output,
            **given,
            cross=cross,
            grid=None if cross else recorder.grids.find(name, key.shape[-2]),
            queries=recorder.queries(cross, query.shape[0], query.shape[-2]),
        )
    )
    return output


def _refuse_unknown(name: str, dropout: float, kwargs: dict[str, Any]) -> None:
    known = HARMLESS | SCORES.keys()
    unknown = sorted(key for key, value in kwargs.items() if value is not None and key not in known)
    if unknown:
        raise QuadformError(
            f"{name}: its attention takes {', '.join(unknown)}, which capture does not know; a result without it "
            "would be wrong"
        )
    if dropout:
        raise QuadformError(f"{name}: attention dropout of {dropout} is on; call model.eval() first")


def _scores(name: str, query: Tensor, key: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What changes the scores, under the names of `Captured`."""
    given = {ours: kwargs[theirs] for theirs, ours in SCORES.items() if kwargs.get(theirs) is not None}
    batch, heads, n, _ = query.shape
    if "bias" in given:
        shape, whole = given["bias"].shape, (batch, heads, n, key.shape[-2])
        if len(shape) != 4 or any(size not in (1, full) for size, full in zip(shape, whole, strict=True)):
            raise QuadformError(f"{name}: its position_bias is {tuple(shape)}, where capture knows {whole}")
        if bool(given["bias"].any()):
            given["bias"] = given["bias"].expand(-1, -1, n, key.shape[-2])
        else:  # T5's cross-attention gets one of zeros
            del given["bias"]
    if "sink" in given:
        if given["sink"].numel() != heads:
            raise QuadformError(f"{name}: its s_aux has {given['sink'].numel()} numbers for {heads} heads")
        given["sink"] = given["sink"].reshape(heads)
    return given


def _mask(
    name: str, module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None
) -> tuple[Tensor, Tensor | None]:
    """((B, 1 or H, N, M) who may see whom, score bias); a mask of numbers that are not 0 and "minus infinity" has one."""
    batch, _, n, _ = query.shape
    m = key.shape[-2]
    if mask is None:
        keep = torch.ones(batch, 1, n, m, dtype=torch.bool, device=query.device)
        if is_causal and n > 1:
            return keep.tril(), None
        if is_causal is None and getattr(module, "is_causal", False) and n > 1:
            raise QuadformError(f"{name}: a causal module came without a mask, so what it may see is not known")
        return keep, None
    bias = None
    if mask.dtype != torch.bool:
        keep = mask > MASKED
        if bool((keep & (mask != 0)).any()):
            bias = mask.masked_fill(~keep, 0.0)[..., :m].expand(-1, -1, n, -1)
        mask = keep
    return mask[..., :m].expand(batch, -1, n, -1), bias


def _eager(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias
    scores = scores + torch.zeros_like(keep, dtype=scores.dtype).masked_fill(~keep, torch.finfo(scores.dtype).min)
    if sink is not None:
        column = sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    return weights[..., : keep.shape[-1]] @ value


def _fused(query: Tensor, key: Tensor, value: Tensor, keep: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """As transformers' own "sdpa", which leaves the mask out where it can and so rounds differently."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    attend: Callable[..., Tensor] = nn.functional.scaled_dot_product_attention
    n = query.shape[-2]
    if bias is not None:
        mask = torch.where(keep, bias, torch.finfo(query.dtype).min).contiguous()
        return attend(query, key, value, attn_mask=mask, scale=scale)
    if bool(keep.all()):
        return attend(query, key, value, scale=scale)
    if n == key.shape[-2] and bool((keep == torch.ones_like(keep[0, 0]).tril()).all()):
        return attend(query, key, value, is_causal=True, scale=scale)
    return attend(query, key, value, attn_mask=keep, scale=scale)
