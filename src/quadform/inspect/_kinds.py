"""What a head is called: the kind of the simplest form that fits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quadform.inspect._report import FormError, FormInfo

TOLERANCE = 0.10


def name_kind(
    errors: Mapping[str, FormError],
    forms: Mapping[str, FormInfo],
    tolerance: float = TOLERANCE,
) -> str | None:
    """The kind of the first form, in order of simplicity, whose error is at most `tolerance`; None where none fits.

    The mean counts by its raw error; every other form by its centred one, because a form that only gets the mean right
    is the mean; by the raw one where the output never varies.
    """
    for position, (name, form) in enumerate(forms.items()):
        if name in errors:
            error = errors[name]
            value = error.raw if position == 0 or error.centred is None else error.centred
            if value <= tolerance:
                return form.kind
    return None
