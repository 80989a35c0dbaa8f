"""How a model's attention calls are captured: one adapter per library of models."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from quadform._errors import ArgumentError
from quadform.inspect._captured import Captured

Batch = Mapping[str, Tensor]
Receive = Callable[[Captured], None]


class Capture(Protocol):
    """Runs a model and hands over the q, k and v of every attention call."""

    def run(self, model: nn.Module, batch: Batch, receive: Receive) -> None:
        """Runs `batch`, calling `receive` once for each attention call, in order; keeps nothing."""

    def check(self, model: nn.Module, batch: Batch) -> float:
        """Relative error of the captured run's output against the model's own; raises QuadformError if too large."""


class _Adapter(NamedTuple):
    accepts: Callable[[nn.Module], bool]
    capture: Callable[[], Capture]


_adapters: list[_Adapter] = []

# Integrations register here when they are imported. They import this package, so it names them as strings and loads
# them only when a model arrives that no registered adapter accepts.
_PROVIDERS = ("quadform.integrations.hugging_face", "quadform.integrations.timm", "quadform.integrations.torch_nn")


def register_capture(accepts: Callable[[nn.Module], bool], capture: Callable[[], Capture]) -> None:
    """Makes `inspect` use `capture()` for every model that `accepts(model)` is true of."""
    _adapters.append(_Adapter(accepts, capture))


def find_capture(model: Any) -> Capture:
    """The capture adapter of a model; ArgumentError when there is none."""
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", "a torch.nn.Module", type(model).__name__)
    for provider in (None, *_PROVIDERS):
        if provider is not None:
            importlib.import_module(provider)
        for adapter in _adapters:
            if adapter.accepts(model):
                return adapter.capture()
    raise ArgumentError(
        "model",
        "a Hugging Face or timm model, one with torch.nn.MultiheadAttention inside, or any together with capture=",
        f"{type(model).__module__}.{type(model).__name__}",
    )
