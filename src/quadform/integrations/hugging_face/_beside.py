"""Attention that a model computes beside transformers' attention interface: found while it runs, and refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from quadform._errors import QuadformError

_KERNELS = (
    "scaled_dot_product",
    "flash_attention",
    "efficient_attention",
    "multi_head_attention",
    "transformer_encoder",
)
"""In the names of the operators that compute attention as a whole."""
_SOFTMAX = ("_softmax", "_safe_softmax")
_PRODUCTS = ("mm", "bmm", "baddbmm", "matmul")
_SAME = ("_to_copy", "clone", "native_dropout", "dropout", "mul")
"""Operators whose result still holds the weights that they were given."""


class Watch(TorchDispatchMode):
    """Within it, attention that is computed outside `paused()` raises QuadformError.

    Attention is one of PyTorch's attention kernels, a softmax of four dimensions or more (heads of their own, or points
    of deformable attention), or one of three whose weights go into a matrix product (heads folded into the batch). A
    softmax over experts or classes is none of these.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {id(module): name or type(model).__name__ for name, module in model.named_modules()}
        self._weights: Tensor | None = None
        self._on = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches every operator until the end."""
        with self:
            self._on = True
            try:
                yield
            finally:
                self._on, self._weights = False, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not watch; for what capture itself computes."""
        if not self._on:
            yield
            return
        self._on = False
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()
            self._on = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _SOFTMAX and output.ndim > 2:
            if output.ndim > 3:
                self._refuse("takes a softmax of its own, which may be attention,")
            self._weights = output
        elif self._weights is not None:
            given = [x for x in args if isinstance(x, Tensor) and _shares(x, self._weights)]
            if given and name in _PRODUCTS:
                self._refuse()
            if given and name in _SAME:
                self._weights = output[0] if isinstance(output, tuple) else output
        if any(kernel in name for kernel in _KERNELS):
            self._refuse()
        return output

    def _refuse(self, does: str = "computes attention in its own way") -> None:
        raise QuadformError(
            f"{self._module()} {does} beside transformers' attention interface, so not all attention of the model can "
            "be captured; capture a part of the model without it"
        )

    def _module(self) -> str:
        """The innermost module of the model that is running."""
        frame = sys._getframe(1)
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and id(module) in self._names:
                return self._names[id(module)]
            frame = frame.f_back  # type: ignore[assignment]
        return "the model"


def _shares(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are views of the same numbers."""
    if a.layout != torch.strided or b.layout != torch.strided:
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata
