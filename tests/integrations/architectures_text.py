"""Language models and text encoders."""

from __future__ import annotations

from typing import Any

from tests.integrations.architectures import VOCABULARY, Architecture, ids

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
ENCODER = {**SIZES, "max_position_embeddings": 64}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CAUSAL = {"": "causal"}
BOTH = {"": "bidirectional"}
GQA = "grouped-query"
OWN = "computes attention in its own way"


def decoder(name: str, model: str, config: dict[str, Any], *has: str, **more: Any) -> Architecture:
    return Architecture(name, model, config, ids, roles=CAUSAL, has=has, **more)


def encoder(name: str, model: str, config: dict[str, Any] = ENCODER, *has: str, **more: Any) -> Architecture:
    return Architecture(name, model, config, ids, roles=BOTH, has=has, **more)


def own(name: str, model: str, config: dict[str, Any], **more: Any) -> Architecture:
    return Architecture(name, model, config, ids, refused=f"{model} {OWN}", **more)


LATENT = {
    **SIZES,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "first_k_dense_replace": 2,
}
GPT2 = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48}

TABLE = [
    decoder("GPT-2", "GPT2Model", GPT2),
    decoder("GPT-2 with scales by layer", "GPT2Model", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    decoder("GPT-BigCode", "GPTBigCodeModel", GPT2, GQA),
    decoder("GPT-NeoX", "GPTNeoXModel", SIZES),
    decoder("GPT-J", "GPTJModel", {**GPT2, "rotary_dim": 4}),
    decoder("CodeGen", "CodeGenModel", {**GPT2, "rotary_dim": 4}),
    decoder("OPT", "OPTModel", {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    decoder("BioGPT", "BioGptModel", ENCODER),
    decoder("Llama", "LlamaModel", GROUPED, GQA),
    decoder("Qwen2", "Qwen2Model", GROUPED, GQA),
    decoder("Qwen2-MoE", "Qwen2MoeModel", {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 16}, GQA),
    decoder("Qwen3", "Qwen3Model", {**GROUPED, "head_dim": 8}, GQA),
    decoder("Qwen3-MoE", "Qwen3MoeModel", {**GROUPED, **EXPERTS, "head_dim": 8}, GQA),
    decoder("Mistral", "MistralModel", {**GROUPED, "sliding_window": 5}, GQA, "window"),
    decoder("Mixtral", "MixtralModel", {**GROUPED, **EXPERTS}, GQA),
    decoder("Ministral", "MinistralModel", {**GROUPED, "sliding_window": 5, "head_dim": 8}, GQA, "window"),
    decoder("Gemma", "GemmaModel", {**GROUPED, "head_dim": 8}, GQA),
    decoder(
        "Gemma 2",
        "Gemma2Model",
        {**GROUPED, "head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0},
        GQA,
        "window",
        "softcap",
    ),
    decoder(
        "Gemma 3",
        "Gemma3TextModel",
        {**GROUPED, "head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        GQA,
        "window",
    ),
    decoder(
        "GPT-OSS", "GptOssModel", {**GROUPED, **EXPERTS, "head_dim": 8, "sliding_window": 5}, GQA, "window", "sinks"
    ),
    decoder("Phi", "PhiModel", SIZES),
    decoder("Phi-3", "Phi3Model", {**GROUPED, "sliding_window": 5}, GQA, "window"),
    decoder("PhiMoE", "PhimoeModel", {**GROUPED, **EXPERTS}, GQA),
    decoder("StableLM", "StableLmModel", GROUPED, GQA),
    decoder("StarCoder2", "Starcoder2Model", {**GROUPED, "sliding_window": 5}, GQA, "window"),
    decoder("OLMo", "OlmoModel", SIZES),
    decoder("OLMo 2", "Olmo2Model", GROUPED, GQA),
    decoder(
        "OLMo 3",
        "Olmo3Model",
        {**GROUPED, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        GQA,
        "window",
    ),
    decoder("OLMoE", "OlmoeModel", {**GROUPED, **EXPERTS}, GQA),
    decoder("Granite", "GraniteModel", {**GROUPED, "attention_multiplier": 0.3}, GQA),
    decoder("Cohere", "CohereModel", GROUPED, GQA),
    decoder("Cohere 2", "Cohere2Model", {**GROUPED, "sliding_window": 5, "sliding_window_pattern": 2}, GQA, "window"),
    decoder("DeepSeek-V2", "DeepseekV2Model", LATENT, "values of their own width"),
    decoder("DeepSeek-V3", "DeepseekV3Model", LATENT, "values of their own width"),
    decoder("MiniCPM 3", "MiniCPM3Model", LATENT, "values of their own width"),
    decoder("SmolLM3", "SmolLM3Model", GROUPED, GQA),
    decoder("GLM", "GlmModel", {**GROUPED, "head_dim": 8}, GQA),
    decoder("GLM-4", "Glm4Model", {**GROUPED, "head_dim": 8}, GQA),
    decoder("Nemotron", "NemotronModel", GROUPED, GQA),
    decoder("EXAONE 4", "Exaone4Model", {**GROUPED, "sliding_window": 5, "sliding_window_pattern": 2}, GQA, "window"),
    decoder("Helium", "HeliumModel", {**GROUPED, "head_dim": 8}, GQA),
    decoder("Persimmon", "PersimmonModel", SIZES),
    decoder("DiffLlama", "DiffLlamaModel", GROUPED, GQA, "several calls of a module", calls=4, shows=False),
    decoder("Apertus", "ApertusModel", GROUPED, GQA),
    decoder("ERNIE 4.5", "Ernie4_5Model", {**GROUPED, "head_dim": 8}, GQA),
    decoder("BitNet", "BitNetModel", GROUPED, GQA),
    decoder("nanochat", "NanoChatModel", GROUPED, GQA),
    decoder("Hunyuan", "HunYuanDenseV1Model", {**GROUPED, "head_dim": 8}, GQA),
    decoder("Arcee", "ArceeModel", GROUPED, GQA),
    decoder("Doge", "DogeModel", {**GROUPED, "keep_window_size": 16}, GQA, "bias"),
    decoder(
        "Llama 4",
        "Llama4TextModel",
        {
            **GROUPED,
            **EXPERTS,
            "head_dim": 8,
            "intermediate_size_mlp": 48,
            "attention_chunk_size": 5,
            "no_rope_layers": [1, 0],
            "layer_types": ["chunked_attention", "full_attention"],
        },
        GQA,
        "window",
    ),
    decoder(
        "Gemma 3n",
        "Gemma3nTextModel",
        {
            **GROUPED,
            "head_dim": 8,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "laurel_rank": 4,
            "num_kv_shared_layers": 0,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0, 0.0],
        },
        GQA,
        "window",
    ),
    decoder(
        "ModernBERT decoder",
        "ModernBertDecoderModel",
        {**ENCODER, "local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
        "window",
    ),
    decoder(
        "DeepSeek-V3.2",
        "DeepseekV32Model",
        {**LATENT, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 8},
        refused="layers.0.self_attn: its attention takes indices, which capture does not know",
    ),
    decoder(
        "Inkling 2",
        "Inkling2TextModel",
        {**GROUPED, "head_dim": 8},
        refused="layers.0.self_attn: its attention takes sinks, which capture does not know",
    ),
    own("Falcon", "FalconModel", {**SIZES, "alibi": False}),
    own("Bloom", "BloomModel", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    own("MPT", "MptModel", {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    own(
        "GPT-Neo",
        "GPTNeoModel",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 64,
        },
    ),
    own("GPT-1", "OpenAIGPTModel", GPT2),
    own(
        "XGLM",
        "XGLMModel",
        {"vocab_size": VOCABULARY, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    ),
    decoder(
        "Mamba",
        "MambaModel",
        {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        refused="MambaModel has no attention",
    ),
    own("RWKV", "RwkvModel", {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2}),
    encoder("BERT", "BertModel"),
    encoder("RoBERTa", "RobertaModel"),
    encoder("XLM-RoBERTa", "XLMRobertaModel"),
    encoder("CamemBERT", "CamembertModel"),
    encoder(
        "DistilBERT",
        "DistilBertModel",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 64,
        },
    ),
    encoder("ALBERT", "AlbertModel", {**ENCODER, "embedding_size": 16}, "several calls of a module"),
    encoder("ELECTRA", "ElectraModel", {**ENCODER, "embedding_size": 16}),
    encoder("ERNIE", "ErnieModel"),
    encoder(
        "MobileBERT", "MobileBertModel", {**ENCODER, "embedding_size": 16, "intra_bottleneck_size": 16}, factor=20.0
    ),
    encoder("ESM", "EsmModel", {**ENCODER, "mask_token_id": 3, "position_embedding_type": "rotary"}),
    encoder(
        "ModernBERT",
        "ModernBertModel",
        {**ENCODER, "local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
        "window",
    ),
    encoder("EuroBERT", "EuroBertModel", GROUPED, GQA),
    encoder("Nomic BERT", "NomicBertModel", {**ENCODER}),
    encoder("Jina embeddings 3", "JinaEmbeddingsV3Model", {**ENCODER}),
    own("MPNet", "MPNetModel", ENCODER),
    own("DeBERTa", "DebertaModel", ENCODER),
    own("DeBERTa-v2", "DebertaV2Model", ENCODER),
    own("SqueezeBERT", "SqueezeBertModel", {**ENCODER, "embedding_size": 32}),
    own("RoFormer", "RoFormerModel", ENCODER),
    own("RemBERT", "RemBertModel", {**ENCODER, "input_embedding_size": 16}),
    encoder(
        "FNet",
        "FNetModel",
        {key: value for key, value in ENCODER.items() if key != "num_attention_heads"},
        refused="FNetModel has no attention",
    ),
    own("XLNet", "XLNetModel", {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    own("Longformer", "LongformerModel", {**ENCODER, "attention_window": 4}),
    own("BigBird", "BigBirdModel", {**ENCODER, "block_size": 4}),
    own(
        "Reformer",
        "ReformerModel",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "attention_head_size": 8,
            "attn_layers": ["lsh", "local"],
            "axial_pos_embds": False,
            "is_decoder": False,
        },
    ),
    own("Nystromformer", "NystromformerModel", ENCODER),
]
