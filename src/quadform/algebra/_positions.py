"""Positions that act on q and k before the mixer."""

from __future__ import annotations

import torch
from torch import Tensor

from quadform._errors import ArgumentError


def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, interleaved: bool = False) -> Tensor:
    """Rotates pairs of features by angles that grow with the position, so that q'k depends on the offset alone.

        angle_p,f = p * base^(-2 f / D),    (a, b) -> (a cos - b sin, a sin + b cos)

    Args:
        x: (B, H, N, D) queries or keys; D is even.
        positions: (N,) or (B, N) integers. Angles are computed in float32 at least.
        base: the slowest pair turns once in about 2 pi base positions.
        interleaved: pairs are (0, 1), (2, 3), ...; otherwise (f, f + D / 2), as in Llama.

    Returns:
        (B, H, N, D) in the dtype of x.

    Source: Su et al. 2021, "RoFormer". Errors: ArgumentError for an odd D or positions of another shape.

    Reference:

        z = torch.complex(x[..., : D // 2], x[..., D // 2 :]) * torch.exp(1j * angle)
        y = torch.cat([z.real, z.imag], -1)
    """
    if x.dim() != 4 or x.shape[-1] % 2:
        raise ArgumentError("x", "a tensor (B, H, N, D) with an even D", str(tuple(x.shape)))
    if positions.is_floating_point() or positions.shape not in ((x.shape[2],), (x.shape[0], x.shape[2])):
        wanted = f"integers of shape ({x.shape[2]},) or ({x.shape[0]}, {x.shape[2]})"
        raise ArgumentError("positions", wanted, f"{positions.dtype} {tuple(positions.shape)}")
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    speed = base ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angle = positions.to(dtype)[..., None] * speed
    angle = angle[:, None] if angle.dim() == 3 else angle
    cos, sin, wide = angle.cos(), angle.sin(), x.to(dtype)
    a, b = (wide[..., 0::2], wide[..., 1::2]) if interleaved else (wide[..., :half], wide[..., half:])
    turned = a * cos - b * sin, a * sin + b * cos
    return (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).to(x.dtype)
