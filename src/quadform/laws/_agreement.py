"""Law 1: every accepting form equals the dense float64 oracle, forward and for all gradients."""

from __future__ import annotations

import torch

from quadform._errors import Refused
from quadform.forms import FORMS
from quadform.laws._cases import DTYPES, draw
from quadform.laws._oracle import call_of, formula, gradients, resolved_edges
from quadform.laws._outcome import TOLERANCE, Outcome, distance, gradient_distance, name_of


def agreement(row: str, seed: int, dtype: str, limit: int | None = None, only: str | None = None) -> list[Outcome]:
    """max|y - y*| / max|y*| of each form that accepts (or of one), y* from the formula in float64 on the same values.

    In half precision the bound is twice the error of the formula in that dtype, plus one unit in the last place.
    """
    case = draw(row, seed, DTYPES[dtype], limit)
    edges = resolved_edges(case)
    expected, slopes = gradients(case, lambda x: formula(case, x, edges), torch.float64)
    bound = TOLERANCE.get(case.dtype)
    bounds = (bound, bound)
    if bound is None:
        y, slope = gradients(case, lambda x: formula(case, x, edges), case.dtype)
        ulp = torch.finfo(case.dtype).eps
        bounds = (2 * distance(y, expected) + ulp, 2 * gradient_distance(slope, slopes) + ulp)
    out = []
    call = call_of(case, case.leaves(case.dtype))
    for name, form in FORMS.items():
        if only not in (None, name) or form.refusal(call) is not None:
            continue
        try:
            y, found = gradients(case, lambda x, name=name: case.attend(name, x), case.dtype)  # type: ignore[misc]
        except Refused as refused:
            out.append(Outcome("agreement", row, name, dtype, float("inf"), 0.0, f"accepted, then refused: {refused}"))
            continue
        for what, error, tolerance in (
            ("output", distance(y, expected), bounds[0]),
            ("gradient", gradient_distance(found, slopes), bounds[1]),
        ):
            assert tolerance is not None
            witness = f"{what} of {case.describe()}"
            out.append(Outcome("agreement", row, name, name_of(case.dtype), error, tolerance, witness))
    return out
