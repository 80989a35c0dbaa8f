"""The registry of conversions, keyed by (source class, target), and the certificate that each one returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from quadform._errors import ArgumentError, NotExact


@dataclass(frozen=True)
class Certificate:
    """What is known about the difference between source and result.

    Attributes:
        theorem: why the two are equal, in a sentence; None where they are not.
        bound: a proven bound on max|y - y*| / max|y*|; None where there is none.
        error: the same, measured in `dtype` on `probes` inputs.
        witness: the input with the largest measured error.
    """

    theorem: str | None
    bound: float | None
    error: float
    dtype: str
    probes: int
    witness: Any


@dataclass(frozen=True)
class Converted:
    """The result of a conversion and its certificate."""

    module: Any
    certificate: Certificate


Conversion = Callable[[Any], Converted]
F = TypeVar("F", bound=Conversion)
_CONVERSIONS: dict[tuple[type, str], Conversion] = {}
ROUNDING = {"float64": 1e-10, "float32": 1e-5}


def register(source: type, target: str) -> Callable[[F], F]:
    """Registers a function source object -> Converted under (source class, target name)."""

    def decorate(function: F) -> F:
        _CONVERSIONS[source, target] = function
        return function

    return decorate


def convert(module: Any, *, to: str, tolerance: float = 0.0) -> Converted:
    """Converts a layer or a description to another form.

    Args:
        module: what to convert. Its class and those it inherits from are looked up in the registry.
        to: name of the target.
        tolerance: accepted max|y - y*| / max|y*|. 0 accepts equality by theorem alone, up to rounding.

    Returns:
        Converted, with `.module` and `.certificate`.

    Errors: NotExact where the measured error is above the tolerance, with `.error` and `.witness`; ArgumentError where no
    such conversion is registered.

    Reference:

        kernel = convert(Similarity("polynomial"), to="kernel").module
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
        raise ArgumentError("tolerance", "a number of at least 0", repr(tolerance))
    for cls in type(module).__mro__:
        if (cls, to) in _CONVERSIONS:
            return _checked(_CONVERSIONS[cls, to](module), module, to, tolerance)
    known = ", ".join(sorted(f"{cls.__name__} to {target!r}" for cls, target in _CONVERSIONS))
    raise ArgumentError("to", f"a registered conversion ({known})", f"{type(module).__name__} to {to!r}")


def _checked(result: Converted, module: Any, to: str, tolerance: float) -> Converted:
    found = result.certificate
    exact = found.theorem is not None and found.error <= ROUNDING[found.dtype]
    if exact or 0 < tolerance >= found.error:
        return result
    raise NotExact(
        f"{module} to {to!r} differs by {found.error:.3g} (tolerance {tolerance:g}) on the witness input",
        found.error,
        found.witness,
    )
