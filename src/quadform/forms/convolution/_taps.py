"""Taps, dynamic taps and softmax taps on one sequence or grid without padding rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quadform.forms._normalise import divide
from quadform.forms.convolution._frame import Frame, pad, slide, spread, tap_slices, unpad

SAFE = {torch.float32: 1e-9, torch.float64: 1e-100}
CHUNK = 1 << 22


def to_channels(v: Tensor, grid: tuple[int, ...]) -> Tensor:
    """(B, H, N, Dv) to (B Dv, H, *grid): one depthwise channel a head."""
    b, h, _, d = v.shape
    return v.movedim(3, 1).reshape(b * d, h, *grid)


def from_channels(x: Tensor, batch: int) -> Tensor:
    """(B Dv, H, *out) to (B, H, n, Dv)."""
    width = x.shape[0] // batch if batch else 0
    return x.reshape(batch, width, x.shape[1], math.prod(x.shape[2:])).movedim(1, 3)


def fixed(v: Tensor, taps: Tensor, frame: Frame) -> Tensor:
    """Raw taps (H, T): a plain convolution."""
    return from_channels(slide(pad(to_channels(v, frame.grid), frame), taps, frame), v.shape[0])


def transposed(v: Tensor, taps: Tensor, frame: Frame) -> Tensor:
    """Raw taps (H, T) from the receivers of the frame back to its senders."""
    return from_channels(unpad(spread(to_channels(v, frame.out), taps, frame), frame), v.shape[0])


def presence(valid: Tensor | None, frame: Frame, device: torch.device) -> Tensor | None:
    """(Bp, 1, *padded grid) bool: cells that count in a normaliser; None where all do.

    A cell beyond a border of zeros counts, one beyond a border that renormalises does not, one that maps to a sender counts
    as that sender does.
    """
    cropped = all(low <= 0 and high <= 0 for low, high in zip(frame.low, frame.high, strict=True))
    beyond = frame.border == "zeros" or cropped
    if valid is None and (beyond or frame.border in ("replicate", "circular", "reflect", "valid")):
        return None
    kept = torch.ones(1, math.prod(frame.grid), dtype=torch.bool, device=device) if valid is None else valid
    return pad(kept.reshape(kept.shape[0], 1, *frame.grid).float(), frame, fill=float(beyond)) > 0.5


def dynamic(v: Tensor, logits: Tensor, valid: Tensor | None, frame: Frame) -> Tensor:
    """Softmax over the taps of logits (B, H, n, T), then one multiply-add a tap; no unfolded copy of v."""
    here = presence(valid, frame, v.device)
    if here is not None:
        seen = torch.stack([part.flatten(2) for part in tap_slices(here, frame)], -1)
        logits = logits.masked_fill(~seen, -torch.inf)
    w = _softmax(logits)
    x = pad(to_channels(v, frame.grid), frame)
    x = x.reshape(v.shape[0], v.shape[3], v.shape[1], *x.shape[2:])
    total = v.new_zeros(v.shape[0], v.shape[1], frame.receivers, v.shape[3])
    for t, part in enumerate(tap_slices(x, frame)):
        total = total + w[..., t, None] * part.flatten(3).permute(0, 2, 3, 1)
    return total


def softmax_taps(v: Tensor, scores: Tensor, valid: Tensor | None, frame: Frame) -> Tensor:
    """Weights exp(scores (H, T)), normalised over the senders that each receiver has: a normalised convolution.

        y_o = sum_t m e^(s_t - M) v / sum_t m e^(s_t - M)

    M is the largest score wherever the denominator stays far from underflow. The other rows (a peaked head at a border or
    behind a mask) take their own largest score over valid senders and are computed one by one, so every row is exact.
    """
    if frame.taps is not None:
        scores = scores.masked_fill(~frame.taps, -torch.inf)
    here = presence(valid, frame, v.device)
    if here is None:
        return fixed(v, _softmax(scores), frame)
    top = scores.detach().amax(-1, keepdim=True)
    taps = torch.exp(scores - torch.where(top == -torch.inf, 0, top))
    mask = here.to(v.dtype)
    denominator = slide(mask.expand(-1, scores.shape[0], *mask.shape[2:]), taps, frame).flatten(2)[..., None]
    x = pad(to_channels(v, frame.grid), frame)
    numerator = from_channels(slide(x, taps, frame), v.shape[0])
    safe = denominator > SAFE[v.dtype]
    y = torch.where(safe, numerator / torch.where(safe, denominator, 1), 0)
    rare = ~safe.expand(*y.shape[:3], 1)[..., 0]
    return _exact_rows(y, rare, v, scores, here, frame) if bool(rare.any()) else y


def mean_taps(v: Tensor, valid: Tensor | None, frame: Frame) -> Tensor:
    """Equal weights over the senders that each receiver has."""
    scores = v.new_zeros(v.shape[1], math.prod(frame.kernel))
    return softmax_taps(v, scores, valid, frame)


def _softmax(scores: Tensor) -> Tensor:
    top = scores.detach().amax(-1, keepdim=True) if scores.shape[-1] else scores.sum(-1, keepdim=True)
    w = torch.exp(scores - torch.where(top == -torch.inf, 0, top))
    return divide(w, w.sum(-1, keepdim=True))


def _exact_rows(y: Tensor, rows: Tensor, v: Tensor, scores: Tensor, here: Tensor, frame: Frame) -> Tensor:
    """y with the rows (B, H, n) that `rows` marks computed by a softmax over their own senders."""
    b, h, o = rows.nonzero(as_tuple=True)
    strides, padded = _cell_index(frame, v.device)
    x = pad(to_channels(v, frame.grid), frame).flatten(2)
    x = x.reshape(v.shape[0], v.shape[3], v.shape[1], -1)
    mask = here.flatten(2)[:, 0].expand(v.shape[0], -1)
    parts = []
    step = max(CHUNK // max(padded.numel() * v.shape[3], 1), 1)
    for first in range(0, b.numel(), step):
        bb, hh, oo = (i[first : first + step] for i in (b, h, o))
        cells = strides[oo][:, None] + padded[None, :]
        w = _softmax(scores[hh].masked_fill(~mask[bb[:, None], cells], -torch.inf))
        parts.append((w[..., None] * x[bb[:, None], :, hh[:, None], cells]).sum(1))
    return y.index_put((b, h, o), torch.cat(parts))


def _cell_index(frame: Frame, device: torch.device) -> tuple[Tensor, Tensor]:
    """(first cell of each receiver (n,), distance of each tap from it (T,)) in the flattened padded grid."""
    size = [n + low + high for n, low, high in zip(frame.grid, frame.low, frame.high, strict=True)]
    receivers = [torch.arange(n, device=device) * s for n, s in zip(frame.out, frame.stride, strict=True)]
    taps = [torch.arange(n, device=device) * s for n, s in zip(frame.kernel, frame.dilation, strict=True)]

    def flat(axes: list[Tensor]) -> Tensor:
        grid = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        index = torch.zeros_like(grid[:, 0])
        for d, n in enumerate(size):
            index = index * n + grid[:, d]
        return index

    return flat(receivers), flat(taps)
