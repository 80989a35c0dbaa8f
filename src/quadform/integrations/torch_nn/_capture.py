"""The capture adapter for plain PyTorch modules."""

from __future__ import annotations

from torch import nn

from quadform.inspect import Capture, Grid
from quadform.integrations._attention_modules import by_hand, calls_attention, derives_from
from quadform.integrations._module_capture import ModuleCapture


def torch_capture(grid: Grid | None = None) -> Capture:
    """Capture of any module that computes attention by nn.MultiheadAttention or PyTorch's attention functions.

    Args:
        grid: where the tokens stand, such as `Grid((14, 14), special=1)`; used by calls with as many keys.
    """
    return ModuleCapture(None if grid is None else lambda model, batch: grid)


def has_attention(model: nn.Module) -> bool:
    """Whether a model is one for `torch_capture`: with attention inside, and of no library with an adapter of its own.

    Attention that a module computes by hand counts too: capture then names the module that it refuses.
    """
    modules = list(model.modules())
    if derives_from(model, "transformers") or any(derives_from(module, "timm") for module in modules):
        return False
    return any(calls_attention(module) or by_hand(module) for module in modules)
