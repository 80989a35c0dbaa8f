"""The acceptance table: every form is asked about every mixer, on plain calls of several sizes."""

from __future__ import annotations

import pytest

from quadform.forms import FORMS
from quadform.laws import BY_NAME, NAMES, ROWS, check
from quadform.laws._honesty import is_sentence


def test_the_four_forms_are_there() -> None:
    assert tuple(FORMS) == NAMES


@pytest.mark.parametrize("row", [row.name for row in ROWS])
def test_every_form_answers_as_the_table_says(row: str) -> None:
    for seed in range(2 * len(BY_NAME[row].mixers)):
        wrong = [outcome.witness for outcome in check("acceptance", row, seed, "float32") if not outcome.ok]
        assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("row", [row.name for row in ROWS])
def test_padding_and_masks_do_not_change_who_accepts_a_square_call(row: str) -> None:
    """Dense and graph accept every call of a row; the others may refuse only positions and unequal lengths."""
    for seed in range(len(BY_NAME[row].mixers)):
        assert all(outcome.ok for outcome in check("honesty", row, seed, "float32"))


@pytest.mark.parametrize("name", NAMES)
def test_every_form_accepts_and_refuses_some_row_of_the_table(name: str) -> None:
    answers = {row.accepts(name) for row in ROWS}
    assert answers == ({True} if name in ("dense", "graph") else {True, False})


def test_a_refusal_must_be_a_sentence() -> None:
    assert is_sentence("the far part reaches every position")
    assert not is_sentence("unsupported")
    assert not is_sentence("")
