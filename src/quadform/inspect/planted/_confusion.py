"""Which kind of planted head is called what, and by what margin."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quadform.inspect._layers import inspect_heads
from quadform.inspect.candidates import CANDIDATES
from quadform.inspect.planted._dataset import KINDS, LEVELS, Planted

STRICT = 0.1
"""Up to this noise every head has to be named as planted; noisier heads are of their kind in part only."""
NONE = "none"
UNNAMED = "mixed"
"""The kind that no form fits, so that its heads have to stay without a name."""


@dataclass(frozen=True)
class Named:
    """What a head of the set was called.

    Attributes:
        head: its name in the set.
        kind: as planted.
        noise: standard deviation of the noise in its scores.
        name: as found; None where no form fits.
        errors: the errors that decided, by form, simplest first.
    """

    head: str
    kind: str
    noise: float
    name: str | None
    errors: dict[str, float]

    @property
    def right(self) -> bool:
        """Named as planted; a mixed head is right without a name."""
        return self.name == (None if self.kind == UNNAMED else self.kind)

    @property
    def own(self) -> float:
        """Least error of the forms of the planted kind; infinite for a mixed head, which has none."""
        return min((error for form, error in self.errors.items() if _kind(form) == self.kind), default=math.inf)

    @property
    def simpler(self) -> float:
        """Least error of the forms that are asked before those of the planted kind: of all forms for a mixed head."""
        forms = list(self.errors)
        first = next((at for at, form in enumerate(forms) if _kind(form) == self.kind), len(forms))
        return min((self.errors[form] for form in forms[:first]), default=math.inf)


@dataclass(frozen=True)
class Confusion:
    """The names of all heads at all levels of noise."""

    found: tuple[Named, ...]

    @property
    def wrong(self) -> tuple[Named, ...]:
        """Heads that are not named as planted at a noise of at most 0.1, and mixed heads that are named at any."""
        return tuple(head for head in self.found if not head.right and (head.noise <= STRICT or head.kind == UNNAMED))

    def columns(self) -> tuple[str, ...]:
        """The planted kinds, whatever else a head was called, and "none"."""
        others = sorted({head.name for head in self.found if head.name} - set(KINDS))
        return (*(kind for kind in KINDS if kind != UNNAMED), *others, NONE)

    def groups(self) -> dict[tuple[str, float], list[Named]]:
        """{(kind as planted, noise): heads}."""
        groups: dict[tuple[str, float], list[Named]] = {}
        for head in sorted(self.found, key=lambda head: (KINDS.index(head.kind), head.noise)):
            groups.setdefault((head.kind, head.noise), []).append(head)
        return groups

    def rows(self) -> dict[tuple[str, float], dict[str, int]]:
        """{(kind as planted, noise): {name: how many heads}}."""
        counts = {key: Counter(head.name or NONE for head in heads) for key, heads in self.groups().items()}
        return {key: {column: count[column] for column in self.columns()} for key, count in counts.items()}

    def margins(self) -> dict[tuple[str, float], tuple[float, float]]:
        """{(kind, noise): (largest error of the kind's own form, least error of a simpler form)}."""
        return {
            key: (max(head.own for head in heads), min(head.simpler for head in heads))
            for key, heads in self.groups().items()
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON: the rows with their margins, and the heads that are wrong."""
        margins = self.margins().values()
        return {
            "rows": [
                {"kind": kind, "noise": noise, "named": row, "own": _finite(own), "simpler": _finite(simpler)}
                for ((kind, noise), row), (own, simpler) in zip(self.rows().items(), margins, strict=True)
            ],
            "wrong": [
                {"head": head.head, "kind": head.kind, "noise": head.noise, "named": head.name} for head in self.wrong
            ],
        }


def name_head(head: Planted, noise: float) -> Named:
    """Inspects one head."""
    (found,) = inspect_heads([head.fit], [head.measured], bounds=False).heads
    errors = {}
    for position, form in enumerate(CANDIDATES):
        if form.name in found.errors:
            error = found.errors[form.name]
            errors[form.name] = error.raw if position == 0 or error.centred is None else error.centred
    return Named(head.name, head.kind, noise, found.kind, errors)


def name_all(
    sets: Iterable[Callable[[float], Sequence[Planted]]],
    levels: Sequence[float] = LEVELS,
    progress: Callable[[], None] = lambda: None,
) -> Confusion:
    """Names every head of every set, a function of the noise, at every level of noise."""
    found = []
    for heads_at in sets:
        for noise in levels:
            for head in heads_at(noise):
                found.append(name_head(head, noise))
                progress()
    return Confusion(tuple(found))


def _finite(error: float) -> float | None:
    return None if math.isinf(error) else error


def _kind(form: str) -> str:
    return next(one.kind for one in CANDIDATES if one.name == form)
