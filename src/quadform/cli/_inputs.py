"""What `quadform inspect` runs a model on: text, images or sounds into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quadform._errors import ArgumentError
from quadform.inspect import Batch
from quadform.integrations.hugging_face import (
    image_batches,
    is_hugging_face,
    load_image_processor,
    load_model,
    load_sound_processor,
    load_tokenizer,
    read_images,
    read_sounds,
    read_text,
    sound_batches,
    token_batches,
)


@dataclass(frozen=True)
class Inputs:
    """A model, or the part of it that is inspected, and its batches.

    Attributes:
        model: what is run.
        name: what the report calls it.
        source: where the inputs come from.
        fit, measured: batches of different documents.
        labels: turns token ids into strings; None for images and sounds.
    """

    model: Any
    name: str
    source: str
    fit: list[Batch]
    measured: list[Batch]
    labels: Callable[[list[int]], list[str]] | None = None


def from_text(name: str, sources: Sequence[str], lengths: Sequence[int], sequences: int) -> Inputs:
    """Sequences of each length; the decoder of an encoder-decoder model reads the same text, shifted by one token."""
    split, tokenizer = read_text(sources), load_tokenizer(name)
    model, called = _part(load_model(name), name, "text_model")
    fit: list[Batch] = []
    measured: list[Batch] = []
    for length in lengths:
        _check_length(model, length)
        parts = token_batches(tokenizer, split, length, sequences)
        fit, measured = fit + parts[0], measured + parts[1]
    source = split.source
    if model.config.is_encoder_decoder:
        fit, measured = ([_with_decoder(model, batch) for batch in part] for part in (fit, measured))
        source += "; the decoder reads the same text, shifted by one token"
    return Inputs(model, called, source, fit, measured, tokenizer.convert_ids_to_tokens)


def from_images(name: str, sources: Sequence[str], sequences: int) -> Inputs:
    """Images as the model's own processor prepares them; of a model of text and images its vision part."""
    split, processor = read_images(sources, sequences), load_image_processor(name)
    model, called = _part(load_model(name), name, "vision_model")
    fit, measured = image_batches(processor, split, sequences)
    return Inputs(model, called, f"{split.source}, {processor.description}", fit, measured)


def from_sounds(name: str, sources: Sequence[str], sequences: int) -> Inputs:
    """Recordings as the model's own feature extractor prepares them; of an encoder-decoder model its encoder."""
    split, processor = read_sounds(sources), load_sound_processor(name)
    model = load_model(name)
    if model.config.is_encoder_decoder:
        model, name = model.get_encoder(), f"{name} (encoder)"
    fit, measured = sound_batches(processor, split, sequences)
    return Inputs(model, name, split.source, fit, measured)


def _part(model: Any, name: str, part: str) -> tuple[Any, str]:
    """(what is inspected, what the report calls it): the text or the vision part of a model that has both."""
    if not {"text_model", "vision_model"} <= {child for child, _ in model.named_children()}:
        return model, name
    found = getattr(model, part)
    if not is_hugging_face(found):
        raise ArgumentError("MODEL", f"a model whose {part} can be run alone", type(model).__name__)
    return found, f"{name} ({part})"


def _with_decoder(model: Any, batch: Batch) -> Batch:
    start = model.config.decoder_start_token_id
    if start is None:
        raise ArgumentError("MODEL", "a decoder_start_token_id in the configuration", type(model).__name__)
    ids = torch.cat([torch.full_like(batch["input_ids"][:, :1], start), batch["input_ids"][:, :-1]], 1)
    return {**batch, "decoder_input_ids": ids}


def _check_length(model: Any, length: int) -> None:
    longest = getattr(model.config, "max_position_embeddings", None)
    if isinstance(longest, int) and length > longest:
        raise ArgumentError("--lengths", f"at most {longest}, the model's number of positions", length)
