"""Lower bounds on the error of kernels and hybrids: nothing in a family beats its bound, and its members have bound 0."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.inspect.planted import NEVER, causal, planted, values
from torch import Tensor

from quadform._errors import ArgumentError, QuadformError
from quadform.inspect import Captured, Grid, _bounds
from quadform.inspect._block import sinks
from quadform.inspect._bounds import Bounds

N, BATCH = 72, 2
FAMILIES = ("kernel", "hybrid")
NOTHING = 1e-6
"""The largest bound of a head that is of the family, which float32 scores describe to about 1e-7."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def padding(batch: int, n: int, left: bool = False) -> Tensor:
    """(B, 1, N, N): sequences of n, n - 9, ... tokens."""
    seen = torch.arange(n) < n - 9 * torch.arange(batch)[:, None]
    seen = seen.flip(-1) if left else seen
    return (seen[:, None, :] & seen[:, :, None])[:, None]


def sliding(batch: int, n: int) -> Tensor:
    """A causal window of 40 tokens."""
    return causal(batch, n) & torch.ones(n, n, dtype=torch.bool).triu(-39)


def packed(batch: int, n: int) -> Tensor:
    """Two sequences in one, of 41 tokens and of the rest."""
    part = torch.arange(n) >= 41
    return (part == part[:, None]).expand(batch, 1, n, n)


MASKS = {
    "full": lambda: torch.ones(BATCH, 1, N, N, dtype=torch.bool),
    "padded": lambda: padding(BATCH, N),
    "causal": lambda: causal(BATCH, N),
    "causal padded right": lambda: causal(BATCH, N) & padding(BATCH, N),
    "causal padded left": lambda: causal(BATCH, N) & padding(BATCH, N, left=True),
    "sliding": lambda: sliding(BATCH, N),
    "packed": lambda: packed(BATCH, N),
    "causal packed": lambda: packed(BATCH, N) & causal(BATCH, N),
}


def head(scores: Tensor, keep: Tensor) -> Captured:
    """A captured call with such scores (B, H, N, N)."""
    return planted(scores.float(), values(len(scores), scores.shape[-1], seed=0), keep)


def weights(captured: Captured) -> Tensor:
    """(B, H, N, M): A in float64, rows that are not measured 0."""
    scores = (captured.q.double() @ captured.k.double().mT * captured.scaling).masked_fill(~captured.keep, -torch.inf)
    return scores.softmax(-1).nan_to_num() * captured.valid[:, None, :, None]


def bounds(*calls: Captured, features: tuple[int, ...] = (1, 2, 4, 8, 16)) -> Bounds:
    found = Bounds(features)
    for captured in calls:
        found.add(captured)
    return found


def bound(captured: Captured, family: str, features: int) -> float:
    """The bound of the first head."""
    return bounds(captured, features=(features,)).values()[0][family][str(features)]


def near(captured: Captured) -> Tensor:
    """(B, 1, N, M): the near band and the sink columns."""
    offset = torch.arange(captured.k.shape[2]) - torch.arange(captured.q.shape[2])[:, None]
    band = (offset > -32) if captured.causal else (offset.abs() <= 16)
    return band | sinks(captured)[:, None, None]


def closest(a: Tensor, fit: Tensor, exact: Tensor, m: int) -> Tensor:
    """(B, H, N, M): m features by alternating least squares on the pairs `fit`, A on `exact` and 0 elsewhere."""
    fit = fit.double().expand_as(a)
    senders = torch.randn(*a.shape[:-1], m, generator=generator(1)).double()
    ridge = 1e-12 * torch.eye(m, dtype=torch.float64)
    for _ in range(25):
        gram = (fit[..., None] * senders[..., None, :, :]).mT @ senders[..., None, :, :]
        receivers = torch.linalg.solve(gram + ridge, (fit * a) @ senders)
        gram = (fit.mT[..., None] * receivers[..., None, :, :]).mT @ receivers[..., None, :, :]
        senders = torch.linalg.solve(gram + ridge, (fit * a).mT @ receivers)
    return torch.where(exact, a, fit * (receivers @ senders.mT))


def relative(a: Tensor, other: Tensor) -> float:
    return float(((a - other).square().sum() / a.square().sum()).sqrt())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("m", [1, 4])
