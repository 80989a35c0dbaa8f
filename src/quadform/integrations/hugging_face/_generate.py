"""Text from a decoder with mixers, token by token as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadform._errors import ArgumentError
from quadform.integrations.hugging_face._cache import StateCache
from quadform.integrations.hugging_face._loading import _quiet, _transformers
from quadform.integrations.hugging_face._mixed import Mixed
from quadform.integrations.hugging_face._saved import load_cache, save_cache

_LEARNED = ("wpe", "embed_positions", "position_embeddings")
"""What modules are called that hold one vector for each position."""


@dataclass(frozen=True)
class Generated:
    """What `generate_text` did.

    Attributes:
        tokens: new tokens.
        prompt: tokens that were read before the first new one, those of an earlier run left out.
        first_seconds: until the first new token.
        seconds: from the first new token to the last.
        state_bytes: of all states at the end.
    """

    tokens: int
    prompt: int
    first_seconds: float
    seconds: float
    state_bytes: int

    @property
    def tokens_per_second(self) -> float:
        """After the first token."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds else 0.0


def generate_text(
    mixed: Mixed,
    tokenizer: Any,
    prompt: str,
    write: Callable[[str], None],
    *,
    tokens: int = 100,
    temperature: float = 0.0,
    seed: int | None = None,
    state: Path | None = None,
    resume: bool = False,
) -> Generated:
    """Generates up to `tokens` tokens after the prompt and hands their text to `write` as it comes.

    Args:
        temperature: of transformers' sampling; 0 takes the likeliest token.
        seed: of the sampling.
        state: file that the state is written to at the end.
        resume: goes on from `state`, behind which the prompt is appended.

    Raises:
        ArgumentError: no tokens to begin with, more than the model has positions for, or a file that does not fit.
    """
    transformers = _transformers()
    if state is None and resume:
        raise ArgumentError("--state", "a file to resume from", "none")
    if state is not None and not state.resolve().parent.is_dir():
        raise ArgumentError("--state", "a file in a folder that exists", str(state))
    cache, ids, mask = _begin(mixed, tokenizer, prompt, state if resume else None)
    before = ids.shape[1]
    _check_length(mixed.model, before + tokens)
    if seed is not None:
        torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    padding = tokenizer.pad_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    streamer = _streamer(transformers, tokenizer, write)
    seen, start = cache.seen, time.perf_counter()
    with _quiet(transformers):
        out: Tensor = mixed.model.generate(
            input_ids=ids,
            attention_mask=mask,
            cache=cache,
            max_new_tokens=tokens,
            pad_token_id=padding,
            streamer=streamer,
            **sampling,
        )
    if state is not None:
        save_cache(cache, state, out)
    first, last = streamer.times[0], streamer.times[-1]
    return Generated(out.shape[1] - before, before - seen, first - start, last - first, cache.nbytes)


def _begin(mixed: Mixed, tokenizer: Any, prompt: str, state: Path | None) -> tuple[StateCache, Tensor, Tensor]:
    """(cache, ids (1, N), mask (1, N)) of the prompt, or of an earlier run and the prompt."""
    found = tokenizer(prompt, add_special_tokens=state is None)["input_ids"] if prompt or state is None else []
    ids = torch.tensor([found], dtype=torch.int64, device=mixed.model.device)
    if state is None:
        cache, inputs = mixed.cache(), {"input_ids": ids[:, :0], "attention_mask": ids[:, :0]}
    else:
        cache, inputs = load_cache(mixed, state)
        if inputs["input_ids"].shape[0] != 1:
            raise ArgumentError("--state", "the state of one text", f"{inputs['input_ids'].shape[0]} of them")
    ids = torch.cat([inputs["input_ids"], ids], 1)
    if ids.shape[1] <= cache.seen:
        raise ArgumentError("PROMPT", "at least one token", repr(prompt))
    fresh = torch.ones_like(ids[:, inputs["attention_mask"].shape[1] :])
    return cache, ids, torch.cat([inputs["attention_mask"], fresh], 1)


def _check_length(model: nn.Module, length: int) -> None:
    """Errors: ArgumentError where a model with a vector for each position has fewer; one new token needs none."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _LEARNED:
            most = min(module.num_embeddings, int(getattr(model.config, "max_position_embeddings", length)))
            if length - 1 > most:
                raise ArgumentError("--tokens", f"a text of at most {most + 1} tokens, prompt included", length)


def _streamer(transformers: Any, tokenizer: Any, write: Callable[[str], None]) -> Any:
    """transformers' own streamer of text, which also notes when each token came."""

    class Streamer(transformers.TextStreamer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
            self.times: list[float] = []

        def put(self, value: Tensor) -> None:
            if not self.next_tokens_are_prompt:
                self.times.append(time.perf_counter())
            super().put(value)

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            write(text)

    return Streamer()
