"""What every form promises, whatever it computes. A form's test file names the form and inherits the promises."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from quadform import Refused
from quadform.forms import FORMS
from quadform.laws import BY_NAME, Case, draw
from quadform.laws._agreement import agreement
from quadform.laws._oracle import call_of


class FormContract:
    """Promises of one form, over the rows of the acceptance table that it accepts (`row`) and refuses (`refused_row`)."""

    form: ClassVar[str]

    def plain(self, row: str, seed: int, dtype: torch.dtype = torch.float64, limit: int | None = None) -> Case:
        """A call without padding, with at least one receiver and one sequence."""
        for more in range(100):
            case = draw(row, seed + more * len(BY_NAME[row].mixers), dtype, limit, plain=True, square=True)
            if case.queries and case.v.shape[0] and case.v.shape[2] > 1:
                return case
        raise AssertionError(f"no case of {row} has a receiver and two senders")

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
    def test_agrees_with_the_oracle(self, row: str, dtype: str) -> None:
        for seed in range(min(len(BY_NAME[row].mixers), 12)):
            for outcome in agreement(row, seed, dtype, only=self.form):
                assert outcome.ok, (outcome.error, outcome.tolerance, outcome.witness)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_output_has_the_shape_and_dtype_of_the_values(self, row: str, dtype: torch.dtype) -> None:
        for seed in range(min(len(BY_NAME[row].mixers), 12)):
            case = draw(row, seed, dtype, plain=True, square=True)
            heads = case.v.shape[1] if case.q is None else case.q.shape[1]
            y = case.attend(self.form)
            assert y.shape == (case.v.shape[0], heads, case.queries, case.v.shape[-1])
            assert y.dtype == dtype

    def test_gradients_are_those_of_finite_differences(self, row: str) -> None:
        for seed in range(min(len(BY_NAME[row].mixers), 6)):
            case = self.plain(row, seed, limit=4)
            names, leaves = self._independent(case)
            assert torch.autograd.gradcheck(lambda *x, c=case, n=names: self._run(c, n, x), leaves, fast_mode=True)

    def test_second_derivatives_are_right_or_a_clear_error(self, row: str) -> None:
        case = self.plain(row, 0, limit=4)
        names, leaves = self._independent(case)
        try:
            assert torch.autograd.gradgradcheck(lambda *x: self._run(case, names, x), leaves, fast_mode=True, atol=1e-4)
        except (RuntimeError, NotImplementedError) as error:
            clear = ("twice", "second derivative", "once_differentiable", "derivative for")  # the last is torch's own
            assert any(words in str(error) for words in clear), error

    def test_same_input_same_output_and_inputs_untouched(self, row: str) -> None:
        case = self.plain(row, 0, torch.float32)
        inputs = case.leaves(torch.float32)
        before = {name: x.clone() for name, x in inputs.items()}
        assert torch.equal(case.attend(self.form, inputs), case.attend(self.form, inputs))
        assert all(torch.equal(x, before[name]) for name, x in inputs.items())

    def test_no_gradient_no_graph(self, row: str) -> None:
        case = self.plain(row, 0)
        with torch.no_grad():
            assert case.attend(self.form, case.leaves(torch.float64, grad=True)).grad_fn is None

    def test_cost_is_predicted_without_computing(self, row: str) -> None:
        case = self.plain(row, 0)
        cost = FORMS[self.form].cost(call_of(case, case.leaves(torch.float32)))
        assert 0 < cost.seconds < math.inf
        assert cost.flops >= 0
        assert cost.bytes >= 0
        assert cost.state is None or cost.state >= 0

    def test_weights_multiply_the_values_or_are_refused(self, row: str) -> None:
        case = self.plain(row, 0)
        call = dataclasses.replace(call_of(case, case.leaves(torch.float64)), return_weights=True)
        if FORMS[self.form].refusal(call) is not None:
            with pytest.raises(Refused):
                case.attend(self.form, return_weights=True)
            return
        y, w = case.attend(self.form, return_weights=True)
        inputs = case.leaves(torch.float64)
        v = inputs["v"].repeat_interleave(w.shape[1] // case.v.shape[1], 1)
        scale: Any = inputs["row_scale"][..., None] if "row_scale" in inputs else 1
        torch.testing.assert_close(w @ v * scale, y, rtol=1e-12, atol=1e-12)

    def test_dropout_drops_weights_and_keeps_their_mean_or_is_refused(self, row: str) -> None:
        case = self.plain(row, 0, torch.float32)
        call = dataclasses.replace(call_of(case, case.leaves(torch.float32)), dropout_p=0.5)
        if FORMS[self.form].refusal(call) is not None:
            with pytest.raises(Refused):
                case.attend(self.form, dropout_p=0.5)
            return
        torch.manual_seed(0)
        draws = torch.stack([case.attend(self.form, dropout_p=0.5) for _ in range(400)])
        y, spread = case.attend(self.form), draws.std(0) / 400**0.5
        assert float(spread.max()) > 0
        assert bool(((draws.mean(0) - y).abs() <= 6 * spread + 1e-5).all())

    def _independent(self, case: Case) -> tuple[list[str], list[Tensor]]:
        inputs = {name: x.clone().contiguous().requires_grad_() for name, x in case.leaves(torch.float64).items()}
        return list(inputs), list(inputs.values())

    def _run(self, case: Case, names: list[str], leaves: tuple[Tensor, ...]) -> Tensor:
        y: Tensor = case.attend(self.form, dict(zip(names, leaves, strict=True)))
        return y


class RefusingContract(FormContract):
    """The further promise of a form that does not compute every mixer."""

    def test_a_refusal_is_raised_and_nothing_else_is_computed(self, refused_row: str) -> None:
        for seed in range(len(BY_NAME[refused_row].mixers)):
            case = draw(refused_row, seed, torch.float32, plain=True, square=True)
            reason = FORMS[self.form].refusal(call_of(case, case.leaves(torch.float32)))
            assert reason is not None
            with pytest.raises(Refused) as caught:
                case.attend(self.form)
            assert reason in str(caught.value)
