"""Law 4: padding, masks, empty rows, and values that are not numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Graph, Kernel, Stencil, Transposed, Uniform, Via
from quadform.laws._cases import DTYPES, Case, draw
from quadform.laws._oracle import accepting, bounds, dims_of, formula, gradients, resolved_edges
from quadform.laws._outcome import TOLERANCE, Outcome, distance, gradient_distance, rounding
from quadform.laws._tensors import Source


def padding(row: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """Contiguous padding on either side equals the shorter sequence, outputs and gradients, whatever the padding holds."""
    case = draw(row, seed, DTYPES[dtype], limit, plain=True, square=True)
    if isinstance(case.edges, Graph) or "grid" in case.options or (isinstance(case.weights, Via) and case.weights.core):
        return []
    source = Source.of("padding", row, seed, dtype)
    extra, left = source.rng.randint(1, 5), source.rng.random() < 0.5
    keys, queries = case.v.shape[2], case.queries
    longer, first = _padded(case, extra, left, source)
    if not left and source.rng.random() < 0.5:
        longer.options["lengths"] = torch.full((case.v.shape[0],), keys)  # type: ignore[index]
    else:
        index = torch.arange(keys + extra)
        real = (index >= extra) if left else (index < keys)
        longer.options["key_mask"] = real.expand(case.v.shape[0], -1)  # type: ignore[index]
    edges = resolved_edges(case)
    expected, slopes = gradients(case, lambda x: formula(case, x, edges), torch.float64)
    bound = bounds(case, expected, edges)
    out = []
    for form in accepting(longer):

        def run(x: Any, form: str = form) -> Tensor:
            return longer.attend(form, x)[:, :, first : first + queries]

        y, found = gradients(replace(longer, cotangent=case.cotangent), run, case.dtype)
        witness = f"{extra} cells on the {'left' if left else 'right'} of {case.describe()}"
        out.append(Outcome("padding", row, form, dtype, distance(y, expected), bound, witness))
        if case.dtype in TOLERANCE:
            cropped = {name: _crop(g, slopes[name], left, first, dims_of(case)[name]) for name, g in found.items()}
            out.append(
                Outcome("padding", row, form, dtype, gradient_distance(cropped, slopes), bound, "gradient, " + witness)
            )
    return out


def _padded(case: Case, extra: int, left: bool, source: Source) -> tuple[Case, int]:
    """The case with `extra` cells that hold anything, and where its first receiver then stands."""
    keys = case.v.shape[2] + extra
    own = isinstance(case.edges.inner if isinstance(case.edges, Transposed) else case.edges, Stencil)
    queries = case.edges.count_queries(keys, None) if own else case.queries + extra
    more = queries - case.queries
    at_start = left and (not own or queries == keys)
    rubbish = source.rng.choice((math.nan, math.inf, 1e4))
    dims, out = dims_of(case), {}
    for name, x in case.inputs().items():
        for axis, dim in enumerate(dims[name]):
            if dim in ("Q", "K"):
                count, before = (extra, left) if dim == "K" else (more, at_start)
                fill = -1.0 if name == "log_decay" else 1.0 if dim == "Q" else rubbish
                shape = list(x.shape)
                shape[axis] = count
                pad = x.new_full(shape, fill)
                x = torch.cat([pad, x] if before else [x, pad], axis)
            elif dim == "N":
                x = F.pad(x, (0, extra))
        out[name] = x
    named = {name: out[name] for name in case.tensors}
    longer = replace(case, q=out.get("q"), k=out.get("k"), v=out["v"], tensors=named, options=dict(case.options))
    return longer, more if at_start else 0


def _crop(g: Tensor, like: Tensor, left: bool, first: int, dims: tuple[str, ...]) -> Tensor:
    for axis, dim in enumerate(dims):
        if dim in ("Q", "K"):
            start = first if dim == "Q" else g.shape[axis] - like.shape[axis] if left else 0
            g = g.narrow(axis, start, like.shape[axis])
        elif dim == "N":
            g = g.narrow(axis, 0, like.shape[axis])
    return g


def holes(row: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """A mask with holes removes senders and moves nobody: the weights of the others are rescaled to the same sum."""
    case = draw(row, seed, DTYPES[dtype], limit, plain=True, square=True)
    batch, keys = case.v.shape[0], case.v.shape[2]
    kernel = case.weights if isinstance(case.weights, Kernel) else None
    decays = kernel is not None and (kernel.decay is not None or kernel.phi.running)  # those weights read other senders
    counts = isinstance(case.weights, Uniform) and case.weights.aggregate == "symmetric"
    ranks = row == "topk"
    if decays or counts or ranks or isinstance(case.weights, Via) or keys < 3 or case.queries == 0:
        return []
    source = Source.of("holes", row, seed, dtype)
    keep = source.bits(batch, keys)
    keep[:, 0] = keep[:, -1] = True
    exact = case.leaves(torch.float64)
    _, w = case.attend("dense", exact, return_weights=True)
    scale = exact.get("row_scale", torch.ones(1, 1, 1, dtype=torch.float64))[..., None]
    kept = w * keep[:, None, None, :]
    if case.weights.normalised:
        beyond = (
            1 - w.sum(-1, keepdim=True) if isinstance(case.edges, Stencil) else 0.0
        )  # held by cells beyond a border
        rest = kept.sum(-1, keepdim=True) + beyond
        some = kept.abs().sum(-1, keepdim=True) > 0
        kept = torch.where(some, kept / torch.where(some, rest, 1), 0)
    v = exact["v"].repeat_interleave(w.shape[1] // max(case.v.shape[1], 1), 1)
    expected = kept @ v * scale
    masked = replace(case, options={**case.options, "key_mask": keep})
    bound = bounds(masked, formula(masked, exact, resolved_edges(masked)), resolved_edges(masked))
    witness = f"key_mask={keep.int().tolist()}, {case.describe()}"
    return [
        Outcome("holes", row, form, dtype, distance(masked.attend(form), expected), bound, witness)
        for form in accepting(masked)
    ]


def emptiness(row: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """Rows without a sender give 0 with gradient 0, and nothing that one sequence holds reaches another."""
    case = draw(row, seed, DTYPES[dtype], limit, plain=True, square=True)
    batch, keys = case.v.shape[0], case.v.shape[2]
    if batch < 2 or keys < 1 or case.queries < 1:
        return []
    keep = torch.ones(batch, keys, dtype=torch.bool)
    keep[-1] = False
    masked = replace(case, options={**case.options, "key_mask": keep}, cotangent=None)
    poisoned = {name: x.clone() for name, x in case.leaves(case.dtype).items()}
    for name in ("q", "k", "v"):
        if name in poisoned:
            poisoned[name][-1] = math.nan if name != "v" else math.inf
    out = []
    for form in accepting(masked):
        y, slopes = gradients(masked, lambda x, form=form: masked.attend(form, x), case.dtype)  # type: ignore[misc]
        last = [y[-1], *(slopes[name][-1] for name in ("q", "k", "v") if name in slopes)]
        error = max(
            (float(x.abs().double().max()) if bool(x.isfinite().all()) else math.inf) for x in last if x.numel()
        )
        out.append(Outcome("emptiness", row, form, dtype, error, 0.0, f"the last row all masked: {case.describe()}"))
    for form in accepting(case):
        clean, hurt = case.attend(form)[:-1], case.attend(form, poisoned)[:-1]
        witness = f"the last row not finite: {case.describe()}"
        out.append(Outcome("emptiness", row, form, dtype, distance(hurt, clean), rounding(case.dtype), witness))
    return out


def alignment(row: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """Fewer queries than keys stand at the end: the last rows of the square call."""
    case = draw(row, seed, DTYPES[dtype], limit, plain=True, square=True)
    keys = case.v.shape[2]
    stencil = isinstance(case.edges.inner if isinstance(case.edges, Transposed) else case.edges, Stencil)
    if stencil or isinstance(case.edges, Graph) or isinstance(case.weights, Via) or case.q is None or keys < 2:
        return []
    if "grid" in case.options or "uniform" in row:
        return []
    count = Source.of("alignment", row, seed, dtype).rng.randint(1, keys - 1)
    dims, exact = dims_of(case), case.leaves(torch.float64)
    expected = formula(case, exact, resolved_edges(case))[:, :, -count:]
    bound = bounds(case, formula(case, exact, resolved_edges(case)), resolved_edges(case))
    last = {}
    for name, x in case.inputs().items():
        axis = dims[name].index("Q") if "Q" in dims[name] else None
        last[name] = x if axis is None else x.narrow(axis, keys - count, count)
    named = {name: last[name] for name in case.tensors}
    short = replace(case, q=last["q"], tensors=named)
    witness = f"the last {count} queries of {case.describe()}"
    return [
        Outcome("alignment", row, form, dtype, distance(short.attend(form), expected), bound, witness)
        for form in accepting(short)
    ]
