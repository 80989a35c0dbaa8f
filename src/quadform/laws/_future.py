"""Law 3: what comes after a receiver moves nothing at it or before it."""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.laws._cases import DTYPES, draw
from quadform.laws._oracle import accepting, dims_of
from quadform.laws._outcome import Outcome, distance, rounding
from quadform.laws._tensors import Source


def future(row: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """Other q, k, v and per-position tensors after a cut: outputs before it keep their digits, gradients after it are 0.

    (A fused kernel may sum in another order when masked values change, so not every last bit stays.)
    """
    case = draw(row, seed, DTYPES[dtype], limit, plain=True, square=True)
    n = case.v.shape[2]
    if not case.edges.is_causal or n < 2:
        return []
    source = Source.of("future", row, seed, dtype)
    kept = source.rng.randint(1, n - 1)
    dims, before = dims_of(case), case.leaves(case.dtype, grad=True)
    after = {name: _other(x.detach(), dims[name], kept, name) for name, x in before.items()}
    out = []
    for form in accepting(case):
        y = case.attend(form, before)[:, :, :kept]
        moved = distance(case.attend(form, after)[:, :, :kept], y)
        leaves = list(before.values())
        slopes = torch.autograd.grad(y.sum(), leaves, allow_unused=True) if y.requires_grad else [None] * len(leaves)
        leaked = 0.0
        for name, slope in zip(before, slopes, strict=True):
            axis = next((a for a, d in enumerate(dims[name]) if d in ("Q", "K")), None)
            if slope is not None and axis is not None and slope.numel():
                leaked = max(leaked, float(slope.narrow(axis, kept, n - kept).abs().double().max()))
        witness = f"changes from position {kept} on: {case.describe()}"
        out.append(Outcome("future", row, form, dtype, moved, rounding(case.dtype), "output, " + witness))
        out.append(Outcome("future", row, form, dtype, leaked, 0.0, "gradient, " + witness))
    return out


def _other(x: Tensor, dims: tuple[str, ...], kept: int, name: str) -> Tensor:
    """x with other, larger values from position `kept` on; log-gates stay gates."""
    x = x.clone()
    for axis, dim in enumerate(dims):
        if dim in ("Q", "K"):
            x.narrow(axis, kept, x.shape[axis] - kept).mul_(9.0 if name == "log_decay" else -9.0)
    return x
