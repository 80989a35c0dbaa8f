"""The state of a stream: a value, whatever the mixer keeps in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import ArgumentError


@dataclass(frozen=True, eq=False)
class State:
    """What a stream keeps between two calls; no call changes a state that it is given.

    Attributes:
        kind: "kernel" (S, z), "tail" (the last keys and values, and sinks), or "hybrid" (both).
        mixer: the edges and weights it belongs to, as text.
        length: (B,) int64, how many positions each row has seen.
        tensors: named tensors whose first dimension is the batch. Sums are float32 or more; keys and values keep the dtype
            of the call.
    """

    kind: str
    mixer: str
    length: Tensor
    tensors: Mapping[str, Tensor]

    @property
    def batch(self) -> int:
        return self.length.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in (self.length, *self.tensors.values()))

    def to(self, device: torch.device | str) -> State:
        """The same state on another device."""
        moved = {name: t.to(device) for name, t in self.tensors.items()}
        return dataclasses.replace(self, length=self.length.to(device), tensors=moved)

    def reorder(self, index: Tensor) -> State:
        """Rows `index` (B',) of the batch, in that order: what a beam search keeps."""
        index = index.to(self.length.device)
        picked = {name: t.index_select(0, index) for name, t in self.tensors.items()}
        return dataclasses.replace(self, length=self.length.index_select(0, index), tensors=picked)

    def detach(self) -> State:
        """The same values without their history."""
        return dataclasses.replace(self, tensors={name: t.detach() for name, t in self.tensors.items()})

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """(tensors, metadata), as `safetensors.torch.save_file` takes them; `from_tensors` restores the same bits."""
        tensors = {name: t.detach().contiguous() for name, t in self.tensors.items()}
        return tensors | {"length": self.length}, {"kind": self.kind, "mixer": self.mixer}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> State:
        """The state that `to_tensors` took apart. Errors: ArgumentError for a missing entry."""
        for name, where in (("length", tensors), ("kind", metadata), ("mixer", metadata)):
            if name not in where:
                raise ArgumentError("tensors", f"an entry {name!r}", str(sorted(where)))
        rest = {name: t for name, t in tensors.items() if name != "length"}
        return State(metadata["kind"], metadata["mixer"], tensors["length"], rest)
