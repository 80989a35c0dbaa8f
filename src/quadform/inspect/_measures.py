"""Sums over a stream of captured calls of one site, and the errors that they give."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quadform._errors import QuadformError
from quadform.inspect import _structure
from quadform.inspect._block import Block, blocks
from quadform.inspect._captured import Captured
from quadform.inspect._report import FormError
from quadform.inspect._sums import Sums
from quadform.inspect.candidates import Candidate

Fitted = dict[str, Tensor]
TOLERANCE = 1e-6
"""Largest relative difference to the model's own computation, or the unit of a dtype that is coarser than that."""


class Fitting:
    """Fits the candidates of one site to a stream of calls."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates
        self._fitters = {candidate.name: fitter for candidate in candidates if (fitter := candidate.fitter())}

    def add(self, captured: Captured) -> None:
        """Hands one call to every fitter of a form that applies to it."""
        _check_finite(captured)
        refused = {candidate.name for candidate in self._candidates if candidate.refusal(captured)}
        self._fitters = {name: fitter for name, fitter in self._fitters.items() if name not in refused}
        for block in blocks(captured):
            for fitter in self._fitters.values():
                fitter.add(block)

    def fitted(self) -> Fitted:
        """Parameters by the candidate's name."""
        return {name: fitter.fitted() for name, fitter in self._fitters.items()}


class Measuring:
    """Measures the candidates of one site on a stream of calls that they were not fitted to.

    With y = A v, the raw error of a form with output p is sqrt(sum |y - p|^2 / sum |y|^2) over all measured tokens. The
    centred error has the same numerator; its denominator is sum |y - m|^2, with m the mean of y over the sequence.
    """

    def __init__(self, candidates: Sequence[Candidate], fitted: Fitted) -> None:
        self.candidates, self.fitted = candidates, fitted
        self.refusals: dict[str, str] = {}
        self.sums, self.structure = Sums(), Sums()
        self.causal, self.structured, self.tolerance = True, False, TOLERANCE

    def add(self, captured: Captured) -> None:
        """Adds one call to all sums."""
        _check_finite(captured)
        self.causal, self.structured = self.causal and captured.causal, self.structured or captured.structured
        self.tolerance = max(self.tolerance, torch.finfo(captured.output.dtype).eps)
        for candidate in self.candidates:
            if candidate.name not in self.refusals and (reason := candidate.refusal(captured)):
                self.refusals[candidate.name] = reason
        totals: Tensor | None = None
        for block in blocks(captured):
            self.structure.add(_structure.observe(block))
            self.sums.add(self._errors(block))
            rows = block.measured(block.output).sum(2, dtype=torch.float64)
            totals = rows if totals is None else totals + rows
        if totals is not None:
            tokens = captured.valid.sum(-1).clamp(min=1)[:, None, None]
            self.sums.add({"mean": (totals.square() / tokens).sum((0, 2))})

    def _errors(self, block: Block) -> dict[str, Tensor]:
        terms = {"output": _energy(block, block.output), "given": _energy(block, block.given - block.output)}
        for candidate in self.candidates:
            if candidate.name not in self.refusals:
                difference = block.output - candidate.apply(block, self.fitted.get(candidate.name))
                terms[f"error {candidate.name}"] = _energy(block, difference)
        return terms

    def reproduction(self, module: str) -> float:
        """Relative error of A v, as measured here, against what the model went on with; refuses too large a one."""
        given, output = self.sums.values["given"].sum(), self.sums.values["output"].sum()
        error = float((given / output.clamp(min=1e-300)).sqrt()) if float(given) else 0.0
        if not error <= self.tolerance:
            raise QuadformError(
                f"{module}: attention computed from the captured q, k, v and mask differs from what the model "
                f"computed by {error:.1e} (tolerance {self.tolerance:.0e}); nothing is reported"
            )
        return error

    def errors(self) -> list[dict[str, FormError]]:
        """For each head, by form; the centred error is None where the output never varies."""
        energy = self.sums.values["output"]
        varying = energy - self.sums.values["mean"]
        constant = varying <= 1e-10 * energy
        heads: list[dict[str, FormError]] = [{} for _ in energy]
        for candidate in self.candidates:
            if candidate.name in self.refusals:
                continue
            error = self.sums.values[f"error {candidate.name}"]
            raw = (error / energy.clamp(min=1e-300)).sqrt().tolist()
            centred = (error / varying.masked_fill(constant, 1.0)).sqrt().tolist()
            for at, flat in enumerate(constant.tolist()):
                heads[at][candidate.name] = FormError(raw[at], None if flat else centred[at])
        return heads


def _energy(block: Block, values: Tensor) -> Tensor:
    """(H): sum of squares over a block's measured rows."""
    return block.measured(values).square().sum((0, 2, 3), dtype=torch.float64)


def _check_finite(captured: Captured) -> None:
    if not bool(torch.isfinite(captured.output).all(-1).logical_or(~captured.valid[:, None]).all()):
        raise QuadformError(
            f"{captured.module}: the attention output is not finite (NaN or infinity in weights or inputs)"
        )
