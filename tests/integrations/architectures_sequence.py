"""Encoder-decoder models of text, and of sound into text."""

from __future__ import annotations

from typing import Any

import torch
from tests.integrations.architectures import VOCABULARY, Architecture, ids, noise, pairs
from torch import Tensor

OWN = "computes attention in its own way"


SOFTMAX = "takes a softmax of its own, which may be attention,"


DECODER_AND_CROSS = {"encoder_attn": "cross", "decoder": "causal", "": "bidirectional"}


T5_ROLES = {"EncDecAttention": "cross", "decoder": "causal", "": "bidirectional"}


BART: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
}


GEMMA: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "sliding_window": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def mel() -> dict[str, Tensor]:
    """Random mel spectra of a fixed length, and ids for the decoder."""
    return {"input_features": noise(2, 8, 24), "decoder_input_ids": ids(2, 7, padding=0, seed=1)["input_ids"]}


def speech(frames: int = 24, bins: int = 8) -> dict[str, Tensor]:
    """Random spectra, the second padded at its end, and ids for the decoder."""
    mask = torch.ones(2, frames, dtype=torch.long)
    mask[1, -8:] = 0
    decoder = ids(2, 7, padding=0, seed=1)["input_ids"]
    return {"input_features": noise(2, frames, bins), "attention_mask": mask, "decoder_input_ids": decoder}


def both(name: str, model: str, config: dict[str, Any] = BART, **more: Any) -> Architecture:
    roles = more.pop("roles", DECODER_AND_CROSS)
    inputs = more.pop("inputs", pairs)
    return Architecture(name, model, config, inputs, roles=roles, calls=6, **more)


TABLE = [
    both("BART", "BartModel"),
    both("mBART", "MBartModel"),
    both("Pegasus", "PegasusModel"),
    both("Marian", "MarianModel"),
    both("M2M-100", "M2M100Model"),
    both("Blenderbot", "BlenderbotModel"),
    both("PLBART", "PLBartModel"),
    both("T5", "T5Model", T5, roles=T5_ROLES, has=("bias",)),
    Architecture("T5 encoder", "T5EncoderModel", T5, ids, roles={"": "bidirectional"}, has=("bias",)),
    both("mT5", "MT5Model", T5, roles=T5_ROLES, has=("bias",)),
    both("UMT5", "UMT5Model", T5, roles=T5_ROLES, has=("bias",)),
    both(
        "Switch Transformers",
        "SwitchTransformersModel",
        {**T5, "num_experts": 2, "expert_capacity": 16},
        roles=T5_ROLES,
        has=("bias",),
    ),
    both(
        "LongT5",
        "LongT5Model",
        {**T5, "local_radius": 3},
        roles=T5_ROLES,
        refused=f"encoder.block.0.layer.0.LocalSelfAttention {SOFTMAX}",
    ),
    both(
        "BigBird-Pegasus",
        "BigBirdPegasusModel",
        {**BART, "block_size": 2, "num_random_blocks": 1},
        refused=f"encoder.layers.0.self_attn.self {SOFTMAX}",
    ),
    both(
        "Pegasus-X",
        "PegasusXModel",
        {**BART, "block_size": 4, "num_global_tokens": 2},
        refused=f"encoder.layers.0.self_attn {SOFTMAX}",
    ),
    both(
        "ProphetNet",
        "ProphetNetModel",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
        },
        refused=f"ProphetNetModel {OWN}",
    ),
    both("LED", "LEDModel", {**BART, "attention_window": 4}, refused=f"LEDModel {OWN}"),
    Architecture(
        "Whisper",
        "WhisperModel",
        {**BART, "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 32},
        mel,
        roles=DECODER_AND_CROSS,
        calls=6,
    ),
    Architecture(
        "Speech2Text",
        "Speech2TextModel",
        {
            **BART,
            "input_feat_per_channel": 8,
            "conv_channels": 16,
            "max_source_positions": 64,
            "max_target_positions": 32,
        },
        speech,
        roles=DECODER_AND_CROSS,
        calls=6,
    ),
    both(
        "T5Gemma",
        "T5GemmaModel",
        {"encoder": GEMMA, "decoder": {**GEMMA, "cross_attention_hidden_size": 32}},
        roles={"cross_attn": "cross", "decoder": "causal", "": "bidirectional"},
        has=("grouped-query", "window", "softcap"),
    ),
    both(
        "UDOP",
        "UdopModel",
        {**T5, "max_2d_position_embeddings": 16, "image_size": 16, "patch_size": 4},
        inputs=lambda: {**pairs(), "bbox": noise(2, 12, 4).sigmoid()},
        roles=T5_ROLES,
        has=("bias",),
    ),
    both(
        "Moonshine",
        "MoonshineModel",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "pad_token_id": 0,
        },
        inputs=lambda: {"input_values": noise(2, 1600), "decoder_input_ids": ids()["input_ids"]},
    ),
]
