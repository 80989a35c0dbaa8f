"""Small models for the tests of the Hugging Face integration: random ones, and a trained one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
import transformers


def tiny(kind: str, **changes: Any) -> Any:
    """A random model in evaluation mode; weights large enough that attention is far from uniform."""
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    configurations: dict[str, Any] = {
        "bert": lambda: transformers.BertConfig(vocab_size=60, max_position_embeddings=64, **sizes, **changes),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=60, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, **changes
        ),
        "llama": lambda: transformers.LlamaConfig(vocab_size=60, num_key_value_heads=2, **sizes, **changes),
        "mistral": lambda: transformers.MistralConfig(
            vocab_size=60, num_key_value_heads=2, sliding_window=6, **sizes, **changes
        ),
        "t5": lambda: transformers.T5Config(
            vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, **changes
        ),
        "bart": lambda: transformers.BartConfig(
            vocab_size=60,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=64,
            **changes,
        ),
        "bloom": lambda: transformers.BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4, **changes),
        "gemma2": lambda: transformers.Gemma2Config(
            vocab_size=60, num_key_value_heads=2, head_dim=8, **sizes, **changes
        ),
    }
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(configurations[kind]())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    return model.eval()


def batch(
    rows: int = 3, n: int = 20, *, seed: int = 0, padding: int = 0, left: bool = False
) -> dict[str, torch.Tensor]:
    """Random ids; the last sequence has `padding` tokens of padding."""
    ids = torch.randint(1, 60, (rows, n), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    if padding:
        mask[-1, :padding] = 0
        if not left:
            mask[-1] = mask[-1].flip(0)
    return {"input_ids": ids, "attention_mask": mask}


def albert_directory() -> Path:
    """The trained ALBERT of 0.7 million parameters in the package rxnmapper, which is not imported."""
    spec = importlib.util.find_spec("rxnmapper")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "models" / "transformers" / "albert_heads_8_uspto_all_1310k"


REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCN1.CCN(C(C)C)C(C)C.O=C(Cl)c1ccccc1.ClCCl>>O=C(c1ccccc1)N1CCOCC1",
    "COC(=O)c1ccc(Br)cc1.OB(O)c1ccccc1.O=C([O-])[O-].[Na+].[Na+]>>COC(=O)c1ccc(-c2ccccc2)cc1",
    "CC(=O)OC(C)=O.Nc1ccc(O)cc1.c1ccncc1>>CC(=O)Nc1ccc(O)cc1",
    "CCO.O=C(O)c1ccc(F)cc1.O=S(=O)(O)O>>CCOC(=O)c1ccc(F)cc1",
    "CC(C)(C)OC(=O)NCCO.ClCCl.O=C(O)C(F)(F)F>>NCCO.O=C(O)C(F)(F)F",
)


def reaction_batches(n: int = 44) -> list[dict[str, torch.Tensor]]:
    """Reactions as ids of the ALBERT's vocabulary, one token a symbol, padded to n."""
    vocabulary = (albert_directory() / "vocab.txt").read_text("utf-8").splitlines()
    index = {token: at for at, token in enumerate(vocabulary)}
    batches = []
    for reaction in REACTIONS:
        ids = [index["[CLS]"], *(index.get(symbol, index["[UNK]"]) for symbol in reaction), index["[SEP]"]][:n]
        row = torch.tensor([ids + [0] * (n - len(ids))])
        batches.append({"input_ids": row, "attention_mask": (torch.arange(n) < len(ids)).long()[None]})
    return batches


def save_with_tokenizer(directory: Path, text: str, **changes: Any) -> Path:
    """A random BERT and a word tokenizer of the text, saved as a Hugging Face directory."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    ends = [(token, words.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    tokenizer.save_pretrained(directory)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    torch.manual_seed(0)
    configuration = transformers.BertConfig(
        vocab_size=words.get_vocab_size(), max_position_embeddings=64, **sizes, **changes
    )
    transformers.BertModel(configuration).save_pretrained(directory)
    return directory


def story(sentences: int = 400) -> str:
    """Paragraphs of a made-up language of two hundred words."""
    generator = torch.Generator().manual_seed(0)
    words = [f"{a}{b}" for a in "bcdfghklmn" for b in ("a", "e", "i", "o", "u", "ane", "iko", "ulu", "esto", "orem")]
    lines = [
        " ".join(words[at] for at in torch.randint(100, (9,), generator=generator)) + "." for _ in range(sentences)
    ]
    return "\n\n".join(" ".join(lines[at : at + 4]) for at in range(0, sentences, 4))
