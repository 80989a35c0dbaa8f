"""Models that find and segment objects."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tests.integrations.architectures import Architecture, images
from tests.integrations.architectures_seen import OWN, SOFTMAX, VIT, flat, looking
from torch import Tensor

RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}


DETR: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_queries": 5,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": RESNET,
}


DETR_ROLES = {"encoder_attn": "cross", "": "bidirectional"}


RT_DETR: dict[str, Any] = {
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 8, 16],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage2", "stage3", "stage4"],
    },
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [8, 8, 16],
    "d_model": 32,
    "decoder_in_channels": [32, 32, 32],
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_layers": 2,
    "num_queries": 5,
    "num_labels": 4,
    "encoder_layers": 1,
}


SAM: dict[str, Any] = {
    "vision_config": {
        **VIT,
        "output_channels": 16,
        "window_size": 2,
        "global_attn_indexes": [1],
        "mlp_dim": 48,
        "num_pos_feats": 8,
    },
    "prompt_encoder_config": {"hidden_size": 16, "image_size": 16, "patch_size": 4, "mask_input_channels": 4},
    "mask_decoder_config": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "mlp_dim": 16,
        "iou_head_hidden_dim": 16,
        "attention_downsample_rate": 1,
    },
}


def padded(size: int = 64) -> dict[str, Tensor]:
    """Random images, the second padded at its right."""
    mask = torch.ones(2, size, size, dtype=torch.long)
    mask[1, :, size // 2 :] = 0
    return {**images(size), "pixel_mask": mask}


TABLE: list[Architecture] = [
    flat("YOLOS", "YolosModel", {**VIT, "image_size": [16, 16], "num_detection_tokens": 3}),
    looking(
        "SAM vision",
        "SamVisionModel",
        {
            **VIT,
            "output_channels": 16,
            "window_size": 2,
            "global_attn_indexes": [1],
            "use_rel_pos": True,
            "mlp_dim": 48,
        },
        refused=f"SamVisionModel {OWN}",
    ),
    looking("DETR", "DetrModel", DETR, inputs=padded, roles=DETR_ROLES, calls=6),
    looking(
        "Conditional DETR",
        "ConditionalDetrModel",
        DETR,
        inputs=padded,
        roles=DETR_ROLES,
        calls=6,
        has=("values of their own width",),
    ),
    looking("DAB-DETR", "DabDetrModel", {**DETR, "hidden_size": 32}, inputs=padded, refused=f"DabDetrModel {OWN}"),
    looking(
        "Deformable DETR",
        "DeformableDetrModel",
        {**DETR, "num_feature_levels": 1},
        inputs=padded,
        refused=f"encoder.layers.0.self_attn {SOFTMAX}",
    ),
    looking(
        "RT-DETR",
        "RTDetrModel",
        RT_DETR,
        inputs=partial(images, 64),
        refused=f"decoder.layers.0.encoder_attn {SOFTMAX}",
    ),
    looking("Table Transformer", "TableTransformerModel", DETR, inputs=padded, refused=f"TableTransformerModel {OWN}"),
    looking(
        "D-FINE",
        "DFineModel",
        RT_DETR,
        inputs=partial(images, 64),
        refused=f"decoder.layers.0.encoder_attn {SOFTMAX}",
    ),
    looking("SAM", "SamModel", SAM, refused=f"vision_encoder.layers.0.attn {OWN}"),
]
