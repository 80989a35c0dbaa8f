"""The geometry of a convolution: its box of taps, strides and borders, and the padded senders it slides over."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.algebra import Edges, Layout, Stencil
from quadform.algebra._stencil import border_map


@dataclass(frozen=True, eq=False)
class Frame:
    """Receiver o reads the senders o * stride + t * dilation - low of each tap t in a box of `kernel` taps.

    Attributes:
        kernel, stride, dilation, low, high, grid, out: one number a dimension; `out` is the grid of receivers.
        border: as in Stencil.
        taps: (T,) bool, which cells of the box are taps; None where all are.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    grid: tuple[int, ...]
    out: tuple[int, ...]
    border: str
    taps: Tensor | None = None

    @property
    def receivers(self) -> int:
        return math.prod(self.out)

    def offsets(self, device: torch.device) -> Tensor:
        """(T, g) offset of each cell of the box from its receiver, where the stride is 1."""
        cells = list(itertools.product(*map(range, self.kernel)))
        index = torch.tensor(cells, dtype=torch.int64, device=device).reshape(-1, len(self.kernel))
        step, low = (torch.tensor(x, device=device) for x in (self.dilation, self.low))
        return index * step - low


def stencil_frame(stencil: Stencil, grid: tuple[int, ...]) -> Frame:
    """The frame of a Stencil on a grid of senders."""
    dims = stencil.dims
    kernel, stride, dilation = (
        x if isinstance(x, tuple) else (x,) * dims for x in (stencil.kernel, stencil.stride, stencil.dilation)
    )
    low, high = zip(*stencil.pads, strict=True)
    return Frame(kernel, stride, dilation, low, high, grid, stencil.output_grid(grid), stencil.border)


def offsets_frame(edges: Edges, at: Layout) -> Frame | None:
    """The frame of edges that are the same around every receiver: the box of their offsets; None for other edges."""
    offsets = edges.offsets(at) if at.shift is not None else None
    if offsets is None or at.shift is None:
        return None
    grid = at.grid
    if len(grid) > 1 and (at.queries != at.keys or at.shift):
        return None
    if not offsets.shape[0]:
        offsets = offsets.new_zeros(1, len(grid))
        taps = torch.zeros(1, dtype=torch.bool, device=offsets.device)
        kernel, least, step = (1,) * len(grid), (0,) * len(grid), (1,) * len(grid)
    else:
        least = tuple(offsets.amin(0).tolist())
        most = tuple(offsets.amax(0).tolist())
        step = tuple(
            math.gcd(*(offsets[:, d] - least[d]).tolist()) or 1 if least[d] < most[d] else 1 for d in range(len(grid))
        )
        kernel = tuple((most[d] - least[d]) // step[d] + 1 for d in range(len(grid)))
        cell = torch.zeros_like(offsets[:, 0])
        for d in range(len(grid)):
            cell = cell * kernel[d] + (offsets[:, d] - least[d]) // step[d]
        taps = torch.zeros(math.prod(kernel), dtype=torch.bool, device=offsets.device)
        taps[cell] = True
    shift = at.shift if len(grid) == 1 else 0
    out = (at.queries,) if len(grid) == 1 else grid
    low = tuple(-x for x in least)
    span = [n - 1 + step[d] * (kernel[d] - 1) for d, n in enumerate(out)]
    high = tuple(span[d] - low[d] - (grid[d] - 1) + (shift if d == 0 else 0) for d in range(len(grid)))
    if shift:
        low = (low[0] - shift, *low[1:])
    everything = None if bool(taps.all()) else taps
    return Frame(kernel, (1,) * len(grid), step, low, high, grid, out, "renormalise", everything)


def pad(x: Tensor, frame: Frame, fill: float = 0.0) -> Tensor:
    """x (A, C, *grid) on the padded grid, border senders in place; `fill` stands where there is none.

    A negative pad crops.
    """
    for d, size in enumerate(frame.grid):
        axis = d - len(frame.grid)
        low, high = frame.low[d], frame.high[d]
        if frame.border in ("replicate", "circular", "reflect") and size:
            index = _border_index(frame, d, x.device)
            x = x.index_select(axis, index)
        elif low or high:
            widths = [0, 0] * (len(frame.grid) - 1 - d) + [low, high]
            short = size + low + high < 0
            x = x.new_full(_resized(x.shape, axis, 0), fill) if short else F.pad(x, widths, value=fill)
    return x


def unpad(x: Tensor, frame: Frame) -> Tensor:
    """The adjoint of `pad`: what lies on a border goes back to the sender that stands there."""
    for d, size in enumerate(frame.grid):
        axis = d - len(frame.grid)
        low = frame.low[d]
        if frame.border in ("replicate", "circular", "reflect") and size:
            index = _border_index(frame, d, x.device)
            x = x.new_zeros(_resized(x.shape, axis, size)).index_add(axis, index, x)
        else:
            missing = max(size - (x.shape[axis] - low), 0)
            x = F.pad(x, [0, 0] * (len(frame.grid) - 1 - d) + [0, missing]).narrow(axis, low, size)
    return x


def _border_index(frame: Frame, d: int, device: torch.device) -> Tensor:
    """The sender that stands in each cell of the padded dimension d, for a border that maps to senders."""
    point = torch.arange(-frame.low[d], frame.grid[d] + frame.high[d], device=device)
    return border_map(point, torch.tensor(frame.grid[d], device=device), frame.border)[0]


def _resized(shape: torch.Size, axis: int, size: int) -> list[int]:
    out = list(shape)
    out[axis] = size
    return out


def slide(x: Tensor, taps: Tensor, frame: Frame) -> Tensor:
    """Depthwise convolution: x (A, H, *padded grid) with taps (H, T) to (A, H, *out).

    Reference (one dimension):

        out[a, h, o] = sum(taps[h, t] * x[a, h, o * stride + t * dilation] for t in range(T))
    """
    shape = (x.shape[0], x.shape[1], *frame.out)
    if 0 in shape:
        return x.sum() * 0 + taps.sum() * 0 + x.new_zeros(shape)
    kernel = taps.reshape(x.shape[1], 1, *frame.kernel)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(frame.grid) - 1]
    return convolve(x, kernel, None, frame.stride, 0, frame.dilation, x.shape[1])


def spread(x: Tensor, taps: Tensor, frame: Frame) -> Tensor:
    """The adjoint of `slide`: x (A, H, *out) to (A, H, *padded grid), or as much of it as the taps reach."""
    padded = [n + a + b for n, a, b in zip(frame.grid, frame.low, frame.high, strict=True)]
    if 0 in (x.shape[0], x.shape[1], *frame.out):
        return x.sum() * 0 + taps.sum() * 0 + x.new_zeros(x.shape[0], x.shape[1], *padded)
    kernel = taps.reshape(x.shape[1], 1, *frame.kernel)
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(frame.grid) - 1]
    return convolve(x, kernel, None, frame.stride, 0, 0, x.shape[1], frame.dilation)


def tap_slices(x: Tensor, frame: Frame) -> list[Tensor]:
    """For each cell of the box, the view (A, H, *out) of x (A, H, *padded grid) that it reads."""
    out = []
    for cell in itertools.product(*map(range, frame.kernel)):
        part = x
        for d, t in enumerate(cell):
            axis = x.dim() - len(frame.grid) + d
            first = min(t * frame.dilation[d], x.shape[axis])
            part = part.narrow(axis, first, x.shape[axis] - first)
            part = part[(slice(None),) * axis + (slice(None, None, frame.stride[d]),)].narrow(axis, 0, frame.out[d])
        out.append(part)
    return out