def test_no_kernel_and_no_hybrid_beats_the_bound(mask: str, family: str, m: int):
    """Against kernels fitted to this very A, query by query and key by key, which is as close as they come."""
    captured = head(2 * torch.randn(BATCH, 1, N, N, generator=generator(0)), MASKS[mask]())
    a = weights(captured)
    exact = near(captured) & captured.keep if family == "hybrid" else torch.zeros_like(captured.keep)
    error = relative(a, closest(a, captured.keep & ~exact, exact, m))
    least = bound(captured, family, m)
    assert least <= error
    few_far_pairs = family == "hybrid" and mask in {"sliding", "packed", "causal packed"}
    assert least >= {"kernel": 0.5, "hybrid": 0.7}[family] * error or few_far_pairs


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_a_kernel_near_the_head_stays_above_the_bound(mask: str, signed: bool):
    """A' = phi(q)'phi(k) / z, z the row's own sum, and A the same with noise and with what is negative cut off."""
    keep, m = MASKS[mask](), 4
    features = [torch.rand(BATCH, 1, N, m, generator=generator(seed)).double() for seed in (2, 3)]
    if signed:
        features = [x - 0.2 for x in features]
    product = keep * (features[0] @ features[1].mT)
    other = product / product.sum(-1, keepdim=True)
    scores = other.clamp(min=1e-3).log() + 0.1 * torch.randn(other.shape, generator=generator(4))
    captured = head(scores, keep)
    a = weights(captured)
    error = relative(a, other.nan_to_num() * captured.valid[:, None, :, None])
    assert 0.01 < bound(captured, "kernel", m) <= error


def scan(q: Tensor, k: Tensor, gates: Tensor) -> Tensor:
    """(B, H, N, N): q_i' G_i ... G_(j+1) k_j for j <= i, with diagonal gates (B, H, N, m), as a recurrence computes it."""
    n = q.shape[-2]
    product = torch.zeros(*q.shape[:-1], n, dtype=q.dtype)
    carried = torch.zeros_like(k)
    for i in range(n):
        carried = carried * gates[..., i, None, :]
        carried[..., i, :] = k[..., i, :]
        product[..., i, :] = (carried @ q[..., i, :, None])[..., 0]
    return product


def as_head(product: Tensor, keep: Tensor) -> Captured:
    """The head whose weights are a positive kernel (B, H, N, N), or nothing where it is 0, normalised over the kept pairs."""
    return head(torch.where(product > 0, product, 1.0).log().masked_fill(product <= 0, NEVER), keep)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("mask", MASKS)
def test_a_kernel_has_bound_zero_and_only_from_its_own_number_of_features_on(mask: str, m: int):
    q, k = (torch.rand(BATCH, 1, N, m, generator=generator(seed)).double() ** 2 for seed in (5, 6))
    found = bounds(as_head(q @ k.mT, MASKS[mask]()), features=(1, 2, m)).values()[0]
    assert found["kernel"][str(m)] <= NOTHING
    assert found["hybrid"][str(m)] <= NOTHING
    if m > 1:
        assert found["kernel"]["1"] > 0.05
        assert found["kernel"]["2"] > 0.02


@pytest.mark.parametrize("mask", ["causal", "causal padded right", "causal padded left", "sliding", "causal packed"])
def test_a_causal_kernel_with_decay_has_bound_zero(mask: str):
    """Gates of each token and feature, some of them 0, and a weight of its own for each token's own key."""
    q, k, gates = (torch.rand(BATCH, 1, N, 3, generator=generator(seed)).double() for seed in (7, 8, 9))
    gates = torch.where(torch.rand(gates.shape, generator=generator(10)) < 0.05, 0.0, 0.5 + 0.5 * gates)
    own = torch.rand(BATCH, 1, N, generator=generator(11)).double()
    captured = as_head(scan(q, k, gates) + torch.diag_embed(own), MASKS[mask]())
    found = bounds(captured, features=(1, 3)).values()[0]["kernel"]
    assert found["3"] <= NOTHING
    assert found["1"] > 0.01


@pytest.mark.parametrize("mask", MASKS)
def test_a_hybrid_with_a_joint_normaliser_has_bound_zero_in_its_own_family_alone(mask: str):
    keep, m = MASKS[mask](), 2
    q, k = (torch.rand(BATCH, 1, N, m, generator=generator(seed)).double() for seed in (12, 13))
    scores = 2 * torch.randn(BATCH, 1, N, N, generator=generator(14)).double()
    captured = as_head(torch.where(near(head(scores, keep)), scores.exp(), q @ k.mT), keep)
    found = bounds(captured, features=(m,)).values()[0]
    assert found["hybrid"][str(m)] <= NOTHING
    assert found["kernel"][str(m)] > 0.1


