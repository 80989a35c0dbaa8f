"""The machinery of the laws: what counts as an error, and that a broken form is found and its witness is small."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from quadform import ArgumentError
from quadform.forms import FORMS
from quadform.laws import LAWS, ROWS, Outcome, cells, draw, run_laws
from quadform.laws._cases import DTYPES
from quadform.laws._outcome import distance, gradient_distance
from quadform.laws._run import hardest


class Broken:
    """The dense form with an error of one part in a thousand in every output."""

    name = "dense"

    def __init__(self) -> None:
        self.inner = FORMS["dense"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, call: Any) -> Any:
        y, extra = self.inner.run(call)
        return y * 1.001, extra


def test_a_broken_form_is_found_with_a_small_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMS, "dense", Broken())
    report = run_laws(0, laws=["agreement"])
    assert not report.ok
    failure = next(f for f in report.failures if f.form == "dense")
    assert failure.error == pytest.approx(1e-3, rel=0.2)
    assert "(1, 1, " in failure.witness
    assert report.to_dict()["failures"][0]["law"] == "agreement"


def test_distance() -> None:
    y = torch.tensor([1.0, -4.0])
    assert distance(y, y) == 0
    assert distance(y + 0.1, y) == pytest.approx(0.025)
    assert distance(torch.tensor([math.nan, 1.0]), y) == math.inf
    assert distance(y, torch.tensor([math.inf, 1.0])) == math.inf
    assert distance(y[:1], y) == math.inf
    assert distance(y[:0], y[:0]) == 0
    assert distance(torch.tensor([1e-3]), torch.zeros(1)) == pytest.approx(1e-3)
    assert distance(torch.tensor([1e-3]), torch.zeros(1), floor=10.0) == pytest.approx(1e-4)


def test_gradients_are_measured_each_on_its_own_scale_in_float64() -> None:
    expected = {"q": torch.tensor([1e-2]).double(), "v": torch.tensor([1.0]).double()}
    found = {"q": torch.tensor([1.1e-2]).double(), "v": torch.tensor([1.0]).double()}
    assert gradient_distance(found, expected) == pytest.approx(0.1)
    single = {name: x.float() for name, x in found.items()}
    assert gradient_distance(single, expected) == pytest.approx(1e-3, rel=1e-3)


def test_an_outcome_keeps_its_law_only_within_its_tolerance() -> None:
    def outcome(error: float, tolerance: float) -> Outcome:
        return Outcome("law", "subject", "dense", "float64", error, tolerance, "")

    assert outcome(1.0, 1.0).ok
    assert not outcome(1.1, 1.0).ok
    assert not outcome(math.nan, 1.0).ok
    assert not outcome(1.0, math.nan).ok
    assert outcome(0.0, 0.0).ok
    assert hardest([outcome(0.1, 1.0), outcome(0.2, 10.0)]) == [outcome(0.1, 1.0)]
    assert math.isnan(hardest([outcome(0.1, 1.0), outcome(math.nan, 1.0)])[0].error)


def test_cases_repeat_and_differ_by_seed() -> None:
    first, second, other = (
        draw("window", 3, torch.float32),
        draw("window", 3, torch.float32),
        draw("window", 4, torch.float32),
    )
    assert first.describe() == second.describe() != other.describe()
    assert all(torch.equal(a, b) for a, b in zip(first.inputs().values(), second.inputs().values(), strict=True))


def test_a_limit_bounds_every_size() -> None:
    for seed in range(30):
        case = draw("softmax/causal", seed, torch.float64, limit=2)
        assert max(case.v.shape) <= 4  # two key-value heads of two queries each


def test_cases_cover_what_callers_do() -> None:
    drawn = [draw(row.name, seed, torch.float32) for row in ROWS for seed in range(40)]
    options = {name for case in drawn for name in case.options}
    assert options == {"lengths", "key_mask", "positions", "grid"}
    assert {case.v.shape[0] for case in drawn} == {0, 1, 2, 3}
    assert {0, 1, 70} <= {case.v.shape[2] for case in drawn}
    assert any(case.q is None for case in drawn)
    assert any(case.q is not None and case.q.shape[1] > case.v.shape[1] for case in drawn)
    assert any(case.queries != case.v.shape[2] for case in drawn)
    assert any(case.v.shape[-1] != case.q.shape[-1] for case in drawn if case.q is not None)
    assert any(not case.v.is_contiguous() for case in drawn)
    assert any(0 in case.v.stride() for case in drawn)
    assert any(case.cotangent is None for case in drawn)
    assert any(case.cotangent is not None and not case.cotangent.is_contiguous() for case in drawn)
    masks = [case.options["key_mask"] for case in drawn if "key_mask" in case.options]
    assert any(bool((~m.any(-1)).any()) for m in masks if m.numel())


def test_leaves_keep_strides_and_values() -> None:
    for seed in range(60):
        case = draw("softmax/causal", seed, torch.bfloat16)
        for name, x in case.leaves(torch.bfloat16, grad=True).items():
            assert x.requires_grad
            assert x.is_leaf
            assert torch.equal(x.double(), case.inputs()[name]), name


def test_every_law_is_about_something_in_known_dtypes() -> None:
    assert len(cells()) == sum(len(law.subjects) * len(law.dtypes) for law in LAWS.values())
    for law in LAWS.values():
        assert law.subjects
        assert set(law.dtypes) <= set(DTYPES)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="^cases: expected"):
        run_laws(-1)
    with pytest.raises(ArgumentError, match="^laws: expected"):
        run_laws(1, laws=["gravity"])
