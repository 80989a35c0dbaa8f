"""What one attention call of a model was given, and who may see whom in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quadform._errors import ArgumentError, QuadformError
from quadform.inspect._grid import Grid


@dataclass(frozen=True, eq=False)
class Captured:
    """One call of one attention module: y_i = sum over kept j of w_ij v_j with

        s_ij = cap(scaling q_i'k_j) + bias_ij,  cap(s) = softcap tanh(s / softcap),
        w_ij = exp(s_ij) / (exp(sink) + sum over kept l of exp(s_il)).

    Attributes:
        module: the module's name in the model.
        call: how often the module was called before in this forward pass (layers may share a module).
        q: (B, H, N, D), after positions were applied.
        k, v: (B, Hkv, M, D) and (B, Hkv, M, E); H is a multiple of Hkv.
        keep: (B, 1 or H, N, M) boolean, True where query i may see key j. It carries padding, causality and windows.
        scaling: the factor of q'k.
        output: (B, H, N, E), what the model goes on with.
        bias: (1 or B, 1 or H, N, M), added to the scores after the cap; None where there is none.
        softcap: bound of the scores; None where there is none.
        sink: (H), the score of a further key whose value is 0; None where there is none.
        cross: queries and keys are different sequences.
        grid: where the keys stand; a line unless given.
        queries: (B, N), queries that are no padding; for self-attention those that some query sees, unless given.
    """

    module: str
    call: int
    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor
    scaling: float
    output: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    cross: bool = False
    grid: Grid | None = None
    queries: Tensor | None = None
    place: Grid = field(init=False)
    """`grid`, or the line of the keys."""
    valid: Tensor = field(init=False, repr=False)
    """(B, N): queries that are measured: no padding and no special tokens of a grid."""
    seen: Tensor = field(init=False, repr=False)
    """(B, M): keys that some query sees."""
    causal: bool = field(init=False)
    """No query sees a later key of its own sequence."""
    structured: bool = field(init=False)
    """The mask holds more than padding and causality, such as a sliding window or packed sequences."""

    def __post_init__(self) -> None:
        n, m = self.q.shape[-2], self.k.shape[-2]
        if n != m and not self.cross:
            raise QuadformError(
                f"{self.module}: {n} queries attend to {m} keys; inspection covers whole sequences and cross-attention"
            )
        grid = self.grid or Grid((m,))
        if grid.tokens != m:
            raise ArgumentError("grid", f"one of {m} tokens, the keys of {self.module}", grid)
        lower = torch.ones(n, m, dtype=torch.bool, device=self.keep.device).tril()
        seen = self.keep.any(-2).any(1)
        causal = not self.cross and n > 1 and not bool((self.keep & ~lower).any())
        queries = self.queries
        if queries is None:
            queries = torch.ones(len(seen), n, dtype=torch.bool, device=seen.device) if self.cross else seen
        plain = seen[:, None, :] & (lower if causal else torch.ones_like(lower))
        differs = (self.keep != plain[:, None]) & queries[:, None, :, None]
        valid = queries.clone()
        if not self.cross:
            valid[:, : grid.special] = False
        object.__setattr__(self, "place", grid)
        object.__setattr__(self, "valid", valid)
        object.__setattr__(self, "seen", seen)
        object.__setattr__(self, "causal", causal)
        object.__setattr__(self, "structured", bool(differs.any()))

    @property
    def site(self) -> tuple[str, int]:
        """(module, call): what the report has one row for."""
        return self.module, self.call

    def sequence(self, row: int) -> Captured:
        """The call for one sequence of the batch."""
        one = slice(row, row + 1)
        parts = {name: getattr(self, name)[one] for name in ("q", "k", "v", "keep", "output")}
        optional = {
            name: x[one] for name in ("bias", "queries") if (x := getattr(self, name)) is not None and len(x) > 1
        }
        return replace(self, **parts, **optional)
