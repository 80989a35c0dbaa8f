"""Models that mix attention with recurrence or convolution, and images with text."""

from __future__ import annotations

from typing import Any

import torch
from tests.integrations.architectures import Architecture, ids, images, noise, pairs
from tests.integrations.architectures_seen import BOTH, SIZES as SEEN, SOFTMAX, TEXT, VIT, described
from tests.integrations.architectures_text import CAUSAL, ENCODER, EXPERTS, GPT2, GQA, GROUPED, SIZES
from torch import Tensor

HEADS = {**GROUPED, "head_dim": 8}
SCAN: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
SEES_AND_SAYS = {"vision": "bidirectional", "": "causal"}
CROSS = {"crossattention": "cross", "decoder": "causal", "": "bidirectional"}
SIGLIP = {"model_type": "siglip_vision_model", **VIT, "vision_use_head": False}


def hybrid(name: str, model: str, config: dict[str, Any], *has: str, **more: Any) -> Architecture:
    return Architecture(name, model, config, ids, roles=CAUSAL, has=has, **{"calls": 1, **more})


def image_in_text(tokens: list[int], **more: list[int]) -> dict[str, Tensor]:
    """One text with one image at its tokens of number 5."""
    row = torch.tensor([tokens])
    extra = {name: torch.tensor([values]) for name, values in more.items()}
    return {"input_ids": row, "attention_mask": torch.ones_like(row), "pixel_values": noise(1, 3, 16, 16), **extra}


def marked() -> dict[str, Tensor]:
    """A text with the place of every token in a document's tree."""
    paths = {
        name: torch.randint(1, 9, (2, 12, 4), generator=torch.Generator().manual_seed(at))
        for at, name in enumerate(("xpath_tags_seq", "xpath_subs_seq"))
    }
    return {**ids(), **paths}


def vision_language() -> dict[str, Tensor]:
    """One image of 4 x 4 patches, merged to four tokens, inside a text."""
    tokens = torch.tensor([[7, 8, 3, 5, 5, 5, 5, 4, 9, 10, 11, 12]])
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": noise(16, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (tokens == 5).long(),
    }


