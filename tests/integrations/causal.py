"""Small random decoders for the tests of generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tests.integrations.models import save_with_tokenizer
from torch import Tensor

import quadform as qf

KINDS = ("gpt2", "llama", "qwen3")
LAYERS, HEAD_DIM = 2, 8


def decoder(kind: str, vocabulary: int = 60, **changes: Any) -> Any:
    """A random decoder of 2 layers and 4 query heads (2 key-value heads, but 4 in GPT-2) that never ends a text.

    Its weights are large enough that attention is far from uniform and its texts vary.
    """
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 4096,
        "bos_token_id": 0,
        "eos_token_id": None,
        "pad_token_id": 0,
    } | changes
    grouped = {"num_key_value_heads": 2}
    own: dict[str, Any] = {
        "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "initializer_range": 0.2},
        "llama": grouped | {"initializer_range": 0.15},
        "qwen3": grouped | {"head_dim": HEAD_DIM, "initializer_range": 0.15},
        "mistral": grouped | {"sliding_window": 6, "initializer_range": 0.15},
        "gemma2": grouped | {"head_dim": HEAD_DIM, "sliding_window": 6, "initializer_range": 0.15},
    }
    names = {"gpt2": "GPT2", "llama": "Llama", "qwen3": "Qwen3", "mistral": "Mistral", "gemma2": "Gemma2"}
    configuration = getattr(transformers, f"{names[kind]}Config")(**own[kind] | sizes)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(configuration, dtype=torch.float32).eval()


def prompt(rows: int = 2, n: int = 9, padding: int = 4) -> dict[str, Tensor]:
    """Random ids; the last row has `padding` tokens of padding on the left."""
    ids = torch.randint(1, 60, (rows, n), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[-1, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask}


def plans(kind: str) -> dict[str, Any]:
    """Mixers of every kind of state, for the heads of `decoder(kind)`."""
    kv_heads = 4 if kind == "gpt2" else 2
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(4, 5, generator=generator)
    taps = torch.randn(4, 3, generator=generator) / 3
    relative = qf.Window(4), qf.Softmax(content=False, bias=qf.Table(4, 0)), {"table": table}
    convolution = qf.Stencil(3, padding="causal"), qf.Taps(), {"taps": taps}
    kernel = qf.Causal(), qf.Kernel("elu1")
    window = qf.Window(6, sinks=2), qf.Softmax()
    return {
        "kernel": kernel,
        "window": window,
        "hybrid": (qf.Causal(), qf.Hybrid(qf.Window(4), qf.Kernel("exp"))),
        "retention": (qf.Causal(), qf.Kernel("elu1", decay="scalar"), {"log_decay": torch.full((1, 4, 1), -0.1)}),
        "relative": relative,
        "convolution": convolution,
        "mixed": {0: [((0,), kernel), (tuple(range(1, kv_heads)), window)], 1: kernel},
        "some": {1: [((1,), kernel)]},
        "softmax": None,
    }


def save_decoder(directory: Path, text: str, kind: str = "llama", **changes: Any) -> Path:
    """A random decoder and a word tokenizer of the text, saved as a Hugging Face directory."""
    save_with_tokenizer(directory, text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    decoder(kind, len(tokenizer), **changes).save_pretrained(directory)
    return directory
