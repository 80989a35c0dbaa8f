"""What the tensors of a state must be, whoever wrote them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra import parse

ENTRIES = {
    "kernel": ("S", "z"),
    "tail": ("tail_v", "tail_valid"),
    "hybrid": ("S", "z", "tail_k", "tail_v", "tail_valid"),
}
FURTHEST = 1 << 48
"""Positions of a stream that is still believed."""


def check_state(kind: str, mixer: str, length: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Errors: ArgumentError for entries that no such state has, shapes or dtypes that do not belong together, lengths that no
    stream has, and numbers that are not finite."""
    for name in tensors:
        if name not in ENTRIES[kind] and name not in _further(kind, mixer, name):
            raise ArgumentError("tensors", f"entries of a {kind} state of {mixer}", repr(name))
    if length.numel() and not 0 <= int(length.amin()) <= int(length.amax()) <= FURTHEST:
        raise ArgumentError("tensors['length']", f"numbers from 0 to {FURTHEST}", str(length.tolist()[:8]))
    if "S" in tensors:
        S, z = tensors["S"], tensors["z"]
        if S.dim() != 4 or z.shape != S.shape[:3]:
            raise ArgumentError(
                "tensors['S']", "S (B, H, m, D) beside z (B, H, m)", f"{tuple(S.shape)}, {tuple(z.shape)}"
            )
        if S.dtype not in (torch.float32, torch.float64) or z.dtype != S.dtype:
            raise ArgumentError("tensors['S']", "sums of float32 or float64", f"{S.dtype}, {z.dtype}")
    for prefix in ("tail_", "sink_"):
        _check_senders(prefix, tensors)
    for name, x in tensors.items():
        check_finite(name, x)


def _further(kind: str, mixer: str, name: str) -> tuple[str, ...]:
    """Entries that only some states of a kind have: keys, sinks, and what the weights read of each sender."""
    prefix, _, rest = name.partition("_")
    if kind == "kernel" or prefix not in ("tail", "sink"):
        return ()
    own = {"k", "v", "valid"}
    try:
        own |= {spec.name for spec in parse(mixer.partition(" on ")[0]).specs() if "K" in spec.dims}
    except (ArgumentError, AttributeError):
        own.add(rest)  # weights of the caller's own, which no text can build
    return (name,) if rest in own else ()


def _check_senders(prefix: str, tensors: Mapping[str, Tensor]) -> None:
    valid, v, k = (tensors.get(prefix + name) for name in ("valid", "v", "k"))
    if valid is None and not any(name.startswith(prefix) for name in tensors):
        return
    if valid is None or v is None:
        raise ArgumentError("tensors", f"entries '{prefix}v' and '{prefix}valid'", str(sorted(tensors)))
    if valid.dtype != torch.bool or valid.dim() != 2:
        raise ArgumentError(f"tensors['{prefix}valid']", "a bool tensor (B, R)", f"{valid.dtype} {tuple(valid.shape)}")
    for name, x in (("v", v), ("k", k)):
        if x is None:
            continue
        if not x.is_floating_point() or x.dim() != 4 or x.shape[2] != valid.shape[1] or x.shape[1] != v.shape[1]:
            wanted = f"floating-point numbers (B, {v.shape[1] if v.dim() > 1 else 'H'}, {valid.shape[1]}, D)"
            raise ArgumentError(f"tensors['{prefix}{name}']", wanted, f"{x.dtype} {tuple(x.shape)}")


def check_finite(name: str, x: Tensor) -> None:
    """Errors: ArgumentError for NaN or infinity; a log-gate may be -inf."""
    if not x.is_floating_point():
        return
    good = x.isfinite()
    if name.endswith("log_decay"):
        good = good | (x == -torch.inf)
    if not bool(good.all()):
        raise ArgumentError(f"tensors[{name!r}]", "finite numbers", f"{int((~good).sum())} that are not")
