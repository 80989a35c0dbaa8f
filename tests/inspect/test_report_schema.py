"""The documented schema names what the JSON has, and nothing else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from tests.inspect.sample import sample

from quadform.inspect import FormError, FormInfo, Head, Layer, Report, Section
from quadform.inspect._compare import SCHEMA as COMPARE_SCHEMA, Change, Comparison, Count, Side, compare
from quadform.inspect._report import SCHEMA, FormCost, Timing
from quadform.inspect._structure import STRUCTURE
from quadform.inspect._views import Views

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "report-schema.md").read_text("utf-8")
CLASSES = (Report, FormInfo, Timing, Section, Layer, FormCost, Head, FormError, Views, Comparison, Side, Count, Change)
UNSAID = {Comparison: {"reports"}}
"""Fields that the JSON does not have."""


def documented(heading: str) -> list[str]:
    """The first column of the table under a heading."""
    (part,) = re.findall(rf"^##+ {heading}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", part, re.MULTILINE)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: type[Any]):
    fields = [field.name for field in dataclasses.fields(kind) if field.name not in UNSAID.get(kind, set())]
    assert documented(kind.__name__) == fields


def test_every_statistic_is_documented():
    assert documented("Statistics") == list(STRUCTURE)


def test_the_versions_are_those_written():
    report = sample(lengths=(16,))
    assert f"`{SCHEMA}`" in TEXT and report.to_dict()["schema"] == SCHEMA
    assert f"`{COMPARE_SCHEMA}`" in TEXT and compare(report, report).to_dict()["schema"] == COMPARE_SCHEMA
    written = set(compare(report, report).to_dict()) - {"schema"}
    assert written == {field.name for field in dataclasses.fields(Comparison)} - UNSAID[Comparison]
