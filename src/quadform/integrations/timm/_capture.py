"""The capture adapter for timm's models, and for modules that contain one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from quadform._errors import QuadformError
from quadform.inspect import Batch, Capture, Grid
from quadform.integrations._attention_modules import derives_from
from quadform.integrations._module_capture import ModuleCapture

_SWITCH = "fused_attn"
"""The attribute by which timm's attention modules choose PyTorch's function."""

_CHANNELS = ("XCA",)


def timm_capture() -> Capture:
    """Capture of timm's attention modules, all of them with fused attention for that time; an unknown one is refused."""
    return ModuleCapture(patch_grid, _fused)


def is_timm(model: nn.Module) -> bool:
    """Whether a model is or contains one of timm's, and is no Hugging Face model; imports nothing."""
    return not derives_from(model, "transformers") and any(derives_from(part, "timm") for part in model.modules())


def patch_grid(model: nn.Module, batch: Batch) -> Grid | None:
    """The grid of patches behind the class and register tokens; None for a model without one.

    A model for images of any size is asked for the grid of this batch's images.
    """
    for module in model.modules():
        patches = getattr(module, "patch_embed", None)
        size = getattr(patches, "grid_size", None)
        if patches is None or not derives_from(module, "timm") or not isinstance(size, tuple):
            continue
        images = [value for value in batch.values() if value.ndim == 4]
        if images and hasattr(patches, "dynamic_feat_size"):
            size = patches.dynamic_feat_size(tuple(images[0].shape[-2:]))
        return Grid(tuple(int(n) for n in size), int(getattr(module, "num_prefix_tokens", 0)))
    return None


@contextmanager
def _fused(model: nn.Module) -> Iterator[None]:
    """Within it, timm's attention modules call PyTorch's function instead of multiplying by hand.

    Raises:
        QuadformError: a module attends from channels to channels, which has no tokens to report on.
    """
    for name, module in model.named_modules():
        if derives_from(module, "timm") and type(module).__name__ in _CHANNELS:
            raise QuadformError(f"{name} ({type(module).__name__}) attends over channels, not over tokens")
    changed = [module for module in model.modules() if getattr(module, _SWITCH, None) is False]
    try:
        for module in changed:
            setattr(module, _SWITCH, True)
        yield
    finally:
        for module in changed:
            setattr(module, _SWITCH, False)
