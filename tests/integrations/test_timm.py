"""Capture of timm's vision Transformers: it is the model, with the patches' places, and refuses what it cannot name.

The models here are random. Without timm the same is tested on a module that is built as timm's are.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from quadform import QuadformError, inspect
from quadform.inspect import Captured, Grid, find_capture
from quadform.integrations.timm import is_timm, patch_grid, timm_capture
from quadform.integrations.torch_nn import has_attention

CAPTURE = timm_capture()
_LIBRARY: list[Any] = []
"""Keeps the operators of torchvision declared."""


@pytest.fixture(scope="module")
def timm() -> ModuleType:
    """timm itself. A torchvision built for another device does not load the operators that its own import asks for."""
    try:
        return importlib.import_module("timm")
    except ImportError:
        pytest.skip("timm is not installed")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] in {"timm", "torchvision"}]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARY.append(library)
        return importlib.import_module("timm")


def images(*, size: int, rows: int = 2, seed: int = 0) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(seed))}


def captured(model: nn.Module, batch: dict[str, torch.Tensor]) -> list[Captured]:
    calls: list[Captured] = []
    with torch.no_grad():
        assert CAPTURE.check(model, batch) <= 1e-6
        CAPTURE.run(model, batch, calls.append)
    return calls


class Attention(nn.Module):
    """Built as timm.layers.Attention is."""

    def __init__(self, width: int, heads: int, fused: bool):
        super().__init__()
        self.heads, self.fused_attn = heads, fused
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm = self.k_norm = nn.LayerNorm(width // heads)

    def forward(self, x, attn_mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = 3 * self.q_norm(q), self.k_norm(k)
        if self.fused_attn:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        else:
            y = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).flatten(2))


class PatchEmbed(nn.Module):
    """Built as timm.layers.PatchEmbed is, for images of any size."""

    def __init__(self, width: int):
        super().__init__()
        self.grid_size, self.proj = (4, 4), nn.Conv2d(3, width, 4, 4)

    def dynamic_feat_size(self, size: tuple[int, int]) -> tuple[int, int]:
        return size[0] // 4, size[1] // 4

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Transformer(nn.Module):
    """Built as timm.models.VisionTransformer is."""

    def __init__(self, fused: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.num_prefix_tokens, self.patch_embed = 2, PatchEmbed(16)
        self.prefix = nn.Parameter(torch.randn(1, 2, 16))
        self.blocks = nn.Sequential(Attention(16, 4, fused), Attention(16, 4, fused))

    def forward(self, x):
        patches = self.patch_embed(x)
        x = torch.cat([self.prefix.expand(len(patches), -1, -1), patches], 1)
        for block in self.blocks:
            x = x + block(x)
        return x[:, 0]


for kind in (Attention, PatchEmbed, Transformer):
    kind.__module__ = "timm.double"


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_patches_have_places_and_the_fused_function_is_used(fused: bool, wrapped: bool):
    inner = Transformer(fused)
    model = (nn.Sequential(inner, nn.Linear(16, 3)) if wrapped else inner).eval()
    assert is_timm(model) and not has_attention(model)
    assert type(find_capture(model)) is type(CAPTURE)
    calls = captured(model, images(size=16))
    assert [call.module for call in calls] == [f"{'0.' if wrapped else ''}blocks.{at}" for at in range(2)]
    for call in calls:
        assert call.grid == Grid((4, 4), special=2) and not call.cross and not call.causal and not call.structured
        assert call.q.shape == (2, 4, 18, 4) and call.scaling == 0.5
        assert int(call.valid.sum()) == 2 * 16
        scores = call.scaling * call.q.double() @ call.k.double().transpose(-1, -2)
        torch.testing.assert_close(call.output.double(), scores.softmax(-1) @ call.v.double(), rtol=1e-4, atol=1e-5)
    assert [block.fused_attn for block in inner.blocks] == [fused] * 2


def test_images_of_another_size_have_their_own_grid():
    model = Transformer().eval()
    assert patch_grid(model, {"x": torch.zeros(1, 3, 20, 12)}) == Grid((5, 3), special=2)
    assert patch_grid(nn.Linear(2, 2), {"x": torch.zeros(1, 3, 20, 12)}) is None
    (call, _) = captured(model, {"x": torch.randn(1, 3, 20, 12)})
    assert call.place == Grid((5, 3), special=2)


def test_the_switch_is_restored_when_the_receiver_fails():
    model = Transformer(fused=False).eval()

    def fail(_: Captured) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), torch.no_grad():
        CAPTURE.run(model, images(size=16), fail)
    assert [block.fused_attn for block in model.blocks] == [False, False]


class XCA(Attention):
    """Attention over channels, as timm.models.xcit has it."""


class TalkingHeads(nn.Module):
    """Attention without a fused function."""

    def forward(self, x):
        return (x @ x.transpose(1, 2)).softmax(dim=-1) @ x


XCA.__module__ = TalkingHeads.__module__ = "timm.double"


@pytest.mark.parametrize(
    "block, message",
    [
        (XCA(16, 4, True), r"blocks\.1 \(XCA\) attends over channels"),
        (TalkingHeads(), r"blocks\.1 \(timm\.double\.TalkingHeads\) computes attention in its own way"),
    ],
)
def test_other_attention_is_refused_by_name(block: nn.Module, message: str):
    model = Transformer().eval()
    model.blocks[1] = block.eval()
    with pytest.raises(QuadformError, match=message):
        CAPTURE.run(model, images(size=16), lambda _: None)


def test_a_report_on_a_grid():
    report = inspect(Transformer().eval(), [images(size=16, rows=3)], fit=[images(size=16, rows=3, seed=1)])
    assert report.reproduction <= 1e-6
    assert [layer.module for layer in report.sections[0].layers] == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "name, special, options",
    [
        ("vit_tiny_patch16_224", 1, {}),
        ("vit_tiny_patch16_224", 1, {"qk_norm": True}),
        ("deit_tiny_distilled_patch16_224", 2, {}),
        ("vit_small_patch16_dinov3", 5, {}),
        ("beit_base_patch16_224", 1, {"embed_dim": 48, "num_heads": 3}),
        ("vit_relpos_small_patch16_224", 0, {}),
        ("vit_medium_patch16_rope_reg1_gap_256", 1, {}),
    ],
)
def test_models_of_timm(timm: ModuleType, name: str, special: int, options: dict[str, Any], fused: bool):
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=64, depth=2, num_classes=5, **options).eval()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    calls = captured(model, images(size=64))
    assert [call.module for call in calls] == ["blocks.0.attn", "blocks.1.attn"]
    for call in calls:
        assert call.grid == Grid((4, 4), special=special)
        scores = call.scaling * call.q.double() @ call.k.double().transpose(-1, -2)
        if call.bias is not None:
            scores = scores + call.bias.double()
        torch.testing.assert_close(call.output.double(), scores.softmax(-1) @ call.v.double(), rtol=1e-4, atol=1e-5)
    assert (calls[0].bias is not None) == ("relpos" in name)


@pytest.mark.parametrize("name", ["cait_xxs24_224", "xcit_nano_12_p16_224", "levit_128s", "resnet10t"])
def test_models_of_timm_with_other_attention_or_none_are_refused(timm: ModuleType, name: str):
    model = timm.create_model(name).eval()
    assert is_timm(model)
    with pytest.raises(QuadformError, match=r"in its own way|over channels|no module calls"):
        CAPTURE.run(model, images(size=224, rows=1), lambda _: None)
