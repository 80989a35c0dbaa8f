"""Gives each contract test the rows of the acceptance table that its form accepts or refuses."""

from __future__ import annotations

import pytest

from quadform.laws import ROWS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    form = getattr(metafunc.cls, "form", None)
    for argument, wanted in (("row", True), ("refused_row", False)):
        if form is not None and argument in metafunc.fixturenames:
            metafunc.parametrize(argument, [row.name for row in ROWS if row.accepts(form) is wanted])
