"""What one attention call of a model was given, and who may see whom in it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from quadform._errors import QuadformError


@dataclass(frozen=True)
class Captured:
    """One call of one attention module.

    Attributes:
        module: the module's name in the model.
        call: how often the module was called before in this forward pass (layers may share a module).
        q: (B, H, N, D), after positions were applied.
        k, v: (B, Hkv, N, D) and (B, Hkv, N, E); H is a multiple of Hkv.
        keep: (B, 1 or H, N, N) boolean, True where query i may see key j. It carries padding, causality and windows.
        scaling: the factor of q'k.
        output: (B, H, N, E), what the model goes on with.
    """

    module: str
    call: int
    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor
    scaling: float
    output: Tensor
    valid: Tensor = field(init=False, repr=False)
    """(B, N): tokens that are no padding, that is, keys that some query sees."""
    causal: bool = field(init=False)
    """No query sees a later key."""
    structured: bool = field(init=False)
    """The mask holds more than padding and causality, such as a sliding window or packed sequences."""

    def __post_init__(self) -> None:
        n, m = self.q.shape[-2], self.k.shape[-2]
        if n != m:
            raise QuadformError(
                f"{self.module}: {n} queries attend to {m} keys; inspection covers self-attention over whole sequences"
            )
        lower = torch.ones(n, n, dtype=torch.bool, device=self.keep.device).tril()
        valid = self.keep.any(-2).any(1)
        causal = n > 1 and not bool((self.keep & ~lower).any())
        plain = valid[:, None, :] & (lower if causal else torch.ones_like(lower))
        differs = (self.keep != plain[:, None]) & valid[:, None, :, None]
        object.__setattr__(self, "valid", valid)
        object.__setattr__(self, "causal", causal)
        object.__setattr__(self, "structured", bool(differs.any()))

    @property
    def site(self) -> tuple[str, int]:
        """(module, call): what the report has one row for."""
        return self.module, self.call
