"""Several states that move together: those of a layer's head groups, and those of a model's layers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.forms import _state_file
from quadform.forms.recurrent._state import State
from quadform.forms.recurrent._state_checks import check_finite


@dataclass(frozen=True, eq=False)
class States:
    """A value, as each `State` in it is.

    Attributes:
        parts: one state for each head group of a layer, of one batch.
    """

    parts: tuple[State, ...]

    @property
    def batch(self) -> int:
        return self.parts[0].batch

    @property
    def length(self) -> Tensor:
        """(B,) int64, how many positions each row has seen."""
        return self.parts[0].length

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(part.nbytes for part in self.parts)

    def to(self, device: torch.device | str) -> States:
        """The same states on another device."""
        return States(tuple(part.to(device) for part in self.parts))

    def reorder(self, index: Tensor) -> States:
        """Rows `index` (B',) of the batch, in that order."""
        return States(tuple(part.reorder(index) for part in self.parts))

    def fork(self) -> States:
        """Another hand on the same value: no call on one is seen by the other."""
        return States(tuple(part.fork() for part in self.parts))

    def detach(self) -> States:
        """The same values without their history."""
        return States(tuple(part.detach() for part in self.parts))

    def save(self, path: str | os.PathLike[str]) -> None:
        """One file, see `save_states`."""
        save_states(path, [self])

    @staticmethod
    def load(path: str | os.PathLike[str]) -> States:
        """What `save` wrote; errors as `load_states`."""
        found = load_states(path)
        if len(found) != 1 or not isinstance(found[0], States):
            raise ArgumentError("path", "a file of one layer's states", f"{len(found)} layers")
        return found[0]


def save_states(path: str | os.PathLike[str], states: Sequence[State | States]) -> None:
    """Writes the states of a whole model, one entry for each layer, to one safetensors file.

    The file is written whole or not at all (a temporary sibling, flushed to disk, renamed), and a stream that goes on from
    `load_states` goes on with the same bits.

    Errors: ArgumentError for a state that holds NaN or infinity, which `load_states` would refuse; QuadformError where the
    file cannot be written.

    Reference, for layers of one state each:

        tensors = {f"{i}.{name}": x for i, s in enumerate(states) for name, x in s.to_tensors()[0].items()}
        about = json.dumps([s.to_tensors()[1] for s in states])
        save_file(tensors, path, {"schema": "quadform/state/1", "states": about})
    """
    for state in states:
        for part in state.parts if isinstance(state, States) else (state,):
            for name, x in part.tensors.items():
                check_finite(name, x)
    _state_file.write(
        path, [[p.to_tensors() for p in s.parts] if isinstance(s, States) else s.to_tensors() for s in states]
    )


def load_states(path: str | os.PathLike[str], *, largest: int = _state_file.LARGEST) -> list[State | States]:
    """What `save_states` wrote, on the CPU.

    Args:
        largest: bytes of a file that is read at all.

    Errors: QuadformError names the file and what is wrong: no such file, another schema, unknown or missing entries, shapes
    or dtypes that do not belong together, absurd sizes, numbers that are not finite. Nothing in the file is executed.
    """
    out: list[State | States] = []
    for part in _state_file.read(path, largest):
        with _state_file.naming(path):
            if isinstance(part, list):
                if not part:
                    raise ArgumentError("states", "at least one head group", "none")
                out.append(States(tuple(State.from_tensors(*p) for p in part)))
            else:
                out.append(State.from_tensors(*part))
    return out
