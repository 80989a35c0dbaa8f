"""The state of a stream: a value, whatever the mixer keeps in it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform._errors import ArgumentError
from quadform.forms import _state_file
from quadform.forms.recurrent._state_checks import ENTRIES, check_finite, check_state


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
        """Bytes of all tensors; a stream that grows may have room for as many again in the buffer underneath."""
        return sum(t.numel() * t.element_size() for t in (self.length, *self.tensors.values()))

    def require(self, name: str, like: Tensor, axis: int | None = None) -> Tensor:
        """The tensor of that name, of the dtype and, but for dimension `axis`, of the shape of `like`.

        Errors: ArgumentError where the state belongs to a model of other sizes.
        """
        x = self.tensors[name]
        same = x.dtype == like.dtype and x.dim() == like.dim()
        if not same or any(a != b for d, (a, b) in enumerate(zip(x.shape, like.shape, strict=True)) if d != axis):
            sizes = ["any" if d == axis else str(n) for d, n in enumerate(like.shape)]
            expected = f"{name} of {like.dtype} and shape ({', '.join(sizes)})"
            raise ArgumentError("state", expected, f"{x.dtype} {tuple(x.shape)}")
        return x

    def to(self, device: torch.device | str) -> State:
        """The same state on another device."""
        moved = {name: t.to(device) for name, t in self.tensors.items()}
        return dataclasses.replace(self, length=self.length.to(device), tensors=moved)

    def reorder(self, index: Tensor) -> State:
        """Rows `index` (B',) of the batch, in that order: what a beam search keeps."""
        index = index.to(self.length.device)
        picked = {name: t.index_select(0, index) for name, t in self.tensors.items()}
        return dataclasses.replace(self, length=self.length.index_select(0, index), tensors=picked)

    def fork(self) -> State:
        """Another hand on the same value, at no cost: no call on one is seen by the other."""
        return dataclasses.replace(self)

    def detach(self) -> State:
        """The same values without their history."""
        if not any(t.requires_grad for t in self.tensors.values()):
            return self.fork()
        return dataclasses.replace(self, tensors={name: t.detach() for name, t in self.tensors.items()})

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """(tensors, metadata), as `safetensors.torch.save_file` takes them; `from_tensors` restores the same bits."""
        tensors = {name: t.detach().contiguous() for name, t in self.tensors.items()}
        return tensors | {"length": self.length}, {"kind": self.kind, "mixer": self.mixer}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> State:
        """The state that `to_tensors` took apart.

        Errors: ArgumentError for a missing or unknown entry, an unknown kind, tensors that do not have one batch or
        whose shapes or dtypes do not belong together, and numbers that are not finite.
        """
        for name in ("kind", "mixer"):
            if name not in metadata:
                raise ArgumentError("metadata", f"an entry {name!r}", str(sorted(metadata)))
        kind = metadata["kind"]
        if kind not in ENTRIES:
            raise ArgumentError("metadata['kind']", f"one of {', '.join(map(repr, ENTRIES))}", repr(kind))
        for name in ("length", *ENTRIES[kind]):
            if name not in tensors:
                raise ArgumentError("tensors", f"an entry {name!r}", str(sorted(tensors)))
        length = tensors["length"]
        if length.dim() != 1 or length.dtype != torch.int64:
            raise ArgumentError("tensors['length']", "an int64 tensor (B,)", f"{length.dtype} {tuple(length.shape)}")
        for name, t in tensors.items():
            if t.shape[:1] != length.shape:
                raise ArgumentError(f"tensors[{name!r}]", f"a batch of {length.shape[0]} rows", str(tuple(t.shape)))
        rest = {name: t for name, t in tensors.items() if name != "length"}
        check_state(kind, metadata["mixer"], length, rest)
        return State(kind, metadata["mixer"], length, rest)

    def save(self, path: str | os.PathLike[str]) -> None:
        """One safetensors file, written whole or not at all. Errors: as `save_states`."""
        for name, t in self.tensors.items():
            check_finite(name, t)
        _state_file.write(path, [self.to_tensors()])

    @staticmethod
    def load(path: str | os.PathLike[str]) -> State:
        """What `save` wrote, on the CPU. Errors: QuadformError, as `load_states`."""
        with _state_file.naming(path):
            found = _state_file.read(path)
            if len(found) != 1 or not isinstance(found[0], tuple):
                raise ArgumentError("states", "one state; `load_states` reads several", f"those of {len(found)} layers")
            return State.from_tensors(*found[0])
