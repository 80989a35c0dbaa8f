"""PyTorch's two attention functions, taken apart into queries, keys, values and who may see whom."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from quadform._errors import QuadformError

_MASKED = -1e8
"""Scores of at most this (or half the dtype's minimum) are masks: their weights are 0 beside any other score's."""


class Call(NamedTuple):
    """One attention call in the terms of `Captured`; `cross` is None where the call alone does not say it."""

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor
    scaling: float
    bias: Tensor | None = None
    sink: Tensor | None = None
    cross: bool | None = None


def scaled_dot_product(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """The arguments of `scaled_dot_product_attention`; True in a boolean mask = keep, as here."""
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        raise QuadformError(
            f"{name}: its queries are {tuple(query.shape)} where capture knows (batch, heads, tokens, channels)"
        )
    if dropout_p:
        raise QuadformError(f"{name}: attention dropout of {dropout_p} is on; call model.eval() first")
    (batch, heads, n, width), m = query.shape, key.shape[-2]
    if heads % key.shape[1] or key.shape[1] != value.shape[1]:
        raise QuadformError(f"{name}: {heads} heads of queries, {key.shape[1]} of keys and {value.shape[1]} of values")
    keep = torch.ones(n, m, dtype=torch.bool, device=query.device)
    keep, bias = (keep.tril() if is_causal else keep)[None, None], None
    if attn_mask is not None:
        kept, bias = split_mask(name, attn_mask, keep=True)
        keep = keep & kept
    keep, bias = _whole(keep, batch, heads, n, m), _bias(bias, n, m)
    key, value = (tensor.expand(batch, -1, -1, -1) for tensor in (key, value))
    return Call(query, key, value, keep, width**-0.5 if scale is None else float(scale), bias)


def multi_head(name: str, given: dict[str, Any]) -> Call:
    """The arguments of `multi_head_attention_forward`, batched; True in a boolean mask = masked there.

    `add_zero_attn` adds a key whose score and value are 0: a sink of score 0.
    """
    refused = [key for key in ("bias_k", "bias_v", "static_k", "static_v") if given[key] is not None]
    if refused:
        raise QuadformError(
            f"{name}: its attention has {' and '.join(refused)}, keys of no token, which capture does not know"
        )
    if given["training"] and given["dropout_p"]:
        raise QuadformError(f"{name}: attention dropout of {given['dropout_p']} is on; call model.eval() first")
    inputs, heads = [given[key] for key in ("query", "key", "value")], given["num_heads"]
    weights, biases = _projections(given)
    projected = [F.linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True)]
    query, key, value = (x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for x in projected)
    (batch, _, n, width), m = query.shape, key.shape[-2]
    keep, bias = torch.ones(1, 1, n, m, dtype=torch.bool, device=query.device), None
    for mask in (_key_mask(given["key_padding_mask"]), _score_mask(given["attn_mask"], batch)):
        if mask is not None:
            kept, added = split_mask(name, mask, keep=False)
            keep = keep & kept
            bias = added if bias is None or added is None else bias + added
    _check_hint(name, given, n, m)
    sink = torch.zeros(heads, dtype=query.dtype, device=query.device) if given["add_zero_attn"] else None
    keep, bias = _whole(keep, batch, heads, n, m), _bias(bias, n, m)
    return Call(query, key, value, keep, width**-0.5, bias, sink, not _same(inputs[0], inputs[1]))


def split_mask(name: str, mask: Tensor, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """(True where a query may see a key, the scores added there or None); `keep`: what True in the mask means."""
    if mask.dtype == torch.bool:
        return (mask if keep else ~mask), None
    if bool((mask.isnan() | (mask == torch.inf)).any()):
        raise QuadformError(f"{name}: NaN or infinity in its attention mask")
    kept = mask > max(torch.finfo(mask.dtype).min / 2, _MASKED)
    bias = mask.masked_fill(~kept, 0.0)
    return kept, bias if bool(bias.any()) else None


def evaluate(call: Call) -> tuple[Tensor, Tensor]:
    """((B, H, N, E) output, (B, H, N, M) weights), with a last column for the sink when there is one."""
    groups = call.query.shape[1] // call.key.shape[1]
    key, value = call.key.repeat_interleave(groups, 1), call.value.repeat_interleave(groups, 1)
    scores = (call.query * call.scaling) @ key.transpose(-1, -2)
    if call.bias is not None:
        scores = scores + call.bias
    scores = scores.masked_fill(~call.keep, -torch.inf)
    if call.sink is not None:
        scores = torch.cat([scores, call.sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)
    return weights[..., : key.shape[-2]] @ value, weights


def fused(call: Call) -> Tensor:
    """The output of `evaluate` by PyTorch's fused function where it has no sink."""
    if call.sink is not None:
        return evaluate(call)[0]
    groups = call.query.shape[1] // call.key.shape[1]
    key, value = (
        (call.key, call.value)
        if groups == 1
        else (tensor.repeat_interleave(groups, 1) for tensor in (call.key, call.value))
    )
    mask = call.keep if call.bias is None else call.bias.masked_fill(~call.keep, -torch.inf)
    if call.bias is None and bool(call.keep.all()):
        return F.scaled_dot_product_attention(call.query, key, value, scale=call.scaling)
    return F.scaled_dot_product_attention(call.query, key, value, attn_mask=mask, scale=call.scaling)


def _projections(given: dict[str, Any]) -> tuple[list[Tensor], list[Tensor | None]]:
    if given["use_separate_proj_weight"]:
        weights = [given[key] for key in ("q_proj_weight", "k_proj_weight", "v_proj_weight")]
    else:
        weights = list(given["in_proj_weight"].chunk(3))
    bias = given["in_proj_bias"]
    return weights, [None] * 3 if bias is None else list(bias.chunk(3))


def _key_mask(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, None, None, :]


def _score_mask(mask: Tensor | None, batch: int) -> Tensor | None:
    if mask is None:
        return None
    return mask[None, None] if mask.ndim == 2 else mask.unflatten(0, (batch, -1))


def _check_hint(name: str, given: dict[str, Any], n: int, m: int) -> None:
    """`is_causal` is a hint that torch believes on some of its paths only, so it must be true."""
    if not given["is_causal"]:
        return
    mask = given["attn_mask"]
    causal = torch.ones(n, m, dtype=torch.bool).tril()
    if mask is not None:
        kept, bias = split_mask(name, mask, keep=False)
        if bias is None and bool((kept.cpu() == causal).all()):
            return
    raise QuadformError(f"{name}: is_causal without the causal attn_mask; torch's paths disagree on what that means")


def _whole(keep: Tensor, batch: int, heads: int, n: int, m: int) -> Tensor:
    shape = (batch, 1 if keep.ndim < 3 or keep.shape[-3] == 1 else heads, n, m)
    return keep.expand(shape)


def _bias(bias: Tensor | None, n: int, m: int) -> Tensor | None:
    if bias is None:
        return None
    while bias.ndim < 4:
        bias = bias[None]
    return bias.expand(-1, -1, n, m)


def _same(query: Tensor, key: Tensor) -> bool:
    """Whether queries and keys come from the same sequence: the same tensor, or an equal one."""
    if query.shape != key.shape:
        return False
    return (query.data_ptr() == key.data_ptr() and query.stride() == key.stride()) or torch.equal(query, key)
