"""Every law over every mixer and dtype: hypothesis draws the seed and the bound on sizes, and shrinks both."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from quadform.laws import LAWS, check, run_laws
from quadform.laws._outcome import Outcome

PAIRS = [(law.name, subject) for law in LAWS.values() for subject in law.subjects]


@pytest.mark.parametrize(("law", "subject"), PAIRS)
def test_law(law: str, subject: str, cases: int | None) -> None:
    """A few cases for each law and mixer, thousands with --cases."""
    dtypes = LAWS[law].dtypes
    count = len(dtypes) if cases is None else max(cases // len(PAIRS), len(dtypes))
    seen = []

    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.integers(0, 2**32), dtype=st.sampled_from(dtypes), limit=st.sampled_from((1, 2, 5, 17, 70)))
    def holds(seed: int, dtype: str, limit: int) -> None:
        outcomes = check(law, subject, seed, dtype, limit)
        seen.extend(outcomes)
        assert_kept(outcomes)

    holds()
    # shapes at the bounds fall outside some laws; a fixed case of each dtype keeps every cell of the table non-empty
    for dtype in dtypes:
        found: list[Outcome] = []
        for seed in range(60):
            found = check(law, subject, seed, dtype)
            if found:
                break
        assert found, f"no case of {law} / {subject} / {dtype} falls under the law"
        assert_kept(found)


def assert_kept(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.ok, (
            f"{outcome.law}, {outcome.form} form: error {outcome.error:.3g} > {outcome.tolerance:.3g}\n{outcome.witness}"
        )


def test_a_run_leaves_no_cell_empty_and_repeats_itself() -> None:
    names = ("cnn", "limits")
    first, second = (run_laws(0, seed=5, laws=names) for _ in range(2))
    assert first.ok, first.failures
    assert first.to_dict() == second.to_dict()
    assert all(entry.cases for entry in first.entries.values())
    assert {law for law, *_ in first.entries} == set(names)
