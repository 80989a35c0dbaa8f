"""Running the laws: which cases, their sums, and the smallest witness of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from quadform._errors import ArgumentError
from quadform.laws._laws import LAWS, Law, check
from quadform.laws._outcome import Outcome

Progress = Callable[[int, int, str], None]
Cell = tuple[str, str, str]  # law, subject, dtype
LIMITS = (1, 2, 3, 4, 6, 9, 14, 25, 50)


@dataclass
class Entry:
    """All comparisons of one (law, subject, form, dtype).

    Attributes:
        cases: how many comparisons. worst: the largest error.
        closest: the largest share of its tolerance that an error took. tolerance: the bound of that comparison.
    """

    cases: int = 0
    worst: float = 0.0
    closest: float = 0.0
    tolerance: float = 0.0

    def add(self, outcome: Outcome) -> None:
        if not self.cases or outcome.share >= self.closest:
            self.closest, self.tolerance = outcome.share, outcome.tolerance
        self.worst = max(self.worst, outcome.error)
        self.cases += 1


@dataclass
class Report:
    """What a run found.

    Attributes:
        entries: by (law, subject, form, dtype). failures: the smallest witness of each failing law and form.
        unseen: cells (law, subject, dtype) whose cases all fell outside the law: must be none.
    """

    seed: int
    entries: dict[tuple[str, str, str, str], Entry] = field(default_factory=dict)
    failures: list[Outcome] = field(default_factory=list)
    unseen: list[Cell] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.unseen

    @property
    def cases(self) -> int:
        """How often a form was held against a law."""
        return sum(entry.cases for entry in self.entries.values())

    def by_law(self) -> dict[tuple[str, str, str], Entry]:
        """Sums over mixers: by (law, form, dtype)."""
        return self._sum(lambda law, subject, form, dtype: (law, form, dtype))

    def by_mixer(self) -> dict[tuple[str, str, str], Entry]:
        """Sums over laws: by (mixer, form, dtype)."""
        return self._sum(lambda law, subject, form, dtype: (subject, form, dtype))

    def _sum(self, key: Callable[[str, str, str, str], tuple[str, str, str]]) -> dict[tuple[str, str, str], Entry]:
        out: dict[tuple[str, str, str], Entry] = {}
        for names, entry in self.entries.items():
            total = out.setdefault(key(*names), Entry())
            if entry.closest >= total.closest:
                total.closest, total.tolerance = entry.closest, entry.tolerance
            total.worst, total.cases = max(total.worst, entry.worst), total.cases + entry.cases
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; an infinite error is the string "inf"."""
        rows = [
            {
                "law": law,
                "mixer": subject,
                "form": form,
                "dtype": dtype,
                "cases": entry.cases,
                "worst_error": _plain(entry.worst),
                "tolerance": entry.tolerance,
            }
            for (law, subject, form, dtype), entry in sorted(self.entries.items())
        ]
        failed = [{"law": f.law, "form": f.form, "error": _plain(f.error), "witness": f.witness} for f in self.failures]
        return {"ok": self.ok, "seed": self.seed, "rows": rows, "failures": failed, "unseen": self.unseen}


def _plain(error: float) -> float | str:
    return error if error - error == 0 else str(error)


def cells(laws: Sequence[Law] | None = None) -> list[Cell]:
    """Every (law, subject, dtype), each of which a run visits at least once."""
    chosen = list(LAWS.values()) if laws is None else laws
    return [(law.name, subject, dtype) for law in chosen for subject in law.subjects for dtype in law.dtypes]


def run_laws(cases: int, seed: int = 0, progress: Progress | None = None, laws: Sequence[str] | None = None) -> Report:
    """Deals `cases` cases over all cells, at least one (that falls under its law) to each, and sums up their outcomes.

    Errors: ArgumentError for a negative count or an unknown law.
    """
    if cases < 0:
        raise ArgumentError("cases", "a count of at least 0", str(cases))
    unknown = [name for name in laws or () if name not in LAWS]
    if unknown:
        raise ArgumentError("laws", f"names among {', '.join(LAWS)}", ", ".join(unknown))
    all_cells = cells(None if laws is None else [LAWS[name] for name in laws])
    report = Report(seed)
    for done, (cell, number) in enumerate(_deal(all_cells, cases)):
        if progress is not None:
            progress(done, max(cases, len(all_cells)), f"{cell[0]}: {cell[1]}")
        outcomes = _visit(cell, seed * 1_000_003 + number)
        if number == 0 and not outcomes:
            outcomes = next(
                (found for more in range(1, 40) if (found := _visit(cell, seed * 1_000_003 + 7919 + more))), []
            )
            if not outcomes:
                report.unseen.append(cell)
        for outcome in hardest(outcomes):
            key = (outcome.law, outcome.subject, outcome.form, outcome.dtype)
            report.entries.setdefault(key, Entry()).add(outcome)
            if not outcome.ok and all((f.law, f.form) != (outcome.law, outcome.form) for f in report.failures):
                report.failures.append(smallest(outcome, cell, seed * 1_000_003 + number))
    return report


def _deal(all_cells: list[Cell], cases: int) -> Iterator[tuple[Cell, int]]:
    """Cells in turn, each with the number of its case."""
    for index in range(max(cases, len(all_cells))):
        yield all_cells[index % len(all_cells)], index // len(all_cells)


def hardest(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """One outcome of a case for each form: the one that comes closest to its tolerance, or goes furthest beyond it."""
    best: dict[str, Outcome] = {}
    for outcome in outcomes:
        held = best.setdefault(outcome.form, outcome)
        best[outcome.form] = outcome if outcome.share > held.share else held
    return list(best.values())


def _visit(cell: Cell, number: int) -> list[Outcome]:
    law, subject, dtype = cell
    return check(law, subject, number, dtype)


def smallest(outcome: Outcome, cell: Cell, number: int) -> Outcome:
    """The failing outcome of the same seed with the smallest sizes."""
    for limit in LIMITS:
        for found in check(cell[0], cell[1], number, cell[2], limit):
            if not found.ok and found.form == outcome.form:
                return found
    return outcome