def test_the_whole_matrix_bound_is_attained():
    captured = head(torch.randn(1, 1, 40, 40, generator=generator(15)), torch.ones(1, 1, 40, 40, dtype=torch.bool))
    u, s, v = torch.linalg.svd(weights(captured))
    for m, least in bounds(captured).values()[0]["kernel"].items():
        truncated = u[..., : int(m)] * s[..., None, : int(m)] @ v[..., : int(m), :]
        assert least == pytest.approx(relative(weights(captured), truncated), rel=1e-9)


def test_a_causal_kernel_of_one_feature_has_full_rank():
    """The running mean, phi = 1: the tails of the whole matrix are no bound for causal heads."""
    captured = head(torch.zeros(1, 1, N, N), causal(1, N))
    singular = torch.linalg.svdvals(weights(captured)[0, 0])
    assert float(singular.min()) > 1e-3
    assert float((singular[16:].square().sum() / singular.square().sum()).sqrt()) > 0.1
    assert bound(captured, "kernel", 1) == 0.0


@pytest.mark.parametrize("mask", MASKS)
def test_bounds_fall_with_the_number_of_features(mask: str):
    captured = head(2 * torch.randn(BATCH, 1, N, N, generator=generator(16)), MASKS[mask]())
    found = bounds(captured).values()[0]
    for family in FAMILIES:
        falling = list(found[family].values())
        assert falling == sorted(falling, reverse=True)
        assert falling[0] > 0
    if not captured.causal:
        assert all(found["hybrid"][m] <= found["kernel"][m] for m in found["kernel"])