TABLE = [
    hybrid(
        "Jamba",
        "JambaModel",
        {
            **GROUPED,
            "num_experts": 2,
            "mamba_d_state": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "use_mamba_kernels": False,
        },
        GQA,
        beside="recurrent layers",
    ),
    hybrid(
        "Qwen3-Next",
        "Qwen3NextModel",
        {
            **HEADS,
            **EXPERTS,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 16,
        },
        GQA,
        beside="linear attention layers",
    ),
    hybrid("LFM2", "Lfm2Model", {**GROUPED, "layer_types": ["conv", "full_attention"]}, GQA, beside="convolutions"),
    hybrid(
        "RecurrentGemma",
        "RecurrentGemmaModel",
        {**GROUPED, "lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]},
        GQA,
        "window",
        beside="recurrent layers",
    ),
    hybrid("Bamba", "BambaModel", {**GROUPED, **SCAN, "attn_layer_indices": [1]}, GQA, beside="recurrent layers"),
    hybrid(
        "Zamba 2",
        "Zamba2Model",
        {
            **SIZES,
            "mamba_d_state": 4,
            "n_mamba_heads": 2,
            "mamba_ngroups": 1,
            "mamba_headdim": 32,
            "layers_block_type": ["mamba", "hybrid"],
            "num_mem_blocks": 1,
            "hybrid_layer_ids": [1],
            "use_mem_rope": True,
        },
        beside="recurrent layers",
    ),
    hybrid(
        "Falcon-H1",
        "FalconH1Model",
        {**HEADS, **SCAN, "mamba_d_ssm": 32, "mamba_d_head": 8},
        GQA,
        beside="recurrent layers",
        calls=2,
    ),
    hybrid(
        "Granite 4 hybrid",
        "GraniteMoeHybridModel",
        {**GROUPED, **EXPERTS, **SCAN, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
        GQA,
        beside="recurrent layers",
    ),
    hybrid(
        "MiniMax",
        "MiniMaxModel",
        {**HEADS, **EXPERTS, "layer_types": ["linear_attention", "full_attention"], "block_size": 4},
        GQA,
        shows=False,
        beside="linear attention layers",
    ),
    hybrid(
        "OLMo hybrid",
        "OlmoHybridModel",
        {**GROUPED, "layer_types": ["linear_attention", "full_attention"]},
        GQA,
        beside="linear attention layers",
    ),
    Architecture(
        "BERT to BERT",
        "EncoderDecoderModel",
        {
            "encoder": {"model_type": "bert", **ENCODER},
            "decoder": {"model_type": "bert", **ENCODER, "is_decoder": True, "add_cross_attention": True},
        },
        pairs,
        roles=CROSS,
        calls=6,
    ),
    Architecture(
        "ViT to GPT-2",
        "VisionEncoderDecoderModel",
        {
            "encoder": {"model_type": "vit", **VIT},
            "decoder": {"model_type": "gpt2", **GPT2, "add_cross_attention": True},
        },
        lambda: {**images(), "decoder_input_ids": ids(padding=0)["input_ids"]},
        roles=CROSS,
        has=("grid",),
        calls=6,
    ),
    Architecture(
        "GPT-2 with cross-attention",
        "GPT2Model",
        {**GPT2, "add_cross_attention": True},
        lambda: {**ids(), "encoder_hidden_states": noise(2, 12, 32)},
        roles={"crossattention": "cross", "": "causal"},
        calls=4,
        shows=False,
    ),
    Architecture(
        "Git",
        "GitModel",
        {**TEXT, "vision_config": VIT},
        described,
        refused=f"encoder.layer.0.attention.self {SOFTMAX}",
    ),
    Architecture(
        "BLIP-2 Q-Former",
        "Blip2QFormerModel",
        {**TEXT, "cross_attention_frequency": 1, "encoder_hidden_size": 32},
        lambda: {"query_embeds": noise(2, 4, 32), "encoder_hidden_states": noise(2, 7, 32)},
        roles=CROSS,
        calls=4,
        shows=False,
    ),
    Architecture("MarkupLM", "MarkupLMModel", {**TEXT, "max_depth": 4}, marked, roles=BOTH),
    Architecture("LayoutLM", "LayoutLMModel", TEXT, ids, roles=BOTH, factor=12.0),
    Architecture(
        "LayoutLMv3",
        "LayoutLMv3Model",
        {
            **TEXT,
            "visual_embed": False,
            "coordinate_size": 6,
            "shape_size": 4,
            "max_2d_position_embeddings": 16,
            "has_relative_attention_bias": True,
            "has_spatial_attention_bias": True,
            "rel_pos_bins": 8,
            "rel_2d_pos_bins": 8,
        },
        ids,
        roles=BOTH,
        has=("bias",),
    ),
    Architecture(
        "LLaVA",
        "LlavaModel",
        {
            "text_config": {"model_type": "llama", **GROUPED},
            "vision_config": {"model_type": "clip_vision_model", **VIT},
            "image_token_index": 5,
            "image_seq_length": 16,
        },
        lambda: image_in_text([7, 8] + 16 * [5] + [9, 10]),
        roles=SEES_AND_SAYS,
        calls=4,
        has=(GQA, "grid"),
        shows=False,
    ),
    Architecture(
        "PaliGemma",
        "PaliGemmaModel",
        {
            "text_config": {"model_type": "gemma", **HEADS},
            "vision_config": SIGLIP,
            "image_token_id": 5,
            "projection_dim": 32,
        },
        lambda: image_in_text(16 * [5] + [9, 10, 11], token_type_ids=18 * [0] + [1]),
        roles=BOTH,
        calls=4,
        has=(GQA, "grid", "window"),
        shows=False,
    ),
    Architecture(
        "Gemma 3 with images",
        "Gemma3Model",
        {
            "text_config": {**HEADS, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
            "vision_config": {**SEEN, "image_size": 16, "patch_size": 4, "vision_use_head": False},
            "mm_tokens_per_image": 4,
            "image_token_id": 5,
        },
        lambda: image_in_text([7, 8, 5, 5, 5, 5, 9, 10], token_type_ids=[0, 0, 1, 1, 1, 1, 0, 0]),
        roles=BOTH,
        calls=4,
        has=(GQA, "grid", "window"),
        shows=False,
    ),
    Architecture(
        "Qwen2-VL",
        "Qwen2VLModel",
        {
            "text_config": {
                **TEXT,
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
            },
            "vision_config": {
                "depth": 2,
                "embed_dim": 32,
                "hidden_size": 32,
                "num_heads": 4,
                "patch_size": 4,
                "temporal_patch_size": 2,
                "spatial_merge_size": 2,
                "mlp_ratio": 2,
            },
            "image_token_id": 5,
            "vision_start_token_id": 3,
            "vision_end_token_id": 4,
            "video_token_id": 6,
        },
        vision_language,
        roles={"visual": "bidirectional", "": "causal"},
        calls=4,
        has=(GQA,),
        shows=False,
    ),
]
