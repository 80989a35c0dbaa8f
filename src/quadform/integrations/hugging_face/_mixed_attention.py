"""The attention and mask functions that transformers calls while a model's heads are mixers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quadform._errors import QuadformError
from quadform.integrations.hugging_face._attention import HARMLESS, MASKED
from quadform.integrations.hugging_face._mixers import ModuleMixers, Sizes

NAME = "quadform_mixers"
MIXERS = "quadform_mixers"
"""The attribute of an attention module that holds its mixers."""
CACHED = "quadform_cached"
"""The attribute of a key tensor that holds the layer of a cache which it came through."""

_KNOWN = HARMLESS | {"num_items_in_batch", "softcap"}
_VISIBLE, _KEPT = 1, 2


def register() -> None:
    """Registers attention and mask function together: without the latter the mask is dropped."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """Which keys are no padding: int8 (B, 1, 1, N_k), or None for all; who sees whom is the mixer's own matter.

    A mask that is not simply causal (a window, packed sequences) comes as uint8 (B, 1, N_q, kv_offset + N_k) of bits: 1 for
    a visible pair, 2 for a key that is no padding, so that `attention` can check it against the mixer.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    plain = mask_function is causal_mask_function
    start, stop = kv_offset if plain else 0, kv_offset + kv_length
    device = kwargs.get("device", "cpu") if attention_mask is None else attention_mask.device
    kept = attention_mask
    if kept is not None:
        kept = kept[:, start:stop]
        kept = nn.functional.pad(kept, (0, stop - start - kept.shape[1]))
    elif isinstance(q_offset, Tensor) or stop != q_offset + q_length:
        kept = (torch.arange(start, stop, device=device) < q_offset + q_length).expand(batch_size, -1)
    if plain:
        return None if kept is None else kept[:, None, None].to(torch.int8)
    given = {**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    visible: Any = sdpa_mask(batch_size, q_length, stop, q_offset, 0, mask_function, None, **given)
    whole = visible.new_ones(batch_size, 1, 1, stop) if kept is None else kept[:, None, None]
    return (visible & whole).to(torch.uint8) * _VISIBLE + whole.to(torch.uint8) * _KEPT


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
    """Attention by the module's mixers: (B, N, H, E) and no weights.

    A key that came through a `StateCache` continues that cache's states; any other holds the whole sequence.
    """
    mixers: ModuleMixers | None = getattr(module, MIXERS, None)
    if mixers is None:
        raise QuadformError(f"attention implementation {NAME!r} works only in a model that with_mixers has prepared")
    _refuse_unknown(mixers.name, kwargs)
    window = kwargs.get("sliding_window")
    scaling = None if scaling is None else float(scaling)
    cap = kwargs.get("softcap")
    mixers.bind(Sizes(query.shape[1], key.shape[1], query.shape[-1], value.shape[-1], scaling, window, cap))
    cached = getattr(key, CACHED, None)
    if cached is not None and cached.mixers is not mixers:
        raise QuadformError(
            f"{mixers.name} reads the keys of {cached.mixers.name}: layers that share keys have no state"
        )
    keep = _kept(mixers.name, attention_mask, query.shape[-2], key.shape[-2], window, cached is not None)
    if mixers.watch is not None:
        with mixers.watch.paused():
            output, _ = mixers.run(query, key, value, keep, dropout, None)
    elif cached is None:
        output, _ = mixers.run(query, key, value, keep, dropout, None)
    else:
        if dropout:
            raise QuadformError(f"{mixers.name}: attention dropout of {dropout} is on; a state drops no single weight")
        output, states = mixers.run(query, key, value, keep, 0.0, cached.states)
        cached.advance(states)
    return output.transpose(1, 2), None


def _refuse_unknown(name: str, kwargs: dict[str, Any]) -> None:
    unknown = sorted(key for key, value in kwargs.items() if value is not None and key not in _KNOWN)
    if unknown:
        raise QuadformError(f"{name}: its attention takes {', '.join(unknown)}, which a mixer does not know")
    if kwargs.get("is_causal") is False:
        raise QuadformError(f"{name}: its attention is not causal, and only a decoder's can be replaced")
    if kwargs.get("output_attentions"):
        raise QuadformError(f"{name}: a mixer does not return its weights, so output_attentions must be off")


def _kept(name: str, mask: Tensor | None, n: int, m: int, window: int | None, streaming: bool) -> Tensor | None:
    """(B, m) bool: which keys are no padding; None for all."""
    if mask is None:
        return None
    if mask.dtype == torch.int8:
        return _simplified(mask[:, 0, 0, -m:].bool())
    if mask.dtype == torch.uint8:
        visible, whole = (mask & _VISIBLE).bool(), (mask[:, :, :1] & _KEPT).bool()
    elif streaming:
        raise QuadformError(f"{name}: a mask of four dimensions cannot be followed by states; pass one of (B, N)")
    else:
        visible = mask if mask.dtype == torch.bool else mask > MASKED
        if mask.dtype != torch.bool and bool((visible & (mask != 0)).any()):
            raise QuadformError(f"{name}: its mask adds numbers to the scores, which a mixer does not know")
        whole = visible.any(-2, keepdim=True)
    if not torch.compiler.is_compiling():
        _check_structure(name, visible, whole, n, window)
    return _simplified(whole[:, 0, 0, -m:])


def _check_structure(name: str, visible: Tensor, whole: Tensor, n: int, window: int | None) -> None:
    """Raises QuadformError where a mask is not causal, within the window, without padded keys, and nothing else."""
    total = visible.shape[-1]
    sent = torch.arange(total, device=visible.device)
    received = sent[total - n :, None]
    expected = sent <= received
    if window is not None:
        expected = expected & (received - sent < window)
    wrong = (expected & whole) != visible
    if bool((wrong & whole[..., total - n :].mT).any()):
        raise QuadformError(
            f"{name}: its mask is not causal with padding{'' if window is None else f' in a window of {window}'} (packed "
            "sequences, blocks, or a window that its attention is not told of), and a mixer would not follow it"
        )


def _simplified(keep: Tensor) -> Tensor | None:
    """None where every key is kept, which is faster; a compiled call does not look."""
    if torch.compiler.is_compiling() or not bool(keep.all()):
        return keep
    return None
