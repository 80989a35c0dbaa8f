"""Encoders of sound, and models of series."""

from __future__ import annotations

from typing import Any

import torch
from tests.integrations.architectures import VOCABULARY, Architecture, ids, noise
from tests.integrations.architectures_sequence import DECODER_AND_CROSS, OWN, SOFTMAX, speech
from torch import Tensor

SOUND_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


SOUND: dict[str, Any] = {
    **SOUND_SIZES,
    "vocab_size": VOCABULARY,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}


SERIES: dict[str, Any] = {
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_time_features": 1,
}


CLAP: dict[str, Any] = {
    "num_mel_bins": 8,
    "spec_size": 32,
    "patch_size": 4,
    "patch_stride": [4, 4],
    "window_size": 4,
    "depths": [1, 1],
    "num_attention_heads": [2, 2],
    "patch_embeds_hidden_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "enable_fusion": False,
}


def waves(samples: int = 200) -> dict[str, Tensor]:
    """Random waves, the second padded at its end."""
    mask = torch.ones(2, samples, dtype=torch.long)
    mask[1, samples // 2 :] = 0
    return {"input_values": noise(2, samples) * mask, "attention_mask": mask}


def spectra() -> dict[str, Tensor]:
    """Random spectra, the second padded at its end."""
    return {key: value for key, value in speech().items() if key != "decoder_input_ids"}


def series() -> dict[str, Tensor]:
    """A random series with features of time, past and future."""
    return {
        "past_values": noise(2, 10),
        "past_time_features": noise(2, 10, 1, seed=1),
        "past_observed_mask": torch.ones(2, 10),
        "future_values": noise(2, 4, seed=2),
        "future_time_features": noise(2, 4, 1, seed=3),
    }


def heard(name: str, model: str, config: dict[str, Any] = SOUND, **more: Any) -> Architecture:
    inputs = more.pop("inputs", waves)
    return Architecture(name, model, config, inputs, roles={"": "bidirectional"}, **more)


TABLE: list[Architecture] = [
    heard("Wav2Vec2", "Wav2Vec2Model"),
    heard("HuBERT", "HubertModel"),
    heard("UniSpeech-SAT", "UniSpeechSatModel"),
    heard("SEW", "SEWModel", {**SOUND, "squeeze_factor": 2}),
    heard("Data2Vec audio", "Data2VecAudioModel", {**SOUND, "conv_pos_kernel_size": 3}),
    heard("WavLM", "WavLMModel", inputs=lambda: {"input_values": noise(2, 200)}, refused=f"WavLMModel {OWN}"),
    heard(
        "Wav2Vec2-BERT",
        "Wav2Vec2BertModel",
        {**SOUND, "feature_projection_input_dim": 8, "position_embeddings_type": "relative_key"},
        inputs=spectra,
        has=("bias",),
    ),
    heard(
        "Wav2Vec2-BERT with relative positions",
        "Wav2Vec2BertModel",
        {**SOUND, "feature_projection_input_dim": 8, "position_embeddings_type": "relative"},
        inputs=spectra,
        has=("bias",),
    ),
    heard(
        "Wav2Vec2-Conformer", "Wav2Vec2ConformerModel", {**SOUND, "position_embeddings_type": "relative"}, has=("bias",)
    ),
    heard(
        "AST",
        "ASTModel",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "patch_size": 4,
            "frequency_stride": 4,
            "time_stride": 4,
            "max_length": 16,
            "num_mel_bins": 8,
        },
        inputs=lambda: {"input_values": noise(2, 16, 8)},
    ),
    heard(
        "CLAP text",
        "ClapTextModel",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
        },
        inputs=ids,
    ),
    heard(
        "CLAP audio",
        "ClapAudioModel",
        CLAP,
        inputs=lambda: {"input_features": noise(2, 1, 32, 8)},
        refused=f"ClapAudioModel {OWN}",
    ),
    heard(
        "CLAP",
        "ClapModel",
        {"text_config": {**SOUND_SIZES, "vocab_size": VOCABULARY}, "audio_config": CLAP, "projection_dim": 16},
        inputs=lambda: {**ids(), "input_features": noise(2, 1, 32, 8)},
        refused=f"audio_model.audio_encoder.layers.0.blocks.0.attention.self {SOFTMAX}",
    ),
    heard(
        "PatchTST",
        "PatchTSTModel",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "ffn_dim": 16,
        },
        inputs=lambda: {"past_values": noise(2, 16, 2)},
        factor=16.0,
    ),
    Architecture(
        "Time Series Transformer", "TimeSeriesTransformerModel", SERIES, series, roles=DECODER_AND_CROSS, calls=6
    ),
    Architecture(
        "Informer",
        "InformerModel",
        SERIES,
        series,
        refused=f"encoder.layers.0.self_attn {OWN}",
    ),
    Architecture(
        "Autoformer",
        "AutoformerModel",
        {**SERIES, "label_length": 4},
        series,
        refused=f"AutoformerModel {OWN}",
    ),
    heard(
        "PatchTSMixer",
        "PatchTSMixerModel",
        {
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "num_input_channels": 2,
            "d_model": 16,
            "num_layers": 2,
        },
        inputs=lambda: {"past_values": noise(2, 16, 2)},
        refused=f"PatchTSMixerModel {OWN}",
    ),
    Architecture(
        "TimesFM",
        "TimesFmModel",
        {**SOUND_SIZES, "head_dim": 8, "patch_length": 4},
        lambda: {
            "past_values": noise(2, 16),
            "past_values_padding": torch.zeros(2, 16, dtype=torch.long),
            "freq": torch.zeros(2, 1, dtype=torch.long),
        },
        roles={"": "causal"},
    ),
    Architecture(
        "Decision Transformer",
        "DecisionTransformerModel",
        {"state_dim": 3, "act_dim": 2, "hidden_size": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "max_ep_len": 32},
        lambda: {
            "states": noise(2, 4, 3),
            "actions": noise(2, 4, 2),
            "rewards": noise(2, 4, 1),
            "returns_to_go": noise(2, 4, 1),
            "timesteps": torch.arange(4).repeat(2, 1),
            "attention_mask": torch.ones(2, 4, dtype=torch.long),
        },
        roles={"": "causal"},
    ),
]
