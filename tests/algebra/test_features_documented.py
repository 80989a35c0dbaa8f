"""docs/features.md: its table of maps, its measured errors, and what `explain` says of a state that is too large."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import quadform as qf
from quadform.algebra.features import NAMES

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "features.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
MAPS = [row for row in ROWS if row[0].startswith("`") and len(row) == 7 and row[4] in ("yes", "no")]
ERRORS = [row for row in ROWS if row not in MAPS and re.fullmatch(r"0\.\d+", row[1]) and row[0] != "map"]
CASES = ((0.25, 0), (0.5, 0), (1, 0), (2, 0), (0.25, 1), (1, 1))
D, N, H = 64, 256, 2


def number(text: str) -> int:
    return int(text.replace(",", ""))


def made(cell: str) -> Any:
    return qf.parse(cell.strip("`"))


def test_every_map_is_in_the_table():
    assert {type(made(row[0])) for row in MAPS} == set(NAMES.values())


@pytest.mark.parametrize("row", MAPS, ids=lambda row: row[0])
def test_sizes_signs_and_the_length_from_which_the_state_pays(row):
    phi = made(row[0])
    m = phi.features(D)
    assert number(row[3]) == m
    assert row[4] == ("yes" if phi.positive else "no")
    length = number(row[5])
    assert 2 * length * D <= m * (D + 1) < 2 * (length + 1) * D
    formula = row[2].replace("C(D + 3, 3)", "math.comb(D + 3, 3)").replace("2 D", "2 * D")
    formula = re.sub(r"([D)])\s*\(", r"\1 * (", formula)
    assert eval(formula, {"D": D, "math": math}) == m
    assert phi.validity


def test_features_are_as_many_as_they_say():
    x = torch.randn(1, 1, 3, 8)
    for cell, *_ in MAPS:
        phi = made(cell)
        tensors = {
            spec.name: torch.randn([{"H": 1, "D": 8}.get(d) or int(d) for d in spec.dims]) for spec in phi.specs()
        }
        q, k = phi.query(x, tensors)[0], phi.key(x, tensors)
        assert q.shape == k.shape == (1, 1, 3, phi.features(8))
        if phi.positive and not phi.running:
            assert (q @ k.mT >= 0).all()


def measured(phi: Any, deviation: float, moved: float) -> float:
    generator = torch.Generator().manual_seed(0)
    q, k, v, c = (torch.randn(1, H, n, D, generator=generator, dtype=torch.float64) for n in (N, N, N, 1))
    q, k = q * deviation, k + 16 * moved * c / c.norm(dim=-1, keepdim=True)
    tensors: dict[str, Tensor] = {}
    if isinstance(phi, qf.Favor):
        tensors["feature_projection"] = qf.favor_projection(H, phi.num_features, D, seed=0, dtype=torch.float64)
    if phi == qf.Taylor2(centre="fixed"):
        tensors["key_centre"] = k.mean(2)[0]
    exact = qf.attend(q, k, v, qf.Causal(), qf.Softmax())
    weights = qf.Uniform("mean") if phi is None else qf.Kernel(phi)
    return float((qf.attend(q, k, v, qf.Causal(), weights, tensors=tensors) - exact).norm() / exact.norm())


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row[0])
def test_the_errors_are_those_measured(row):
    phi = None if row[0] == "the mean" else made(row[0])
    for cell, (deviation, moved) in zip(row[1:], CASES, strict=True):
        assert float(cell) == pytest.approx(measured(phi, deviation, moved), rel=0.02, abs=0.002)


def test_the_page_has_both_tables():
    assert len(MAPS) >= 11 and len(ERRORS) >= 9


def test_explain_says_where_the_state_is_larger_than_a_cache():
    def explained(n: int, weights: qf.Weights) -> qf.Explanation:
        q = torch.empty(2, 4, n, D, device="meta")
        return qf.explain(q, q, q, qf.Causal(), weights)

    for n, larger in ((1089, True), (1090, False)):
        found = explained(n, qf.Kernel("taylor2"))
        state = found.costs["recurrent"].state
        assert state == 2 * 4 * 2145 * 65 * 4 and found.cache == 2 * 4 * 2 * n * D * 4
        assert (found.note is not None) == larger == (state > found.cache)
        assert found.to_dict()["note"] == found.note
    note = explained(512, qf.Kernel("taylor2")).note
    assert (
        note
        == "the state, 4,461,600 B, is 2.1 times a KV cache of 512 tokens; from 1,090 tokens on it is the smaller one"
    )
    assert note in str(explained(512, qf.Kernel("taylor2")))
    assert explained(512, qf.Kernel("elu1")).note is None
    assert explained(512, qf.Softmax()).note is None
    assert explained(0, qf.Kernel("taylor2")).note is None


def test_the_map_of_one_s_own_on_the_page_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space: dict[str, Any] = {"__name__": __name__}
    exec(block, space)
    q, k, v = (space[name] for name in "qkv")
    w = ((q**2) @ (k**2).mT).tril()
    torch.testing.assert_close(space["y"], (w / w.sum(-1, keepdim=True)) @ v)
