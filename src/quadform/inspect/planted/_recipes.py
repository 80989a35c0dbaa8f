"""Queries and keys whose softmax weights are of a known kind.

Every score is q_i'k_j, a sum over columns. Content columns are random and differ from sequence to sequence. Position
columns are clocks: cos and sin of 2 pi f t / 192, so that strengths b_f give the bump sum_f b_f cos(2 pi f (t_j - c_i) /
192) of the distance between a key's place t_j and the place c_i that a query looks for, while no score is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Generator, Tensor

SEQUENCES, LENGTH, WIDTH, NOISE = 8, 96, 8, 4
"""Sequences, tokens of each, columns of the values, columns of noise."""
VALUE_MEAN = 0.195
"""Mean of the values, which are normal with variance 1; the first token's value is 0."""

Columns: TypeAlias = tuple[Tensor, Tensor]
"""q and k, each (1 or SEQUENCES, 1, LENGTH, D); 1 where all sequences share them."""

NARROW = {1: 6.0, 3: 6.0, 9: 16.0}
"""A bump of standard deviation 0.8."""
BUMP = {1: 6.0, 3: 6.0, 9: 4.0}
"""A bump of standard deviation 1.6: eight places hold 99 % of it."""
FLAT = {1: 6.0, 3: 8.0, 6: -2.0}
"""-4 (1 - cos(2 pi 3 x / 192))^2 and a slow clock: flat for 10 places to each side, e^-4.8 at 16 and falling fast."""
FUZZY = {1: 3.0, 3: 1.6}
"""A bump of standard deviation 7."""
MASK = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
PLACES = torch.arange(LENGTH, dtype=torch.float64)
REACH, TAPS, SINKS = 16, 15, 4


@dataclass(frozen=True)
class Recipe:
    """A head to make: `make(generator, causal)` gives its q and k without noise."""

    kind: str
    causal: bool
    make: Callable[[Generator, bool], Columns]


def normal(generator: Generator, columns: int) -> Tensor:
    """(SEQUENCES, 1, LENGTH, columns), standard normal."""
    return torch.randn(SEQUENCES, 1, LENGTH, columns, generator=generator, dtype=torch.float64)


def visible(causal: bool) -> Tensor:
    """(LENGTH, LENGTH): which keys a query sees."""
    return MASK.tril() if causal else MASK


def clocks(looked_for: Tensor, places: Tensor, bump: dict[int, float]) -> Columns:
    """Columns whose scores are the bump of places_j - looked_for_i; both (..., LENGTH)."""
    frequency = torch.tensor(sorted(bump), dtype=torch.float64) * 2 * math.pi / (2 * LENGTH)
    strength = torch.tensor([bump[f] for f in sorted(bump)] * 2, dtype=torch.float64)

    def faces(time: Tensor) -> Tensor:
        angle = time[..., None] * frequency
        return torch.cat([angle.cos(), angle.sin()], -1)

    return strength * faces(looked_for), faces(places)


def content(generator: Generator, columns: int, spread: float) -> Columns:
    """Random columns whose scores have mean 0 and standard deviation `spread`."""
    return spread / math.sqrt(columns) * normal(generator, columns), normal(generator, columns)


def join(*parts: Columns) -> Columns:
    """The columns side by side, so that the scores add up."""

    def side_by_side(tensors: list[Tensor]) -> Tensor:
        full = [tensor.expand(*(1,) * (4 - tensor.ndim), *tensor.shape) for tensor in tensors]
        size = max(tensor.shape[0] for tensor in full)
        return torch.cat([tensor.expand(size, -1, -1, -1) for tensor in full], -1)

    return side_by_side([q for q, _ in parts]), side_by_side([k for _, k in parts])


def convolution(generator: Generator, causal: bool) -> Columns:
    """w_ij = w_(j - i): a narrow bump at a random offset.

    The first token's value is 0, and it takes the weight that a border cuts off: padding with zeros, by attention.
    """
    shift = torch.rand(1, generator=generator, dtype=torch.float64) * 6
    shift = -4 - shift if causal else shift - 3
    q, k = clocks(PLACES + shift, PLACES, NARROW)
    k[0] = 0.0
    taps = torch.arange(1 - TAPS, 1) if causal else torch.arange(TAPS) - TAPS // 2
    one, other = clocks(shift.expand(TAPS), taps.double(), NARROW)
    kernel = (one * other).sum(-1).exp()
    senders = PLACES[:, None] + taps
    outside = kernel.masked_fill((senders > 0) & (senders < LENGTH), 0.0).sum(-1)
    padding = (outside + 1e-6 * kernel.sum()).log()
    return join((q, k), (padding[:, None], mark([0])))


def window(generator: Generator, causal: bool) -> Columns:
    """Content scores within 16 tokens to each side, or among the last 32."""
    return join(near(causal), content(generator, 6, 1.0))


