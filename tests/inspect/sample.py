"""A synthetic report that has everything a report can have; its numbers are measured on weights made up from a seed."""

from __future__ import annotations

import base64
import dataclasses
import math

import torch
from torch import Tensor

from quadform.inspect import FormError, FormInfo, Head, Layer, Report, Section
from quadform.inspect._report import FormCost, Timing
from quadform.inspect._structure import STRUCTURE
from quadform.inspect._views import Views

FORMS = {
    "mean": FormInfo("M", "baseline: the mean of v over the keys that the head may see", False, "mean"),
    "convolution-15": FormInfo("C", "15 weights per head that no input changes", False, "convolution"),
    "window-32": FormInfo("W", "softmax over ±16 tokens (causal heads: the last 32)", False, "window"),
    "window-32+sinks": FormInfo("S", "softmax over ±16 tokens, the first and the last one", False, "window with sinks"),
    "graph-16": FormInfo("G", "softmax over 16 senders for each token that no input changes", False, "fixed graph"),
    "kernel-taylor2": FormInfo("K", "the kernel 1 + s + s²/2, which a state of fixed size carries", False, "kernel"),
    "nystrom-16": FormInfo("N", "softmax through 16 landmarks", False, "low rank"),
    "hybrid-32": FormInfo("H", "softmax over ±16 tokens, the kernel elsewhere, one normaliser", False, "hybrid"),
    "top-16": FormInfo("T", "softmax over each token's 16 strongest edges (an oracle)", True, "top-k"),
}
WORDS = (
    "[CLS] the quick brown fox jumps over a lazy dog , and <b> then some more words follow until we reach "
    "the end of it . It is read"
)
MAPS = ("local", "sinks", "spread", "shift", "soft", "far")


def sample(
    *,
    lengths: tuple[int, ...] = (64, 128),
    layers: int = 4,
    heads: int = 6,
    seconds: bool = True,
    bounds: bool = True,
    complete: bool = True,
    seed: int = 0,
) -> Report:
    """Layer 0 is causal and has a bias, the last but one is a grid behind a class token, the last is cross-attention."""
    refusal = None if seconds else "the machine was too busy to time anything"
    sections = tuple(_section(length, layers, heads, seconds, bounds, seed) for length in lengths)
    timing = Timing("a synthetic machine", 1, refusal)
    return Report("a <b>synthetic</b> model", "text & more", 3e-7, FORMS, timing, complete, sections)


def _section(length: int, layers: int, heads: int, seconds: bool, bounds: bool, seed: int) -> Section:
    made = tuple(_layer(index, layers, length, heads, seconds, bounds, seed) for index in range(layers))
    return Section(length, 16, 16, tuple(WORDS.split()[: min(32, length)]), made)


def _layer(index: int, layers: int, length: int, heads: int, seconds: bool, bounds: bool, seed: int) -> Layer:
    causal = index == 0
    cross, image = index == layers - 1 and layers > 2, index == layers - 2 and layers > 2
    side = math.isqrt(length)
    grid, special = ((side, side), 1) if image else ((length,), 0)
    keys = side * side + 1 if image else length
    queries = length // 2 if cross else keys
    refusals = {"convolution-15": "offsets between two sequences mean nothing"} if cross else {}
    refusals |= {"kernel-taylor2": "the scores have a bias, which no kernel of q and k gives"} if causal else {}
    forms = [name for name in FORMS if name not in refusals]
    kinds = [MAPS[(index + head) % len(MAPS)] for head in range(heads)]
    generator = torch.Generator().manual_seed(seed + 1000 * index + length)
    common = (causal, grid, special, cross, forms, bounds)
    made = tuple(_head(kind, queries, keys, *common, generator) for kind in kinds)
    return Layer(
        module=f"encoder.layer.{index}.{'cross_attention' if cross else 'attention.self'}",
        call=0,
        role="cross" if cross else "self",
        causal=causal,
        structured=index == 1,
        queries=queries,
        keys=keys,
        grid=grid,
        special=special,
        head_dim=32,
        kv_heads=max(1, heads // 2),
        extras=("bias",) if causal else (),
        refusals=refusals,
        costs=_costs(queries, keys, heads, forms, seconds),
        heads=made,
    )


def _costs(queries: int, keys: int, heads: int, forms: list[str], seconds: bool) -> dict[str, FormCost]:
    pairs = {"attention": keys, "mean": 1, "convolution-15": 15, "window-32": 33, "window-32+sinks": 35, "graph-16": 16}
    pairs |= {"kernel-taylor2": 40, "nystrom-16": 32, "hybrid-32": 75}
    costs = {}
    for name in ("attention", *forms):
        if name in pairs:
            flops = 4.0 * 32 * heads * queries * pairs[name]
            overhead = 8e-5 if name == "attention" else 2.4e-4
            state = {"convolution-15": 15 * 128 * heads, "window-32": 32 * 256 * heads}.get(name)
            costs[name] = FormCost(overhead + flops / 4e10 if seconds else None, flops, state)
    return costs


def _scores(kind: str, queries: int, keys: int, generator: torch.Generator) -> Tensor:
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    noise = torch.randn(queries, 16, generator=generator) @ torch.randn(16, keys, generator=generator) / 4
    sinks = (j == 0) * 1.0
    return {
        "local": noise * 0.6 - (i - j).abs() / 3,
        "sinks": noise * 1.5 + 5.0 * sinks - (i - j).abs() / 8,
        "spread": noise * 0.3,
        "shift": -4.0 * (i - j - 1).abs() + 0.0 * noise,
        "soft": noise * 2.5,
        "far": noise + 2.0 * ((i - j) % 9 == 0) + 2.0 * sinks,
    }[kind]


def _head(
    kind: str,
    queries: int,
    keys: int,
    causal: bool,
    grid: tuple[int, ...],
    special: int,
    cross: bool,
    forms: list[str],
    bounds: bool,
    generator: torch.Generator,
) -> Head:
    keep = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        keep = keep.tril()
    scores = _scores(kind, queries, keys, generator).masked_fill(~keep, -torch.inf)
    v = torch.randn(keys, 32, generator=generator) + torch.randn(32, generator=generator) * 0.4
    weights = scores.softmax(-1)
    errors = _errors(scores, keep, v)
    errors = {name: errors[name] for name in forms}
    fits = [FORMS[name].kind for name, e in errors.items() if not FORMS[name].oracle and (e.centred or e.raw) <= 0.1]
    tails = {name: _tail(block, float(weights.norm())) for name, block in _bounded(weights, causal).items()}
    return Head(
        kind=fits[0] if fits else None,
        errors=errors,
        structure=_structure(weights, cross),
        bounds=tails if bounds else {},
        views=_views(weights, grid, special, cross),
    )


def _errors(scores: Tensor, keep: Tensor, v: Tensor) -> dict[str, FormError]:
    i, j = torch.arange(scores.shape[0])[:, None], torch.arange(scores.shape[1])
    weights, near, sinks = scores.softmax(-1), (i - j).abs() <= 16, (j == 0).expand(scores.shape)
    level = scores.masked_fill(~keep, 0.0)
    kernel = ((1 + level + level**2 / 2) * keep).clamp(min=0)
    joint = torch.where(near, level.exp(), 1 + level + level**2 / 2).clamp(min=0) * keep
    fixed = torch.zeros_like(keep).scatter_(1, weights.mean(0).topk(16).indices.expand(scores.shape[0], -1), True)
    left, values, right = torch.linalg.svd(weights, full_matrices=False)
    offset = (j - i).clamp(-7, 7) + 7
    taps = torch.stack([torch.nan_to_num(weights[(j - i) == o].mean()) for o in range(-7, 8)])
    strongest = torch.zeros_like(keep).scatter_(1, scores.topk(min(16, int(keep.sum(-1).max()))).indices, True) & keep

    def softmax(edges: Tensor) -> Tensor:
        return scores.masked_fill(~edges, -torch.inf).softmax(-1).nan_to_num()

    approximations = {
        "mean": keep / keep.sum(-1, keepdim=True),
        "convolution-15": taps[offset] * ((j - i).abs() <= 7) * keep,
        "window-32": softmax(near & keep),
        "window-32+sinks": softmax((near | sinks) & keep),
        "graph-16": softmax((fixed | (i == j)) & keep),
        "kernel-taylor2": kernel / kernel.sum(-1, keepdim=True).clamp(min=1e-9),
        "nystrom-16": left[:, :16] * values[:16] @ right[:16],
        "hybrid-32": joint / joint.sum(-1, keepdim=True).clamp(min=1e-9),
        "top-16": softmax(strongest),
    }
    y = weights @ v
    varying = float((y - y.mean(0)).norm())
    constant = varying <= 0.2 * float(y.norm())
    misses = {name: float((y - a @ v).norm()) for name, a in approximations.items()}
    size = float(y.norm())
    return {name: FormError(miss / size, None if constant else miss / varying) for name, miss in misses.items()}


def _bounded(weights: Tensor, causal: bool) -> dict[str, Tensor]:
    half = weights.shape[0] // 2
    return {"kernel": weights[half:, :half] if causal else weights, "hybrid": weights[half:, : max(1, half - 16)]}


def _tail(block: Tensor, norm: float) -> dict[str, float]:
    values = torch.linalg.svdvals(block.double()).square()
    return {str(rank): float(values[rank:].sum().sqrt()) / norm for rank in (8, 16, 32, 64, 128)}


def _structure(weights: Tensor, cross: bool) -> dict[str, float | None]:
    i, j = torch.arange(weights.shape[0])[:, None], torch.arange(weights.shape[1])
    sinks = float(weights[:, 0].mean())
    near = float((weights * ((i - j).abs() <= 16))[:, 1:].sum(-1).mean()) / max(1e-9, 1 - sinks)
    known: dict[str, float | None] = {
        "effective_degree": float(torch.special.entr(weights).sum(-1).exp().mean()),
        "sink_mass": sinks,
        "window_mass": None if cross else min(1.0, near),
        "offset_share": None if cross else float(1 - weights.var() / (weights.var() + weights.mean() ** 2)),
    }
    strongest = weights.sort(-1, descending=True).values.cumsum(-1)
    known["edges_95"] = float((strongest < 0.95).sum(-1).float().mean() + 1)
    known["rank"] = float((torch.linalg.svdvals(weights) > 0.05 * weights.norm()).sum())
    return {name: known.get(name) for name in STRUCTURE}


def _views(weights: Tensor, grid: tuple[int, ...], special: int, cross: bool) -> Views:
    side = min(64, *weights.shape)
    cells = torch.nn.functional.adaptive_avg_pool2d(weights[None], side)[0]
    peak = float(cells.max())
    levels = (255 * (cells / peak).sqrt()).round().to(torch.uint8)
    excerpt = weights[:32, :32]
    values, order = excerpt.flatten().topk(40)
    width = excerpt.shape[1]
    pairs = zip(values.tolist(), order.tolist(), strict=True)
    edges = [(at // width, at % width, float(f"{weight:.3g}")) for weight, at in pairs]
    reach = [] if cross else [min(64, size - 1) for size in grid]
    i, j = torch.arange(weights.shape[0])[:, None], torch.arange(weights.shape[1])
    distances = [d for d in (0, 1, 2, 4, 8, 16, 31, 64, 127) if d < (max(grid) if len(grid) > 1 else weights.shape[1])]
    past = [] if cross else [float(weights[(i - j) > d].sum()) / len(weights) for d in distances]
    future = [] if cross else [float(weights[(j - i) > d].sum()) / len(weights) for d in distances]
    return Views(
        side=side,
        peak=peak,
        matrix=base64.b64encode(bytes(levels.flatten().tolist())).decode(),
        kernel=[] if cross else _kernel(weights, grid, special, reach),
        reach=reach,
        edges=[edge for edge in edges if edge[2] >= 0.01],
        edge_share=float(values.sum()) / 32,
        distances=[] if cross else distances,
        beyond_past=past,
        beyond_future=future,
    )


def _kernel(weights: Tensor, grid: tuple[int, ...], special: int, reach: list[int]) -> list[float]:
    cells = torch.cartesian_prod(*[torch.arange(size) for size in grid]).reshape(-1, len(grid))
    offsets = cells[None] - cells[:, None] + torch.tensor(reach)
    number = torch.zeros(offsets.shape[:2], dtype=torch.long)
    inside = ((offsets >= 0) & (offsets <= 2 * torch.tensor(reach))).all(-1)
    for at, size in enumerate(reach):
        number = number * (2 * size + 1) + offsets[..., at]
    bins = math.prod(2 * size + 1 for size in reach)
    placed = weights[special:, special:][inside].double()
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, number[inside], placed)
    means = sums / torch.bincount(number[inside], minlength=bins).clamp(min=1)
    return [float(f"{value:.3g}") for value in means.tolist()]


def without_views(report: Report, copies: tuple[int, int]) -> Report:
    """A large report: copies[0] layers with copies[1] heads each, all like those of the first section."""
    section = report.sections[0]
    heads = [head for layer in section.layers for head in layer.heads]
    row = tuple(heads[at % len(heads)] for at in range(copies[1]))
    layers = tuple(dataclasses.replace(section.layers[at % 2], heads=row) for at in range(copies[0]))
    return dataclasses.replace(report, sections=(dataclasses.replace(section, layers=layers),))
