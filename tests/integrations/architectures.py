"""Tiny random models of many Hugging Face architectures, their inputs, and what capture should find in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY = 60

Inputs = Callable[[], dict[str, Tensor]]


@dataclass(frozen=True)
class Architecture:
    """One architecture in a size that runs in milliseconds.

    Attributes:
        name: what people call it.
        model: its class in transformers.
        config: arguments of the class's configuration.
        inputs: makes the arguments of a call.
        roles: for a part of module names the role of their calls, "causal", "bidirectional" or "cross"; the first part
            that a name contains decides. Every call of an attention module has one.
        calls: how many attention calls one forward pass makes.
        has: what else its attention has.
        refused: the first words of the refusal, for an architecture that is not captured.
        factor: of all weights of two dimensions or more, so that attention is far from uniform.
        beside: what mixes tokens in the model besides attention; it is not captured.
        shows: whether transformers returns the weights of all its attention calls.
    """

    name: str
    model: str
    config: Mapping[str, Any]
    inputs: Inputs
    roles: Mapping[str, str] = field(default_factory=dict)
    calls: int = 2
    has: tuple[str, ...] = ()
    refused: str | None = None
    factor: float = 6.0
    beside: str = ""
    shows: bool = True

    def build(self, implementation: str | None = None) -> Any:
        """The model in evaluation mode, the same weights at every call."""
        kind = getattr(transformers, self.model)
        torch.manual_seed(0)
        config = kind.config_class(**self.config)
        model = (
            kind(config) if implementation is None else kind._from_config(config, attn_implementation=implementation)
        )
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1 and bool(parameter.any()):
                    parameter.mul_(self.factor)
                else:
                    parameter.add_(0.1 * torch.randn(parameter.shape))
        return model.eval()

    def role(self, module: str) -> str:
        """The role that the table gives to a module."""
        return next(role for part, role in self.roles.items() if part in module)

    def attention(self) -> str:
        """The kinds of its attention and what else it has, in words."""
        kinds = ", ".join(sorted(set(self.roles.values()), key=("bidirectional", "causal", "cross").index))
        beside = f"{self.beside} beside it" if self.beside else ""
        return "; ".join(filter(None, (kinds, ", ".join(self.has), beside)))


def ids(rows: int = 2, n: int = 12, *, padding: int = 4, seed: int = 0, name: str = "input_ids") -> dict[str, Tensor]:
    """Random ids, the last row padded at its end."""
    tokens = torch.randint(5, VOCABULARY, (rows, n), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(tokens)
    if padding:
        mask[-1, -padding:] = 0
    prefix = name.removesuffix("input_ids")
    return {name: tokens, f"{prefix}attention_mask": mask}


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Normal random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def images(size: int = 16, rows: int = 2, channels: int = 3) -> dict[str, Tensor]:
    """Random images."""
    return {"pixel_values": noise(rows, channels, size, size)}


def pairs(n: int = 12, m: int = 7, rows: int = 2) -> dict[str, Tensor]:
    """Ids for an encoder with padding, and for its decoder."""
    return {**ids(rows, n), "decoder_input_ids": ids(rows, m, padding=0, seed=1)["input_ids"]}


def architectures() -> list[Architecture]:
    """The whole table, in order."""
    from tests.integrations import (
        architectures_detection as detection,
        architectures_mixed as mixed,
        architectures_seen as seen,
        architectures_sequence as sequence,
        architectures_sound as sound,
        architectures_text as text,
    )

    return [item for part in (text, mixed, sequence, sound, seen, detection) for item in part.TABLE]
