"""Law 5: taps on a stencil are torch's convolution at every position; position-only attention is a normalised one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import All, Quadratic, Softmax, Stencil, Taps
from quadform.laws._cases import DTYPES, Case
from quadform.laws._oracle import accepting
from quadform.laws._outcome import TOLERANCE, Outcome, distance
from quadform.laws._tensors import Source

CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_T: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MODES = {
    "zeros": "constant",
    "renormalise": "constant",
    "replicate": "replicate",
    "circular": "circular",
    "reflect": "reflect",
}

SUBJECTS = (
    tuple(
        f"{kind} {dims}d {border}"
        for kind in ("convolution", "transposed")
        for dims in (1, 2, 3)
        for border in (*MODES, "valid")
    )
    + tuple(f"normalised 1d {border}" for border in (*MODES, "valid"))
    + ("peaked 1d", "peaked 1d masked")
)


def cnn(subject: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """Each accepting form against torch's own convolution, or against loops with each row's own maximum."""
    kind, dims, *rest = subject.split()
    source = Source.of("cnn", subject, seed, dtype)
    made = (
        _peaked(rest == ["masked"], source)
        if kind == "peaked"
        else (
            _normalised(rest[0], source, limit)
            if kind == "normalised"
            else _taps(kind, int(dims[0]), rest[0], source, limit)
        )
    )
    edges, weights, v, named, options, expected = made
    exact = DTYPES[dtype]
    case = Case("cnn", seed, exact, edges, weights, None, None, v, named, options)
    witness = case.describe()
    return [
        Outcome("cnn", subject, form, dtype, distance(case.attend(form), expected), TOLERANCE[exact], witness)
        for form in accepting(case)
    ]


def _stencil(dims: int, border: str, source: Source) -> Stencil:
    pick = source.rng.choice
    kernel = tuple(pick((1, 2, 3, 4)) for _ in range(dims))
    stride, dilation = (tuple(pick((1, 1, 2)) for _ in range(dims)) for _ in range(2))
    if border == "valid":
        return Stencil(kernel, stride, dilation, border="valid")
    spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    pads = tuple((source.rng.randint(0, s), source.rng.randint(0, s)) for s in spans)
    padding: Any = pick(("same", pads)) if dims > 1 else pick(("same", "causal", pads[0]))
    return Stencil(kernel, stride, dilation, padding, border)


def _taps(kind: str, dims: int, border: str, source: Source, limit: int | None) -> Any:
    stencil = _stencil(dims, border, source)
    least = [max(low, high, 1) + 1 for low, high in stencil.pads]  # reflection needs padding < size
    spans = [d * (k - 1) + 1 for k, d in zip(_each(stencil.kernel, dims), _each(stencil.dilation, dims), strict=True)]
    grid = tuple(max(a, s) + source.size(0, 9 if dims < 3 else 4, limit) for a, s in zip(least, spans, strict=True))
    heads, channels, batch = source.size(1, 3), source.size(1, 4, limit), source.size(1, 2)
    taps = source.normal(heads, stencil.taps)
    kernel = taps.repeat_interleave(channels, 0).reshape(heads * channels, 1, *_each(stencil.kernel, dims))

    def forward(image: Tensor) -> Tensor:
        widths = [w for pair in reversed(stencil.pads) for w in pair]
        padded = F.pad(image, widths, mode=MODES.get(border, "constant"))
        strides = {"stride": _each(stencil.stride, dims), "dilation": _each(stencil.dilation, dims)}
        return CONV[dims](padded, kernel, groups=heads * channels, **strides)

    image = source.normal(batch, heads * channels, *grid)
    if kind == "convolution":
        return (
            stencil,
            Taps(),
            _sequence(image, heads),
            {"taps": taps},
            {"grid": grid},
            _sequence(forward(image), heads),
        )
    # the transposed convolution is the derivative of the convolution by its input, on the least input of that output
    out_grid = stencil.output_grid(grid)
    grid = stencil.senders_grid(out_grid, stencil.count_senders(stencil.count_queries(0, grid), out_grid))
    image = source.normal(batch, heads * channels, *grid).requires_grad_()
    if any(g < a for g, a in zip(grid, least, strict=True)) and border in ("reflect", "circular"):
        return _taps(kind, dims, "zeros", source, limit)
    seen = source.normal(batch, heads * channels, *out_grid)
    expected = torch.autograd.grad(forward(image), image, seen)[0]
    if border == "zeros" and all(low == high for low, high in stencil.pads):
        own = CONV_T[dims](
            seen,
            kernel,
            groups=heads * channels,
            stride=_each(stencil.stride, dims),
            dilation=_each(stencil.dilation, dims),
            padding=tuple(low for low, _ in stencil.pads),
        )
        assert distance(own, expected) < 1e-12
    return stencil.T, Taps(), _sequence(seen, heads), {"taps": taps}, {"grid": out_grid}, _sequence(expected, heads)


def _normalised(border: str, source: Source, limit: int | None) -> Any:
    """Position-only softmax of any width, against loops over receivers and taps."""
    kernel, dilation = source.size(1, 5), source.size(1, 3)
    stencil = Stencil(kernel, dilation=dilation, border=border)
    n = source.size(1, 30, limit)
    v, centre, alpha = source.normal(2, 2, n, 3), source.normal(2, 1), 0.1 + 3 * source.uniform(2)
    count = stencil.output_size(n)
    expected = v.new_zeros(2, 2, count, 3)
    for head, o in itertools.product(range(2), range(count)):
        scores, senders = [], []
        for t in range(kernel):
            offset = t * dilation - stencil.pads[0][0]
            sender = _border(o + offset, n, border)
            if sender is not None:
                scores.append(-alpha[head] * (offset - centre[head, 0]) ** 2)
                senders.append(v[:, head, sender] if sender >= 0 else torch.zeros_like(v[:, head, 0]))
        if scores:
            w = torch.softmax(torch.stack(scores), 0)
            expected[:, head, o] = sum((w[i] * x for i, x in enumerate(senders)), torch.zeros_like(v[:, head, 0]))
    return stencil, Softmax(content=False, bias=Quadratic()), v, {"centre": centre, "alpha": alpha}, {}, expected


def _border(p: int, n: int, border: str) -> int | None:
    """The sender at an unwrapped position; -1 is the zero sender, None is no sender."""
    if 0 <= p < n:
        return p
    if border == "replicate":
        return min(max(p, 0), n - 1)
    if border == "circular":
        return p % n
    if border == "reflect":
        while not 0 <= p < n:
            p = 0 if n == 1 else -p if p < 0 else 2 * (n - 1) - p
        return p
    return -1 if border == "zeros" else None


def _peaked(masked: bool, source: Source) -> Any:
    """A head whose scores fall by 1e4 a step, looking beyond the border: its nearest kept key, never 0/0."""
    n, shift = 12, source.rng.choice((-5, 4, 20))
    v = source.normal(1, 1, n, 2)
    keep = torch.ones(1, n, dtype=torch.bool)
    if masked:
        keep[0, 1 : n - 1] = source.bits(n - 2)
    rows = []
    for i in range(n):
        gap = torch.where(keep[0], (torch.arange(n) - i - shift).double() - 0.25, torch.inf)
        rows.append(v[:, :, int(gap.abs().argmin())])
    named = {"centre": torch.tensor([[shift + 0.25]]).double(), "alpha": torch.tensor([1e4]).double()}
    weights = Softmax(content=False, bias=Quadratic())
    return All(), weights, v, named, {"key_mask": keep} if masked else {}, torch.stack(rows, 2)


def _sequence(image: Tensor, heads: int) -> Tensor:
    """(B, H * C, *grid) as (B, H, N, C)."""
    return image.unflatten(1, (heads, -1)).flatten(3).transpose(2, 3).detach()


def _each(value: Any, dims: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * dims
