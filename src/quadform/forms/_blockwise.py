"""Evaluation in blocks of receivers, with memory for one block: the backward pass computes each block again.

Slicing under autograd would write a full-size gradient for each block, O(N^2 / block) traffic; here the blocks' gradients are
added in place into one tensor for each input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from quadform.algebra import Operands

Run = Callable[[Sequence[Operands]], Tensor]
CONTENT = {"q": ("B", "H", "Q", "M"), "k": ("B", "H", "K", "M"), "v": ("B", "H", "K", "V")}


@dataclass(frozen=True)
class Block:
    """The receivers `rows`, and of each bundle of operands the senders `columns`."""

    rows: slice
    columns: tuple[slice, ...]


def blockwise(bundles: Sequence[Operands], blocks: Sequence[Block], run: Run, shape: tuple[int, ...]) -> Tensor:
    """y (B, H, n, Dv) with y[:, :, block.rows] = run(the bundles cut to the block), for blocks that tile the rows.

    Differentiable in every tensor of the bundles; a second derivative goes through ordinary autograd.
    """
    plan = _Plan(tuple(bundles), tuple(blocks), run, shape)
    tensors = plan.flatten(bundles)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _Blockwise.apply(plan, *tensors)
    return plan.fill(tensors)


@dataclass(frozen=True, eq=False)
class _Plan:
    bundles: tuple[Operands, ...]
    blocks: tuple[Block, ...]
    run: Run
    shape: tuple[int, ...]

    def flatten(self, bundles: Sequence[Operands]) -> list[Tensor]:
        out: list[Tensor] = []
        for bundle in bundles:
            out += [x for x in (bundle.q, bundle.k, bundle.v) if x is not None]
            out += [x for x in bundle.tensors.values() if x.is_floating_point()]
        return out

    def rebuild(self, tensors: Sequence[Tensor]) -> list[Operands]:
        """The bundles with other values, in the order of `flatten`."""
        values = iter(tensors)
        out = []
        for bundle in self.bundles:
            content = {name: None if getattr(bundle, name) is None else next(values) for name in CONTENT}
            named = {name: next(values) if x.is_floating_point() else x for name, x in bundle.tensors.items()}
            out.append(dataclasses.replace(bundle, tensors=named, **content))  # type: ignore[arg-type]
        return out

    def cut(self, bundles: Sequence[Operands], block: Block) -> list[Operands]:
        return [b.block(block.rows, columns) for b, columns in zip(bundles, block.columns, strict=True)]

    def fill(self, tensors: Sequence[Tensor]) -> Tensor:
        bundles = self.rebuild(tensors)
        y = tensors[0].new_zeros(self.shape)
        for block in self.blocks:
            y[:, :, block.rows] = self.run(self.cut(bundles, block))
        return y

    def whole(self, tensors: Sequence[Tensor]) -> Tensor:
        """As `fill`, recorded by autograd."""
        bundles = self.rebuild(tensors)
        parts = [self.run(self.cut(bundles, block)).expand(*self.shape[:2], -1, -1) for block in self.blocks]
        return torch.cat(parts, 2) if parts else tensors[0].new_zeros(self.shape)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(*tensors)
        return plan.fill(tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, tensors = ctx.plan, ctx.saved_tensors
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        out: list[Tensor | None] = [None] * len(tensors)
        if torch.is_grad_enabled():
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has one derivative only
                y = plan.whole(tensors)
            found = torch.autograd.grad(y, [tensors[i] for i in wanted], grad, create_graph=True, allow_unused=True)
            for i, g in zip(wanted, found, strict=True):
                out[i] = g
            return (None, *out)
        for i in wanted:
            out[i] = torch.zeros_like(tensors[i])
        sums = plan.rebuild([tensors[i] if g is None else g for i, g in enumerate(out)])
        bundles = plan.rebuild([t.detach() for t in tensors])
        for block in plan.blocks:
            _add_block(plan, bundles, sums, block, grad, wanted)
        return (None, *out)


def _add_block(
    plan: _Plan, bundles: list[Operands], sums: list[Operands], block: Block, grad: Tensor, wanted: list[int]
) -> None:
    """Adds one block's gradients to the slices of the sums that it read."""
    pieces = plan.flatten(plan.cut(bundles, block))
    targets = plan.flatten(plan.cut(sums, block))
    leaves = [p.detach().requires_grad_(i in wanted) for i, p in enumerate(pieces)]
    cut = plan.cut(bundles, block)
    layouts = _Plan(tuple(cut), (), plan.run, plan.shape).rebuild(leaves)
    with torch.enable_grad():
        y = plan.run(layouts)
        y = y.expand(*plan.shape[:2], *y.shape[2:])
    if not y.requires_grad:
        return
    found = torch.autograd.grad(y, [leaves[i] for i in wanted], grad[:, :, block.rows], allow_unused=True)
    for i, g in zip(wanted, found, strict=True):
        if g is not None:
            targets[i].add_(g)