@pytest.mark.parametrize("mask", ["full", "padded", "causal", "causal padded left"])
def test_parts_of_blocks_and_a_lattice_weaken_the_bound(monkeypatch: pytest.MonkeyPatch, mask: str):
    captured = head(2 * torch.randn(BATCH, 1, N, N, generator=generator(17)), MASKS[mask]())
    whole = bounds(captured).values()[0]
    monkeypatch.setattr(_bounds, "WHOLE", N // 2)
    monkeypatch.setattr(_bounds, "PART", 20)
    monkeypatch.setattr(_bounds, "CELLS", N // 4)
    cut = bounds(captured)
    for family in FAMILIES:
        found = cut.values()[0][family]
        assert all(found[m] <= whole[family][m] for m in found)
        assert found["1"] > 0.5 * whole[family]["1"]
    assert math.isnan(cut.ranks()[0])


@pytest.mark.parametrize("mask", MASKS)
def test_calls_batches_chunks_and_padding_change_nothing(monkeypatch: pytest.MonkeyPatch, mask: str):
    scores = 2 * torch.randn(BATCH, 3, N, N, generator=generator(18))
    keep = MASKS[mask]()
    together = head(scores, keep)
    alone = []
    for row in range(BATCH):
        seen = together.seen[row]
        size = int(seen.sum())
        alone.append(head(scores[row, :, seen][..., seen][None], keep[row, :, seen][..., seen].view(1, 1, size, size)))
    once = bounds(together)
    monkeypatch.setattr(_bounds, "ELEMENTS", 1000)
    apart = bounds(*alone)
    assert len(once.values()) == 3
    for first, second in zip(once.values(), apart.values(), strict=True):
        for family in FAMILIES:
            assert list(first[family].values()) == pytest.approx(list(second[family].values()), rel=1e-9, abs=1e-9)
    assert once.ranks() == pytest.approx(apart.ranks(), nan_ok=True)


def test_heads_with_masks_of_their_own():
    scores = 2 * torch.randn(1, 3, N, N, generator=generator(19))
    masks = [causal(1, N), sliding(1, N), causal(1, N)]
    together = bounds(head(scores, torch.cat(masks, 1))).values()
    for at, keep in enumerate(masks):
        assert together[at] == bounds(head(scores[:, at : at + 1], keep)).values()[0]


@pytest.mark.parametrize("rows", [1, BATCH])
def test_every_part_of_the_scores_counts(rows: int):
    """Grouped keys, a bias for all sequences or each, a cap and a learned sink: bounds of the weights they give."""
    draw = generator(20)
    q, k = torch.randn(BATCH, 4, N, 8, generator=draw), torch.randn(BATCH, 2, N, 8, generator=draw)
    bias, sink = torch.randn(rows, 4, N, N, generator=draw), torch.tensor([0.0, 1.0, 4.0, -9.0])
    keep = torch.ones(BATCH, 1, N, N, dtype=torch.bool)
    v, output = values(BATCH, N, seed=21, heads=2), torch.zeros(BATCH, 4, N, 6)
    captured = Captured("made", 0, q, k, v, keep, 0.7, output, bias, 5.0, sink)
    dots = 0.7 * q.double() @ k.double().repeat_interleave(2, 1).mT
    column = sink.double().view(1, 4, 1, 1).expand(BATCH, 4, N, 1)
    a = torch.cat([5 * (dots / 5).tanh() + bias, column], -1).softmax(-1)[..., :-1]
    tails = torch.linalg.svdvals(a).square().flip(-1).cumsum(-1).flip(-1).sum(0)
    for head_tails, found in zip(tails, bounds(captured).values(), strict=True):
        for m, least in found["kernel"].items():
            assert least == pytest.approx(float((head_tails[int(m)] / head_tails[0]).sqrt()), rel=1e-9)


def test_cross_attention_has_sinks_but_no_near_band():
    draw = generator(22)
    q, k, v = (torch.randn(1, 1, n, 12, generator=draw) for n in (30, 50, 50))
    keep = (torch.arange(50) < 44).expand(1, 1, 30, 50)
    captured = Captured("cross", 0, q, k, v, keep, 1.0, torch.zeros(1, 1, 30, 12), cross=True)
    a = weights(captured)[0, 0]
    found = bounds(captured).values()[0]
    for family, part in (("kernel", a), ("hybrid", a[:, 1:43])):
        tails = torch.linalg.svdvals(part).square().flip(-1).cumsum(-1).flip(-1)
        for m, least in found[family].items():
            assert least == pytest.approx(float((tails[int(m)] / a.square().sum()).sqrt()), rel=1e-9)


def test_on_a_grid_the_near_band_is_the_rows_of_the_window_and_special_tokens_are_sinks():
    grid = Grid((9, 8), 2)
    n, reach = grid.tokens, 3 * 8 + 3
    scores = 2 * torch.randn(1, 1, n, n, generator=generator(23)).double()
    q, k = (torch.rand(1, 1, n, 2, generator=generator(seed)).double() for seed in (24, 25))
    offset = torch.arange(n) - torch.arange(n)[:, None]
    exact = (offset.abs() <= reach) | (torch.arange(n) < 2)
    keep = torch.ones(1, 1, n, n, dtype=torch.bool)
    captured = replace(as_head(torch.where(exact, scores.exp(), q @ k.mT), keep), grid=grid)
    found = bounds(captured, features=(1, 2)).values()[0]
    assert found["hybrid"]["2"] <= NOTHING < 0.001 < found["hybrid"]["1"]
    tails = torch.linalg.svdvals(weights(captured)[0, 0, 2:]).square()
    assert found["kernel"]["2"] == pytest.approx(float((tails[2:].sum() / tails.sum()).sqrt()), rel=1e-9)


def test_ranks():
    keep = torch.ones(1, 1, N, N, dtype=torch.bool)
    own = head(torch.full((1, 1, N, N), NEVER).masked_fill(torch.eye(N, dtype=torch.bool), 0.0), keep)
    assert bounds(own).ranks() == [N]  # leaving out one of 72 equal values is an error of 11.8 %
    mean = head(torch.zeros(1, 1, N, N), keep)
    assert bounds(own, mean).ranks() == [(N + 1) / 2]
    assert math.isnan(bounds(head(torch.zeros(1, 1, N, N), causal(1, N))).ranks()[0])


def test_what_has_no_weights_has_bound_zero():
    keep = torch.zeros(1, 1, N, N, dtype=torch.bool)
    assert bounds().values() == []
    assert bound(head(torch.randn(1, 1, N, N), keep), "kernel", 1) == 0.0
    few = head(torch.randn(1, 1, 3, 3, generator=generator(26)), torch.ones(1, 1, 3, 3, dtype=torch.bool))
    assert bound(few, "kernel", 1) > 0.0
    assert bound(few, "kernel", 8) == bound(few, "hybrid", 1) == 0.0


def test_errors():
    with pytest.raises(ArgumentError, match="features: expected numbers of features of at least 1, got "):
        Bounds(())
    scores = torch.zeros(1, 1, N, N)
    scores[0, 0, 3, 4] = torch.nan
    with pytest.raises(QuadformError, match="planted: the attention weights are not finite"):
        bounds(head(scores, torch.ones(1, 1, N, N, dtype=torch.bool)))
