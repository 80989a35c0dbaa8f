"""Which modules of a model compute attention, and whether by functions that capture knows."""

from __future__ import annotations

import inspect as source
import re

from torch import nn

from quadform._errors import QuadformError

_CALLS = re.compile(r"scaled_dot_product_attention\(|multi_head_attention_forward\(")
_BY_HAND = re.compile(
    r"softmax\(.*?(@|matmul\(|bmm\(|einsum\()|flex_attention\(|memory_efficient_attention\(", re.DOTALL
)
_PRODUCT = re.compile(r"@|matmul\(|bmm\(|einsum\(")


def attention_modules(model: nn.Module) -> list[str]:
    """Names of all modules that compute attention through PyTorch's functions.

    Raises:
        QuadformError: there is none, a module computes attention by hand, or the model is compiled.
    """
    found = []
    for name, module in model.named_modules():
        shown = name or type(model).__name__
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise QuadformError(f"{shown}: a compiled module; capture the model before torch.compile")
        if calls_attention(module):
            found.append(shown)
        elif by_hand(module):
            raise QuadformError(
                f"{shown} ({type(module).__module__}.{type(module).__name__}) computes attention in its own way, not "
                "through PyTorch's attention functions, so it cannot be captured"
            )
    if not found:
        raise QuadformError(f"{type(model).__name__}: no module calls PyTorch's attention functions")
    return found


def calls_attention(module: nn.Module) -> bool:
    """Whether a module is an nn.MultiheadAttention or its forward calls one of PyTorch's attention functions."""
    return isinstance(module, nn.MultiheadAttention) or bool(_CALLS.search(_forward_source(type(module))))


def by_hand(module: nn.Module) -> bool:
    """Whether a module's forward looks like attention of its own: a product behind a softmax, or another library's."""
    text = _forward_source(type(module))
    if calls_attention(module):
        return False
    softmax = any(isinstance(child, nn.Softmax) for child in module.children())
    return bool(_BY_HAND.search(text)) or (softmax and bool(_PRODUCT.search(text)))


def derives_from(model: nn.Module, library: str) -> bool:
    """Whether a class of the model's is from a library; imports nothing."""
    return any(base.__module__.partition(".")[0] == library for base in type(model).__mro__)


def _forward_source(kind: type[nn.Module]) -> str:
    try:
        return source.getsource(kind.forward)
    except (OSError, TypeError):
        return ""
