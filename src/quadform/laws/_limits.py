"""Law 6: mixers that become the same at a limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from quadform.algebra import (
    All,
    Buckets,
    Causal,
    Dynamic,
    Edges,
    PairBias,
    Polynomial,
    Similarity,
    Softmax,
    Stencil,
    Table,
    Taps,
    TopK,
    Uniform,
    Via,
    Weights,
    Window,
)
from quadform.algebra._weights import Kernel
from quadform.forms import attend
from quadform.laws._cases import DTYPES, Case
from quadform.laws._oracle import accepting
from quadform.laws._outcome import TOLERANCE, Outcome, distance
from quadform.laws._tensors import Source

Mixer = tuple[Edges, Weights, dict[str, Any]]
BORDERS = ("zeros", "renormalise", "replicate", "circular", "reflect")


def _full_window(n: int, source: Source) -> tuple[Mixer, Mixer]:
    return (Window(n, n), Softmax(), {}), (All(), Softmax(), {})


def _causal_window(n: int, source: Source) -> tuple[Mixer, Mixer]:
    return (Window(n), Softmax(), {}), (Causal(), Softmax(), {})


def _one_bucket(n: int, source: Source) -> tuple[Mixer, Mixer]:
    return (Buckets(source.rng.randint(1, 5), 1), Softmax(), {}), (All(), Softmax(), {})


def _one_causal_bucket(n: int, source: Source) -> tuple[Mixer, Mixer]:
    return (Causal() & Buckets(source.rng.randint(1, 5), 1), Softmax(), {}), (Causal(), Softmax(), {})


def _all_ranked(n: int, source: Source) -> tuple[Mixer, Mixer]:
    return (TopK(max(n, 1)), Softmax(), {}), (All(), Softmax(), {})


def _identity_projection(n: int, source: Source) -> tuple[Mixer, Mixer]:
    eye = torch.eye(max(n, 1), n, dtype=torch.float64)[None]
    return (All(), Via(max(n, 1), Taps(), Softmax()), {"projection": eye}), (All(), Softmax(), {})


def _identity_pooling(n: int, source: Source) -> tuple[Mixer, Mixer]:
    return (All(), Via(max(n, 1), Uniform("mean"), Softmax()), {}), (All(), Softmax(), {})


def _lightweight(n: int, source: Source) -> tuple[Mixer, Mixer]:
    """Taps normalised by a softmax, over every tap, are softmax attention with those scores and the same border rule."""
    border, kernel = source.rng.choice(BORDERS[:1] + BORDERS[2:]), source.rng.choice((1, 2, 3, 5))
    stencil = Stencil(kernel, border=border)
    scores, low = source.normal(2, kernel), stencil.pads[0][0]
    bias = Table(low, kernel - 1 - low)
    one = (stencil, Taps(), {"taps": torch.softmax(scores, -1)})
    return one, (stencil, Softmax(content=False, bias=bias), {"table": scores})


def _dynamic(n: int, source: Source) -> tuple[Mixer, Mixer]:
    """Dynamic convolution is attention whose scores the receiver predicts; beyond the border nobody is there."""
    kernel = source.rng.choice((1, 2, 3, 5))
    stencil = Stencil(kernel, border="renormalise")
    logits, low = source.normal(2, 2, n, kernel), stencil.pads[0][0]
    bias = torch.zeros(2, 2, n, n, dtype=torch.float64)
    for i in range(n):
        for t in range(kernel):
            if 0 <= i + t - low < n:
                bias[:, :, i, i + t - low] = logits[:, :, i, t]
    other = (Window(low, kernel - 1 - low), Softmax(content=False, bias=PairBias()), {"bias": bias})
    return (stencil, Dynamic(), {"logits": logits}), other


def _flat_scores(n: int, source: Source) -> tuple[Mixer, Mixer]:
    return (Causal(), Softmax(content=False, bias=Table(0, 0)), {"table": source.normal(2, 1)}), (
        Causal(),
        Uniform("mean"),
        {},
    )


def _polynomial(n: int, source: Source) -> tuple[Mixer, Mixer]:
    degree = source.rng.choice((2, 4))
    offset = source.rng.choice((1.0, 0.5))
    similarity = Similarity("polynomial", degree, offset=offset)
    return (Causal(), Kernel(Polynomial(degree, offset)), {}), (Causal(), similarity, {})


LIMITS: dict[str, Callable[[int, Source], tuple[Mixer, Mixer]]] = {
    "a window over everything is All": _full_window,
    "a long window is Causal": _causal_window,
    "one bucket is All": _one_bucket,
    "one causal bucket is Causal": _one_causal_bucket,
    "TopK(N) is All": _all_ranked,
    "projection by the identity is All": _identity_projection,
    "pooling to N nodes is All": _identity_pooling,
    "lightweight convolution is attention": _lightweight,
    "dynamic convolution is attention": _dynamic,
    "equal scores are a mean": _flat_scores,
    "a polynomial kernel is its similarity": _polynomial,
}
SUBJECTS = tuple(LIMITS)


def limits(subject: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """Every form of the one mixer against the dense float64 form of the other."""
    source = Source.of("limits", subject, seed, dtype)
    n, head_dim = source.size(0, 40, limit), source.size(1, 6, limit)
    (edges, weights, named), (other, same, its) = LIMITS[subject](n, source)
    q, k = (source.normal(2, 2, n, head_dim) / (4 if "polynomial" in subject else 1) for _ in range(2))
    if "bucket" in subject:
        q = k  # shared queries and keys, as in Reformer
    v, exact = source.normal(2, 2, n, 3), DTYPES[dtype]
    case = Case("limits", seed, exact, edges, weights, q, k, v, named)
    expected = attend(q, k, v, other, same, tensors=its, form="dense")
    plain = Case("limits", seed, exact, other, same, q, k, v, its)
    out = []
    for one in (case, plain):
        for form in accepting(one):
            error = distance(one.attend(form), expected)
            out.append(Outcome("limits", subject, form, dtype, error, TOLERANCE[exact], one.describe()))
    return out or [Outcome("limits", subject, "dense", dtype, math.inf, 0.0, "no form accepts the case")]
