"""Capture of every attention call of a Hugging Face model, checked against the model's own output."""

from __future__ import annotations

import inspect as source
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from quadform._errors import ArgumentError, QuadformError
from quadform.inspect import Batch, Receive
from quadform.integrations.hugging_face._attention import NAME, Recorder, active, register

TOLERANCE = 1e-6
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


def is_hugging_face(model: nn.Module) -> bool:
    """Whether a model derives from transformers' PreTrainedModel; imports nothing."""
    return any(
        base.__name__ == "PreTrainedModel" and base.__module__.startswith("transformers.")
        for base in type(model).__mro__
    )


class HuggingFaceCapture:
    """Captures through transformers' attention interface; see `quadform.inspect.Capture`."""

    def run(self, model: nn.Module, batch: Batch, receive: Receive) -> None:
        """Runs a batch, handing over each attention call; every attention module must run at least once."""
        with capturing(model, batch, receive):
            _forward(model, batch)

    def check(self, model: nn.Module, batch: Batch) -> float:
        """Largest relative difference, ||a - b|| / ||a|| over unpadded rows, of the captured run's outputs.

        Raises:
            QuadformError: it exceeds 1e-6, or the unit of the model's dtype when that is coarser.
        """
        own = _outputs(_forward(model, batch), batch)
        with capturing(model, batch, lambda _: None):
            ours = _outputs(_forward(model, batch), batch)
        worst = 0.0
        for name, value in own.items():
            if not bool(torch.isfinite(value).all()):
                raise QuadformError(f"{type(model).__name__}: its output {name} is not finite (NaN or infinity)")
            norm = float(value.double().norm())
            error = float((value.double() - ours[name].double()).norm()) / norm if norm else 0.0
            if not error <= max(TOLERANCE, torch.finfo(value.dtype).eps):
                raise QuadformError(
                    f"{type(model).__name__}: the captured computation changes its output {name} by {error:.1e} "
                    f"(tolerance {TOLERANCE:.0e}), so its attention is not what capture takes it for"
                )
            worst = max(worst, error)
        return worst


@contextmanager
def capturing(model: nn.Module, batch: Batch, receive: Receive) -> Iterator[Recorder]:
    """Within it, every attention call of `model` goes to `receive`; afterwards all is as before.

    Raises:
        ArgumentError: the model is in training mode.
        QuadformError: the model does not use transformers' attention interface, or an attention module did not run.
    """
    if model.training:
        raise ArgumentError("model", "a model in evaluation mode (call model.eval())", "one in training mode")
    expected = attention_modules(model)
    register()
    before = _implementations(model)
    recorder = Recorder(model, batch, {key: old == "eager" for key, (_, old) in before.items()}, receive)
    token = active.set(recorder)
    try:
        for config, _ in before.values():
            config._attn_implementation_internal = NAME
        with recorder.watch.watching():
            yield recorder
    finally:
        active.reset(token)
        for config, old in before.values():
            config._attn_implementation_internal = old
    if silent := [name for name in expected if name not in recorder.calls]:
        raise QuadformError(f"attention modules that never ran in capture: {', '.join(silent)}")


def attention_modules(model: nn.Module) -> list[str]:
    """Names of all modules that call transformers' attention interface.

    Raises:
        QuadformError: there is none, or the model's class computes attention in its own way.
    """
    can_set = getattr(model, "_can_set_attn_implementation", None)
    names = [name for name, module in model.named_modules() if _uses_interface(type(module))]
    if can_set is None or not can_set() or not names:
        if not any(_ATTENTION.search(type(module).__name__) for module in model.modules()):
            raise QuadformError(f"{type(model).__name__} has no attention, so there is nothing to capture")
        raise QuadformError(
            f"{type(model).__name__} computes attention in its own way, not through transformers' attention "
            "interface, so it cannot be captured"
        )
    return names


def _uses_interface(kind: type[nn.Module]) -> bool:
    try:
        return "attention_interface(" in source.getsource(kind.forward)
    except (OSError, TypeError):
        return False


def _implementations(model: nn.Module) -> dict[int, tuple[Any, str | None]]:
    """Every configuration inside the model, by id, with its attention implementation."""
    found: dict[int, tuple[Any, str | None]] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation_internal"):
            found[id(config)] = (config, config._attn_implementation_internal)
    return found


def _forward(model: nn.Module, batch: Batch) -> Any:
    extra = {"use_cache": False} if getattr(model.config, "use_cache", False) else {}
    return model(**{**extra, **batch})


def _outputs(output: Any, batch: Batch) -> dict[str, Tensor]:
    """The floating-point tensors of an output, rows of padding removed."""
    named = output if isinstance(output, Mapping) else {"0": output}
    tensors = {k: v for k, v in named.items() if isinstance(v, Tensor) and v.is_floating_point()}
    if not tensors:
        raise QuadformError("the model returned no floating-point tensor to compare the captured run with")
    return {name: _unpadded(name, value, batch) for name, value in tensors.items()}


def _unpadded(name: str, value: Tensor, batch: Batch) -> Tensor:
    decodes = "decoder_input_ids" in batch and not name.startswith("encoder")
    mask = batch.get("decoder_attention_mask" if decodes else "attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2 and value.shape[:2] == mask.shape:
        return value[mask.bool()]
    return value
