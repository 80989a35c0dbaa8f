"""A decoder whose attention is computed by mixers, head by head."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from quadform._errors import ArgumentError, QuadformError
from quadform.integrations.hugging_face._beside import Watch
from quadform.integrations.hugging_face._cache import StateCache
from quadform.integrations.hugging_face._capture import _implementations, attention_modules, is_hugging_face
from quadform.integrations.hugging_face._mixed_attention import MIXERS, NAME, register
from quadform.integrations.hugging_face._mixers import Mixers, ModuleMixers, _is_mixer


def with_mixers(model: Any, mixers: Mixers | None = None) -> Mixed:
    """Replaces the attention of a transformers decoder by mixers, until the result is restored or its `with` ends.

    Args:
        model: a decoder whose attention goes through transformers' attention interface (GPT-2, Llama, Qwen3, ...).
        mixers: one mixer (edges, weights) or (edges, weights, tensors) for every layer, or a mapping from the index of a
            layer, the name of its attention module, or "*" for all others, to a mixer or to a list of (key-value heads,
            mixer). What it does not name, or maps to None, stays the model's own softmax. Tensors belong to the query
            heads of their group. Where weights leave the scale of q'k open, the model's own is used.

    Raises:
        ArgumentError: a layer, head or mixer that does not fit the model; edges that are not causal.
        QuadformError: attention that does not go through the interface, a module that never runs, a sliding window or soft
            cap that a mixer would ignore.

    Example:

        with with_mixers(model, {0: (Causal(), Kernel("elu1")), 1: [((0,), (Window(31, sinks=4), Softmax()))]}) as mixed:
            tokens = model.generate(ids, cache=mixed.cache(), max_new_tokens=60)
    """
    return Mixed(model, mixers)


class Mixed:
    """A model with mixers; see `with_mixers`.

    Attributes:
        model: the model itself, whose attention modules now call the mixers.
        modules: the mixers of each attention module, by name, in the order of the layers.
    """

    def __init__(self, model: Any, mixers: Mixers | None) -> None:
        _check_model(model)
        named = dict(model.named_modules())
        names = attention_modules(model)
        given = _by_name(mixers, names)
        self.model = model
        self.modules = {name: ModuleMixers(name, given.get(name)) for name in names}
        self._undo = ExitStack()
        with ExitStack() as undo:
            for name, mixer in self.modules.items():
                undo.callback(_forget, named[name], mixer)
                setattr(named[name], MIXERS, mixer)
            register()
            for config, before in _implementations(model).values():
                undo.callback(setattr, config, "_attn_implementation_internal", before)
                config._attn_implementation_internal = NAME
            self._probe()
            self._undo = undo.pop_all()

    def cache(self) -> StateCache:
        """A new `StateCache` for `generate(..., cache=...)`. Errors: Refused where a mixer keeps no state."""
        return StateCache(self)

    def restore(self) -> None:
        """Gives the model its own attention back; caches that were made here can no longer be used."""
        self._undo.close()

    def __enter__(self) -> Mixed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def _probe(self) -> None:
        """Two tokens: every module must run, and no attention beside it."""
        watch, ids = Watch(self.model), torch.zeros(1, 2, dtype=torch.int64, device=self.model.device)
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            for mixers in self.modules.values():
                mixers.watch = watch
            with torch.no_grad(), watch.watching():
                self.model(input_ids=ids, use_cache=False)
        finally:
            for mixers in self.modules.values():
                mixers.watch = None
            for module in training:
                module.training = True
        if silent := [name for name, mixers in self.modules.items() if mixers.sizes is None]:
            raise QuadformError(f"attention modules that do not call the registered function: {', '.join(silent)}")


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module) or not is_hugging_face(model):
        raise ArgumentError("model", "a model of transformers", type(model).__name__)
    if getattr(model.config, "is_encoder_decoder", False) or getattr(model.config, "add_cross_attention", False):
        raise ArgumentError("model", "a decoder alone, without cross-attention", type(model).__name__)
    if any(hasattr(module, MIXERS) for module in model.modules()):
        raise ArgumentError("model", "a model without mixers (call restore() first)", "one that has them already")


def _by_name(mixers: Mixers | None, names: list[str]) -> dict[str, Any]:
    """Each named module's mixers; a layer's index counts the attention modules."""
    if mixers is None:
        return {}
    if _is_mixer(mixers):
        return dict.fromkeys(names, mixers)
    if not isinstance(mixers, Mapping):
        raise ArgumentError(
            "mixers", "(edges, weights, tensors), or a mapping from layers to mixers", repr(mixers)[:80]
        )
    found: dict[str, Any] = {}
    for key, value in mixers.items():
        if key == "*":
            continue
        name: Any = key
        if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(names):
            name = names[key]
        if name not in names or name in found:
            known = f"layers from 0 to {len(names) - 1}, or names such as {names[0]}, once each"
            raise ArgumentError("mixers", known, repr(key))
        found[name] = value
    return dict.fromkeys(names, mixers.get("*")) | found


def _forget(module: nn.Module, mixers: ModuleMixers) -> None:
    mixers.active = False
    if hasattr(module, MIXERS):
        delattr(module, MIXERS)