def window_and_sinks(generator: Generator, causal: bool) -> Columns:
    """A window, and sinks that hold about half of the weight: more or less of it by content."""
    (q, k), (query, key) = near(causal), content(generator, 6, 1.0)
    sinks = list(range(SINKS)) if causal else [0, LENGTH - 1]
    k[sinks] = 0.0
    key[:, :, sinks] = 0.0
    q, k = join((q, k), (query, key))
    scores = (q @ k.transpose(-1, -2)).masked_fill(~visible(causal), -math.inf)
    scores[..., sinks] = -math.inf
    total = scores.logsumexp(-1, keepdim=True).clamp(min=0.0)
    pull = total - math.log(len(sinks)) + 0.7 * normal(generator, 1)
    return join((q, k), (pull, mark(sinks)))


def fixed_graph(generator: Generator, causal: bool) -> Columns:
    """Eight senders of each receiver: neighbours of a random place in a random order of the tokens, always the same."""
    order = torch.randperm(LENGTH, generator=generator).double()
    looked_for = order[some_sender(generator, causal)] + 0.5
    return join(clocks(looked_for, order, BUMP), content(generator, 6, 1.0))


def strongest(generator: Generator, causal: bool) -> Columns:
    """As a fixed graph, but the order of the tokens is drawn anew for each sequence: content decides who sends."""
    parts = []
    for _ in range(SEQUENCES):
        order = torch.randperm(LENGTH, generator=generator).double()
        parts.append(clocks(order[some_sender(generator, causal)] + 0.5, order, NARROW))
    q, k = (torch.stack(columns)[:, None] for columns in zip(*parts, strict=True))
    return join((q, k), content(generator, 4, 0.5))


def kernel(generator: Generator, causal: bool) -> Columns:
    """Small scores: q and k on circles, the keys' around a centre that is not the origin."""
    columns, spread = 2, 0.435
    q, k = (torch.nn.functional.normalize(normal(generator, columns), dim=-1) for _ in range(2))
    centre = torch.randn(columns, generator=generator, dtype=torch.float64)
    return spread * math.sqrt(columns) * q, k + centre


def low_rank(generator: Generator, causal: bool) -> Columns:
    """Four groups of keys and six of queries, each of which takes two groups of keys (score 3) and leaves two (-3)."""
    pairs = torch.combinations(torch.arange(4))
    table = torch.full((len(pairs), 4), -3.0, dtype=torch.float64).scatter_(1, pairs, 3.0)
    groups = [torch.randint(size, (SEQUENCES, 1, LENGTH), generator=generator) for size in (len(pairs), 4)]
    return table[groups[0]], torch.eye(4, dtype=torch.float64)[groups[1]]


def mean(generator: Generator, causal: bool) -> Columns:
    """No scores to speak of."""
    return content(generator, 4, 0.02)


def mixed_content(generator: Generator, causal: bool) -> Columns:
    """Content scores of standard deviation 1.4 over all tokens."""
    return content(generator, 12, 1.4)


def mixed_leaky_window(generator: Generator, causal: bool) -> Columns:
    """Content scores over all tokens, and a faint bump: three quarters of the weight in the window, the rest anywhere."""
    q, k = near(causal, 0.12 if causal else 0.18)
    return join((q, k), content(generator, 8, 1.3))


def mixed_two_offsets(generator: Generator, causal: bool) -> Columns:
    """Tokens far to one side or far to the other (far or farther back), as content says, fuzzily."""
    far = torch.tensor([-24.0, -48.0] if causal else [-30.0, 30.0], dtype=torch.float64)
    choice = torch.randint(2, (SEQUENCES, 1, LENGTH), generator=generator)
    return join(clocks(PLACES + far[choice], PLACES, FUZZY), content(generator, 8, 1.0))


def near(causal: bool, strength: float = 1.0) -> Columns:
    """The flat bump over the window of 16 tokens to each side, or over the last 32."""
    bump = {frequency: strength * value for frequency, value in FLAT.items()}
    return clocks(PLACES - (REACH - 0.5 if causal else 0.0), PLACES, bump)


def mark(tokens: list[int]) -> Tensor:
    """(LENGTH, 1): 1 at the tokens."""
    column = torch.zeros(LENGTH, 1, dtype=torch.float64)
    column[tokens] = 1.0
    return column


def some_sender(generator: Generator, causal: bool) -> Tensor:
    """(LENGTH): a random token for each query, among those that it sees."""
    seen = visible(causal).sum(-1)
    return (torch.rand(LENGTH, generator=generator, dtype=torch.float64) * seen).long()


_MAKERS: tuple[tuple[str, str, Callable[[Generator, bool], Columns]], ...] = (
    ("convolution", "convolution", convolution),
    ("window", "window", window),
    ("window-sinks", "window + sinks", window_and_sinks),
    ("graph", "fixed graph", fixed_graph),
    ("top-k", "top-k", strongest),
    ("kernel", "kernel", kernel),
    ("low-rank", "low rank", low_rank),
    ("mean", "mean", mean),
    ("mixed-content", "mixed", mixed_content),
    ("mixed-leaky-window", "mixed", mixed_leaky_window),
    ("mixed-two-offsets", "mixed", mixed_two_offsets),
)

RECIPES: dict[str, Recipe] = {
    f"{name}-{'causal' if causal else 'bidirectional'}": Recipe(kind, causal, make)
    for name, kind, make in _MAKERS
    for causal in (False, True)
    if not (causal and kind == "low rank")  # a mask leaves no low rank
}
"""The heads by name."""
