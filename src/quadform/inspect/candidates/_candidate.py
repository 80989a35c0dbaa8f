"""What a candidate is: a cheaper form that a head is compared with."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from quadform.inspect._block import Block
from quadform.inspect._captured import Captured
from quadform.inspect._mixers import Mixer, Shape


class Fitter(Protocol):
    """Fits one candidate to the heads of one site, block by block, so that fitting is a stream."""

    def add(self, block: Block) -> None:
        """Takes in a block of fitting data."""

    def fitted(self) -> Tensor:
        """The parameters, one row for each head."""


class Candidate(Protocol):
    """A form that a head may be replaced by."""

    @property
    def name(self) -> str: ...

    @property
    def letter(self) -> str:
        """One capital, which marks the form on a map."""

    @property
    def kind(self) -> str:
        """What a head is called that the form fits."""

    @property
    def description(self) -> str: ...

    @property
    def oracle(self) -> bool:
        """Whether it needs all the scores, so that it diagnoses but saves nothing."""

    def refusal(self, captured: Captured) -> str | None:
        """Why the form does not apply to such a call, in a few words; None where it does."""

    def fitter(self) -> Fitter | None:
        """A new fitter; None when there is nothing to fit."""

    def apply(self, block: Block, fitted: Tensor | None) -> Tensor:
        """(B, H, R, E): the form's output on the block's rows."""

    def mixer(self, shape: Shape) -> Mixer | None:
        """The form as quadform would run it, for measuring its cost; None where it cannot be run."""


class Unfitted:
    """What candidates without parameters share."""

    oracle = False

    def refusal(self, captured: Captured) -> str | None:
        return None

    def fitter(self) -> Fitter | None:
        return None


def every_pair(size: int, tokens: int) -> str | None:
    """The refusal of forms that would keep all there is, and so save nothing."""
    return f"{tokens} tokens are not more than it keeps" if size >= tokens else None


def no_offsets(captured: Captured) -> str | None:
    """The refusal of forms that need j - i."""
    return "queries and keys are different sequences, so j - i means nothing" if captured.cross else None
