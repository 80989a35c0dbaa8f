"""Models of images and video, and of images with text beside them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tests.integrations.architectures import VOCABULARY, Architecture, ids, images, noise
from torch import Tensor

BOTH = {"": "bidirectional"}


OWN = "computes attention in its own way"


SOFTMAX = "takes a softmax of its own, which may be attention,"


SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


VIT: dict[str, Any] = {**SIZES, "image_size": 16, "patch_size": 4}


TEXT: dict[str, Any] = {
    **SIZES,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}


def described(size: int = 16) -> dict[str, Tensor]:
    """Random images and texts, the second text padded."""
    return {**ids(), **images(size)}


def partly() -> dict[str, Tensor]:
    """Random images, and the numbers that decide which patches are left out."""
    return {**images(), "noise": noise(2, 16, seed=1)}


def films() -> dict[str, Tensor]:
    """Random videos of four frames."""
    return {"pixel_values": noise(2, 4, 3, 16, 16)}


def flat(name: str, model: str, config: dict[str, Any] = VIT, **more: Any) -> Architecture:
    """A model whose tokens are taken for a line."""
    inputs = more.pop("inputs", images)
    return Architecture(name, model, config, inputs, roles=more.pop("roles", BOTH), **more)


def looking(name: str, model: str, config: dict[str, Any] = VIT, **more: Any) -> Architecture:
    """A model of patches on a grid."""
    return flat(name, model, config, has=("grid", *more.pop("has", ())), **more)


def patches() -> dict[str, Tensor]:
    """Random patches of a grid of 4 x 4."""
    return {
        "pixel_values": noise(2, 16, 48),
        "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4], [4, 4]]),
    }


TABLE: list[Architecture] = [
    looking("ViT", "ViTModel"),
    looking("DeiT", "DeiTModel"),
    looking("BEiT", "BeitModel", {**VIT, "use_relative_position_bias": True}, has=("bias",)),
    looking(
        "Data2Vec vision",
        "Data2VecVisionModel",
        {**VIT, "use_relative_position_bias": True},
        refused=f"Data2VecVisionModel {OWN}",
    ),
    looking("DINOv2", "Dinov2Model"),
    looking("DINOv2 with registers", "Dinov2WithRegistersModel", {**VIT, "num_register_tokens": 2}),
    looking("DINOv3", "DINOv3ViTModel", {**VIT, "num_register_tokens": 2}),
    looking("I-JEPA", "IJepaModel"),
    looking("ViT-MSN", "ViTMSNModel"),
    flat("ViTMAE", "ViTMAEModel", {**VIT, "mask_ratio": 0.5}, inputs=partly),
    looking("Swin", "SwinModel", SWIN, inputs=partial(images, 32), calls=3, shows=False, has=("bias",)),
    looking("Swin v2", "Swinv2Model", SWIN, inputs=partial(images, 32), refused=f"Swinv2Model {OWN}"),
    looking(
        "SegFormer",
        "SegformerModel",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "num_attention_heads": [2, 4],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
        },
        roles={"stages.0": "cross", "": "bidirectional"},
        inputs=partial(images, 32),
    ),
    flat("VideoMAE", "VideoMAEModel", {**VIT, "num_frames": 4, "tubelet_size": 2}, inputs=films),
    flat("ViViT", "VivitModel", {**VIT, "num_frames": 4, "tubelet_size": [2, 4, 4]}, inputs=films),
    looking(
        "TimeSformer", "TimesformerModel", {**VIT, "num_frames": 4}, inputs=films, refused=f"TimesformerModel {OWN}"
    ),
    looking(
        "MaskFormer Swin", "MaskFormerSwinModel", SWIN, inputs=partial(images, 32), refused=f"MaskFormerSwinModel {OWN}"
    ),
    looking(
        "Hiera",
        "HieraModel",
        {
            "image_size": [32, 32],
            "embed_dim": 16,
            "patch_stride": [4, 4],
            "patch_size": [7, 7],
            "patch_padding": [3, 3],
        },
        inputs=partial(images, 32),
        refused=f"HieraModel {OWN}",
    ),
    flat(
        "X-CLIP vision",
        "XCLIPVisionModel",
        {**VIT, "num_frames": 2, "mit_hidden_size": 16},
        inputs=partial(images, rows=4),
        calls=4,
        shows=False,
    ),
    flat(
        "V-JEPA 2",
        "VJEPA2Model",
        {
            **VIT,
            "crop_size": 16,
            "frames_per_clip": 4,
            "tubelet_size": 2,
            "pred_hidden_size": 16,
            "pred_num_attention_heads": 2,
            "pred_num_hidden_layers": 1,
            "pred_num_mask_tokens": 2,
        },
        inputs=lambda: {"pixel_values_videos": noise(2, 4, 3, 16, 16)},
        calls=3,
        shows=False,
    ),
    looking("InternVL vision", "InternVLVisionModel", {**VIT, "image_size": [16, 16], "patch_size": [4, 4]}),
    looking("AIMv2 vision", "Aimv2VisionModel", {**VIT, "use_head": True}, refused=f"head {OWN}"),
    flat(
        "SigLIP 2 vision without a pooling head",
        "Siglip2VisionModel",
        {**VIT, "num_patches": 16, "vision_use_head": False},
        inputs=patches,
    ),
    flat(
        "Pix2Struct vision",
        "Pix2StructVisionModel",
        {
            "hidden_size": 32,
            "patch_embed_hidden_size": 16,
            "d_ff": 48,
            "d_kv": 8,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "seq_len": 16,
            "initializer_range": 0.02,
        },
        factor=10.0,
        inputs=lambda: {"flattened_patches": torch.cat([torch.ones(2, 9, 2), noise(2, 9, 16)], -1)},
    ),
    looking("CLIP vision", "CLIPVisionModel"),
    Architecture("CLIP text", "CLIPTextModel", TEXT, ids, roles={"": "causal"}),
    Architecture(
        "CLIP",
        "CLIPModel",
        {"text_config": TEXT, "vision_config": VIT, "projection_dim": 16},
        described,
        roles={"text": "causal", "": "bidirectional"},
        shows=False,
        has=("grid",),
        calls=4,
    ),
    looking("SigLIP vision without a pooling head", "SiglipVisionModel", {**VIT, "vision_use_head": False}),
    looking("SigLIP vision", "SiglipVisionModel", refused=f"head.attention {OWN}"),
    flat("SigLIP text", "SiglipTextModel", TEXT, inputs=ids),
    looking(
        "SigLIP",
        "SiglipModel",
        {"text_config": TEXT, "vision_config": VIT},
        inputs=described,
        refused=f"vision_model.head.attention {OWN}",
    ),
    flat("ALIGN text", "AlignTextModel", TEXT, inputs=ids),
    looking("AltCLIP vision", "AltCLIPVisionModel"),
    looking("Chinese-CLIP vision", "ChineseCLIPVisionModel"),
    looking("BLIP vision", "BlipVisionModel", refused=f"BlipVisionModel {OWN}"),
    looking(
        "BLIP",
        "BlipModel",
        {"text_config": TEXT, "vision_config": VIT, "projection_dim": 16},
        inputs=described,
        refused=f"BlipModel {OWN}",
    ),
    looking("BLIP-2 vision", "Blip2VisionModel", {**VIT, "initializer_range": 0.02}),
    looking(
        "OWL-ViT",
        "OwlViTModel",
        {"text_config": TEXT, "vision_config": VIT, "projection_dim": 16},
        inputs=described,
        roles={"text": "causal", "": "bidirectional"},
        shows=False,
        calls=4,
    ),
    looking(
        "GroupViT",
        "GroupViTModel",
        {
            "text_config": TEXT,
            "vision_config": {
                **VIT,
                "depths": [1, 1, 1],
                "num_group_tokens": [4, 2, 0],
                "num_output_groups": [4, 2, 0],
            },
            "projection_dim": 16,
            "projection_intermediate_dim": 16,
        },
        inputs=described,
        refused=f"GroupViTModel {OWN}",
    ),
    looking("ViLT", "ViltModel", {**TEXT, **VIT}, inputs=described, refused=f"ViltModel {OWN}"),
    looking(
        "Perceiver",
        "PerceiverModel",
        {
            "num_latents": 4,
            "d_latents": 16,
            "d_model": 16,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
        },
        inputs=lambda: {"inputs": noise(2, 10, 16)},
        refused=f"PerceiverModel {OWN}",
    ),
]
