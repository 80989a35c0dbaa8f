"""Planted heads: the error of a head's own form is nothing, and closed forms agree with what is measured."""

from __future__ import annotations

import math

import pytest
import torch
from tests.inspect.planted import NEVER, causal, measure, planted, raw_errors, values

from quadform.inspect import Captured, _block
from quadform.inspect._structure import summarise
from quadform.inspect._views import Snapshot

N = 64


def offsets(n: int = N) -> torch.Tensor:
    return torch.arange(n) - torch.arange(n)[:, None]


def convolution_head(seed: int, kernel_seed: int = 3):
    """Fixed weights over +-7 for every token: what a border cuts off goes to the last token, whose value is 0."""
    kernel = torch.rand(15, generator=torch.Generator().manual_seed(kernel_seed)).double()
    kernel /= kernel.sum()
    near = offsets().abs() <= 7
    weights = torch.where(near, kernel[(offsets() + 7).clamp(0, 14)], 0.0)
    weights[:, -1] = 0.0
    weights[:, -1] = 1.0 - weights.sum(-1)
    v = values(4, N, seed=seed)
    v[:, :, -1] = 0.0
    return planted(weights.clamp(min=1e-30).log().float().expand(4, 1, N, N), v)


def windowed(seed: int, edges: torch.Tensor, batch: int = 4) -> torch.Tensor:
    scores = 2 * torch.randn(batch, 1, N, N, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(~edges, NEVER)


def test_a_convolution_head_is_a_convolution():
    errors = raw_errors(convolution_head(1), convolution_head(2))
    assert errors["convolution-15"] < 1e-4
    assert errors["mean"] > 0.5


def test_the_convolution_is_not_fitted_to_what_is_measured():
    errors = raw_errors(convolution_head(1), convolution_head(1, kernel_seed=4))
    assert errors["convolution-15"] > 0.1


def test_a_causal_shift_is_a_causal_convolution():
    n = 40
    scores = torch.where(offsets(n) == -3, 0.0, NEVER)
    scores[:3, 0] = 0.0
    v = values(2, n, seed=0)
    v[:, :, 0] = 0.0
    head = planted(scores.expand(2, 1, n, n), v, causal(2, n))
    assert head.causal
    errors = raw_errors(head, head)
    assert errors["convolution-15"] < 1e-5
    assert errors["window-32"] < 1e-5
    assert errors["mean"] > 0.5


def test_a_window_head_is_a_window():
    edges = offsets().abs() <= 16
    errors = raw_errors(
        planted(windowed(0, edges), values(4, N, seed=1)), planted(windowed(2, edges), values(4, N, seed=3))
    )
    assert errors["window-32"] < 1e-6
    assert errors["window-32+sinks"] < 1e-6
    assert min(errors["convolution-15"], errors["mean"], errors["top-16"], errors["graph-16"]) > 0.02
    assert errors["hybrid-32"] < 1e-4


def test_a_window_with_sinks_needs_its_sinks():
    edges = offsets().abs() <= 16
    edges[:, 0] = True
    scores = windowed(0, edges)
    scores[..., 0] = 3.0
    head = planted(scores, values(4, N, seed=1))
    errors = raw_errors(head, head)
    assert errors["window-32+sinks"] < 1e-6
    assert errors["window-32"] > 0.2


@pytest.mark.parametrize("distance, fits", [(31, True), (32, False)])
def test_a_causal_window_of_32_ends_at_distance_31(distance: int, fits: bool):
    scores = torch.where(offsets() == -distance, 0.0, NEVER)
    scores[torch.arange(N) < distance + 5, 0] = 0.0
    head = planted(scores.expand(2, 1, N, N), values(2, N, seed=1), causal(2, N))
    error = raw_errors(head, head)["window-32+sinks"]
    assert error < 1e-6 if fits else error > 0.3


def test_a_sparse_head_is_top_16():
    order = torch.rand(4, 1, N, N, generator=torch.Generator().manual_seed(0)).argsort(-1)
    scores = windowed(0, order < 16)
    head = planted(scores, values(4, N, seed=1))
    errors = raw_errors(head, head)
    assert errors["top-16"] < 1e-6
    assert min(error for form, error in errors.items() if form != "top-16") > 0.1


def test_a_uniform_head_is_the_mean_and_its_centred_error_is_not_defined():
    head = planted(torch.zeros(2, 1, N, N), values(2, N, seed=1))
    error = measure([head], [head]).errors()[0]["mean"]
    assert error.raw < 1e-6
    assert error.centred is None


def test_the_baseline_of_an_identity_head_in_closed_form():
    v = values(3, N, seed=1)
    head = planted(torch.where(torch.eye(N, dtype=torch.bool), 0.0, NEVER).expand(3, 1, N, N), v)
    error = measure([head], [head]).errors()[0]["mean"]
    spread = (v - v.mean(2, keepdim=True)).norm() / v.norm()
    assert error.raw == pytest.approx(float(spread), rel=1e-5)
    assert error.centred == pytest.approx(1.0, rel=1e-5)


def test_structure_of_a_head_that_looks_one_token_back():
    scores = torch.where(offsets() == -1, 0.0, NEVER)
    scores[0, 0] = 0.0
    head = planted(scores.expand(2, 1, N, N), values(2, N, seed=1))
    structure = statistics(head)
    assert structure["effective_degree"] == pytest.approx(1.0, rel=1e-5)
    assert structure["sink_mass"] == pytest.approx(2 / N, rel=1e-5)
    assert structure["window_mass"] == pytest.approx(1.0)
    assert (structure["offset_share"] or 0.0) > 0.98


def test_structure_of_a_uniform_head():
    head = planted(torch.zeros(2, 1, N, N), values(2, N, seed=1))
    structure = statistics(head)
    assert structure["effective_degree"] == pytest.approx(N, rel=1e-5)
    assert structure["sink_mass"] == pytest.approx(2 / N, rel=1e-5)
    inside = sum(min(N - 2, i + 16) - max(1, i - 16) + 1 for i in range(N))
    assert structure["window_mass"] == pytest.approx(inside / (N * (N - 2)), rel=1e-5)
    assert structure["offset_share"] == 1.0


def statistics(head: Captured) -> dict[str, float | None]:
    """The structure statistics of the first head."""
    found = summarise(measure([head], [head]).structure.values, head.place)
    return {name: values[0] for name, values in found.items()}


def random_head(batch: int, n: int, seed: int, mask: torch.Tensor | None = None):
    generator = torch.Generator().manual_seed(seed)
    return planted(torch.randn(batch, 2, n, n, generator=generator), values(batch, n, seed=seed + 1, heads=2), mask)


def same(one, other) -> None:
    for sums, others in ((one.sums, other.sums), (one.structure, other.structure)):
        for name, value in sums.values.items():
            torch.testing.assert_close(value, others.values[name], rtol=1e-5, atol=1e-7)


def slices(captured, size: int):
    for start in range(0, captured.q.shape[0], size):
        part = slice(start, start + size)
        yield type(captured)(
            captured.module, 0, captured.q[part], captured.k[part], captured.v[part], captured.keep[part],
            captured.scaling, captured.output[part],
        )  # fmt: skip


def test_a_stream_of_batches_measures_what_one_batch_does():
    whole, fit = random_head(8, 48, 0), random_head(8, 48, 5)
    same(measure([whole], [fit]), measure(slices(whole, 3), slices(fit, 2)))


def test_small_blocks_measure_what_one_block_does(monkeypatch):
    head = random_head(2, 48, 0, causal(2, 48))
    whole = measure([head], [head])
    monkeypatch.setattr(_block, "ELEMENTS", 2 * 2 * 48 * 5)
    assert len(list(_block.blocks(head))) == math.ceil(48 / 5)
    same(whole, measure([head], [head]))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_measures_what_the_shorter_sequence_does(left: bool, is_causal: bool):
    n, padded = 40, 47
    inside = slice(padded - n, padded) if left else slice(0, n)
    short = random_head(2, n, 0, causal(2, n) if is_causal else None)
    scores, v = torch.randn(2, 2, padded, padded), torch.full((2, 2, padded, 6), 1e6)
    scores[:, :, inside, inside], v[:, :, inside] = short.q, short.v
    valid = torch.zeros(padded, dtype=torch.bool)
    valid[inside] = True
    keep = (valid & causal(1, padded) if is_causal else valid).expand(2, 1, padded, padded)
    long = planted(scores, v, keep)
    assert torch.equal(long.valid, valid.expand(2, padded))
    assert long.causal == is_causal and not long.structured
    one, other = measure([short], [short]), measure([long], [long])
    for head, padded_head in zip(one.errors(), other.errors(), strict=True):
        for form, error in head.items():
            if form == "graph-16":  # a fixed graph is about positions, which padding on the left moves
                continue
            close = 1e-2 if form == "rank-16" else 1e-4  # an iteration from a start that depends on the size
            assert padded_head[form].raw == pytest.approx(error.raw, rel=close, abs=1e-5)
            assert padded_head[form].centred == pytest.approx(error.centred, rel=close, abs=1e-5)
    for name, value in statistics(short).items():
        other_value = statistics(long)[name]
        assert other_value is None if value is None else other_value == pytest.approx(value, rel=1e-5, abs=1e-7)


def test_a_window_in_the_mask_is_noticed_and_binds_every_form():
    keep = causal(2, N) & (offsets() > -8)
    head = planted(torch.randn(2, 1, N, N), values(2, N, seed=0), keep)
    assert head.causal and head.structured
    errors = raw_errors(head, head)
    assert max(errors["window-32"], errors["window-32+sinks"], errors["top-16"]) < 1e-6


@pytest.mark.parametrize("distance, carried", [(31, 0.0), (32, 1.0)])
def test_what_a_state_must_carry_begins_beyond_the_last_32_tokens(distance: int, carried: float):
    scores = torch.where(offsets() == -distance, 0.0, NEVER)
    scores[torch.arange(N) < distance + 4, 0] = 0.0
    head = planted(scores.expand(2, 1, N, N), values(2, N, seed=1), causal(2, N))
    views = Snapshot(head).views(0, measure([head], [head]).structure.values, head.place)
    at = views.distances.index(31)
    looking = (N - distance - 4) / N
    assert views.beyond_past[at] == pytest.approx(carried * looking, abs=2e-3)
    assert views.beyond_future[at] == 0
