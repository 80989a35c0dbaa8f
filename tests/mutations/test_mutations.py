"""Every mutation is caught by its law (with --mutations), and every mutation still applies (always)."""

from __future__ import annotations

import pytest

from quadform.laws import LAWS
from tests.mutations.__main__ import PACKAGE, caught
from tests.mutations.catalogue import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_mutation(mutation: Mutation) -> None:
    found, said = caught(mutation)
    assert found, f"survives {mutation.law} / {mutation.subject}: {said}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_it_changes_one_place_and_names_a_law(mutation: Mutation) -> None:
    assert (PACKAGE / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.subject in LAWS[mutation.law].subjects


def test_there_are_ten_and_more_of_every_kind() -> None:
    assert len(MUTATIONS) >= 10
    assert {m.kind for m in MUTATIONS} == {"edge", "weight", "mask", "form"}
