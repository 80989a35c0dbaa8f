"""The tensors of one call, with the names of their dimensions, so that a block of the call can be cut out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from quadform._errors import ArgumentError
from quadform.algebra._edges import Edges
from quadform.algebra._layout import Layout

Dims = tuple[str, ...]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a description asks of the call.

    Attributes:
        name: key in `tensors`.
        dims: "B" (or 1), "H" (or 1), "Q", "K", "D" head_dim, "E" edges, "T" taps, a number, or a letter of one's own.
        meaning: one line for error messages and docs.
        optional: may be left out.
    """

    name: str
    dims: Dims
    meaning: str
    optional: bool = False


@dataclass(frozen=True, eq=False)
class Operands:
    """q (B, H, n, M), k (B, H, m, M) and v (B, H, m, Dv) of a call, all of H heads, and its named tensors.

    `dims` names the dimensions of each tensor as its TensorSpec does. q and k are None where no weight reads them.
    """

    q: Tensor | None
    k: Tensor | None
    v: Tensor
    layout: Layout
    edges: Edges
    heads: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    dims: Mapping[str, Dims] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.v.shape[0]

    def require(self, name: str) -> Tensor:
        """q or k, which the weights read."""
        value = self.q if name == "q" else self.k
        if value is None:
            raise ArgumentError(name, "a tensor, since the weights or the edges read it", "None")
        return value

    def named(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ArgumentError("tensors", f"an entry {name!r}", f"{sorted(self.tensors) or 'none'}")
        return self.tensors[name]

    def optional(self, name: str) -> Tensor | None:
        return self.tensors.get(name)

    def with_features(self, q: Tensor | None, k: Tensor | None, **more: tuple[Dims, Tensor]) -> Operands:
        """The same call with other q and k (features of them) and further tensors."""
        tensors = dict(self.tensors) | {name: tensor for name, (_, tensor) in more.items()}
        dims = dict(self.dims) | {name: names for name, (names, _) in more.items()}
        return dataclasses.replace(self, q=q, k=k, tensors=tensors, dims=dims)

    def block(self, rows: slice, columns: slice) -> Operands:
        """The receivers `rows` and the senders `columns` alone."""

        def cut(x: Tensor, names: Dims) -> Tensor:
            for axis, name in enumerate(names):
                if name in ("Q", "K"):
                    part = rows if name == "Q" else columns
                    x = x.narrow(axis, part.start, part.stop - part.start)
            return x

        return dataclasses.replace(
            self,
            q=None if self.q is None else self.q[:, :, rows],
            k=None if self.k is None else self.k[:, :, columns],
            v=self.v[:, :, columns],
            layout=self.layout.block(rows, columns),
            tensors={name: cut(x, self.dims[name]) for name, x in self.tensors.items()},
        )

    def row(self, b: int) -> Operands:
        """Row b of the batch alone."""
        pick = slice(b, b + 1)
        return dataclasses.replace(
            self,
            q=None if self.q is None else self.q[pick],
            k=None if self.k is None else self.k[pick],
            v=self.v[pick],
            layout=self.layout.row(b),
            tensors={
                name: x[pick] if self.dims[name][0] == "B" and x.shape[0] > 1 else x for name, x in self.tensors.items()
            },
        )

    def parts(self, name: Literal["B", "H"]) -> list[Operands]:
        """Each row of the batch, or each head, alone; the backward pass joins the gradients of all of them at once."""
        axis, count = (0, self.batch) if name == "B" else (1, self.heads)

        def split(x: Tensor, names: Dims) -> Sequence[Tensor]:
            at = names.index(name) if name in names else None
            return [x] * count if at is None or x.shape[at] == 1 else x.split(1, at)

        given = {which: x for which in ("q", "k", "v") if (x := getattr(self, which)) is not None}
        content = {which: split(x, ("B", "H")) for which, x in given.items()}
        named = {key: split(x, self.dims[key]) for key, x in self.tensors.items()}
        return [
            dataclasses.replace(
                self,
                layout=self.layout.row(i) if axis == 0 else self.layout,
                heads=1 if axis else self.heads,
                tensors={key: xs[i] for key, xs in named.items()},
                **{which: xs[i] for which, xs in content.items()},  # type: ignore[arg-type]
            )
            for i in range(count)
        ]
