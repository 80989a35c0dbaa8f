"""A cache for transformers' `generate` whose layers keep states of mixers in place of keys and values."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quadform._errors import ArgumentError, QuadformError
from quadform.forms import State
from quadform.integrations.hugging_face._mixed_attention import CACHED
from quadform.integrations.hugging_face._mixers import ModuleMixers

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as Base

    from quadform.integrations.hugging_face._mixed import Mixed
else:
    Base = object


class StateLayer:
    """One layer of a `StateCache`: a state for each of its head groups.

    Attributes:
        mixers: the mixers of the module that it belongs to.
        states: one for each group; empty before the first token.
        seen: tokens so far, padding included.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, mixers: ModuleMixers) -> None:
        self.mixers = mixers
        self.keys = self.values = None
        self.is_initialized = False
        self.states: list[State] = []
        self.seen = 0
        self.waiting = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values as they are, marked for the attention function, which moves the states on."""
        if not self.mixers.active:
            raise QuadformError(
                f"{self.mixers.name} has its own attention again, and this cache holds states of mixers"
            )
        if self.waiting:
            raise QuadformError(f"{self.mixers.name}: keys that went through this cache never reached its mixers")
        self.is_initialized = True
        self.waiting = key_states.shape[-2]
        setattr(key_states, CACHED, self)
        return key_states, value_states

    def advance(self, states: list[State] | None) -> None:
        """Takes the states after the tokens that `update` was given."""
        self.states = states or []
        self.seen += self.waiting
        self.waiting = 0

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, offset): only the new keys are masked, the old ones are in the states."""
        return query_length, self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.states = [state.reorder(beam_idx) for state in self.states]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.states = [state.reorder(_rows(state).repeat_interleave(repeats)) for state in self.states]

    def batch_select_indices(self, indices: Tensor) -> None:
        self.states = [state.reorder(_rows(state)[indices]) for state in self.states]

    def crop(self, tokens_to_remove: int) -> None:
        """Errors: QuadformError, except for 0 tokens."""
        if tokens_to_remove:
            raise QuadformError(_NO_WAY_BACK)

    def activate_past_recording(self) -> None:
        raise QuadformError(_NO_WAY_BACK)

    def reset(self) -> None:
        self.states, self.seen, self.waiting = [], 0, 0

    def offload(self) -> None:
        """Nothing: a state stays where it is."""

    def prefetch(self) -> None:
        """Nothing: a state stays where it is."""


class StateCache(Base):
    """The states of all layers of a model with mixers, as a cache that `generate` takes.

    A kernel, a window with sinks, a convolution or a hybrid keeps a state of constant size; heads that stay softmax keep
    their keys and values, as any cache does. Beam search, left padding, prefill in chunks and batches that are repeated
    or selected work. Methods that take tokens back (assisted decoding, prompt lookup, contrastive search) are refused: a
    sum does not forget.

    Args:
        mixed: the model with mixers, see `with_mixers`.

    Errors: Refused where a mixer keeps no state.
    """

    layers: list[Any]
    mixed: Mixed

    def __new__(cls, mixed: Mixed) -> StateCache:
        return object.__new__(_classes()[0])

    def __init__(self, mixed: Mixed) -> None:
        for mixers in mixed.modules.values():
            mixers.check_streams()
        self.mixed = mixed
        layer = _classes()[1]
        self.layers = [layer(mixers) for mixers in mixed.modules.values()]
        self.layer_class_to_replicate = None
        self.offloading = False

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for layer in self.layers for state in layer.states)

    @property
    def seen(self) -> int:
        """Tokens so far, padding included."""
        return int(self.layers[0].seen)

    @property
    def batch_size(self) -> int:
        """Rows of the states; -1 before the first token."""
        return int(self.layers[0].states[0].batch) if self.layers[0].states else -1

    def states(self) -> dict[str, State]:
        """Every state by "layer.group"."""
        return {f"{i}.{j}": state for i, layer in enumerate(self.layers) for j, state in enumerate(layer.states)}

    def resume(self, states: dict[str, State], seen: int) -> None:
        """Takes these states, as `states` gave them for the same mixers, after `seen` tokens.

        Errors: ArgumentError where they belong to other mixers.
        """
        expected = {
            f"{i}.{j}": f"{group.weights} on {group.edges}"
            for i, layer in enumerate(self.layers)
            for j, group in enumerate(layer.mixers.groups)
        }
        found = {name: state.mixer for name, state in states.items()}
        for name in sorted(expected | found):
            if expected.get(name) != found.get(name):
                raise ArgumentError(
                    "state", f"for layer and group {name} one of {expected.get(name)}", str(found.get(name))
                )
        for i, layer in enumerate(self.layers):
            layer.reset()
            layer.states = [states[f"{i}.{j}"] for j in range(len(layer.mixers.groups))]
            layer.seen, layer.is_initialized = seen, True


_NO_WAY_BACK = (
    "assisted decoding, prompt lookup and contrastive search take tokens back, and a state cannot: a sum does not say what "
    "each token added; decode without them, or without a StateCache"
)


def _rows(state: State) -> Tensor:
    return torch.arange(state.batch, device=state.length.device)


@functools.cache
def _classes() -> tuple[type[Any], type[Any]]:
    """(StateCache, StateLayer) as classes of transformers too."""
    from transformers.cache_utils import Cache, CacheLayerMixin

    return (
        type("StateCache", (StateCache, Cache), {"__module__": __name__}),
        type("StateLayer", (StateLayer, CacheLayerMixin), {"__module__": __name__}),
    )
