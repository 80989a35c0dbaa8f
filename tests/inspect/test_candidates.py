"""Each form computes what it says, on lines and grids, with biases, caps and sinks, and none of them looks ahead."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from tests.inspect.planted import NEVER, causal, measure, planted, raw_errors, values

from quadform.inspect import (
    CANDIDATES,
    Captured,
    FixedGraph,
    Grid,
    Hybrid,
    LowRank,
    Nystrom,
    Taylor,
    Window,
    inspect_heads,
)
from quadform.inspect._block import Block, blocks
from quadform.inspect._structure import summarise
from quadform.inspect.candidates import _graph

N = 40
CANDIDATE = {candidate.name: candidate for candidate in CANDIDATES}


def content(
    seed: int, *, batch: int = 3, n: int = N, m: int | None = None, dim: int = 5, keep=None, **options
) -> Captured:
    """A head of random q, k and v."""
    generator = torch.Generator().manual_seed(seed)
    m = n if m is None else m
    q = torch.randn(batch, 2, n, dim, generator=generator)
    k, v = (torch.randn(batch, 2, m, size, generator=generator) for size in (dim, 6))
    keep = torch.ones(batch, 1, n, m, dtype=torch.bool) if keep is None else keep
    blank = Captured("head", 0, q, k, v, keep, 0.3, torch.zeros(batch, 2, n, 6), **options)
    return replace(blank, output=Block(blank, 0, n).output)


def applied(candidate, measured: Captured, fit: Captured) -> torch.Tensor:
    """(B, H, N, E): a form's output, fitted on `fit`."""
    fitter = candidate.fitter()
    if fitter is not None:
        for block in blocks(fit):
            fitter.add(block)
    fitted = fitter.fitted() if fitter is not None else None
    return torch.cat([candidate.apply(block, fitted) for block in blocks(measured)], 2)


def test_scores_with_a_cap_a_bias_and_a_learned_sink():
    generator = torch.Generator().manual_seed(7)
    bias, sink = torch.randn(1, 2, N, N, generator=generator), torch.randn(2, generator=generator)
    head = content(0, bias=bias, softcap=1.5, sink=sink, keep=causal(3, N))
    scores = 1.5 * (0.3 * head.q.double() @ head.k.double().mT / 1.5).tanh() + bias.double()
    top = scores.masked_fill(~head.keep, -torch.inf).exp()
    weights = top / (top.sum(-1, keepdim=True) + sink.double().exp().view(1, 2, 1, 1))
    torch.testing.assert_close(Block(head, 0, N).weights.double(), weights, rtol=1e-5, atol=1e-7)
    errors = raw_errors(head, head)
    assert "kernel-taylor2" not in errors and "nystrom-16" not in errors
    assert errors["window-32+sinks"] > 0.001
    wide = applied(Window(size=2 * N), head, head)
    torch.testing.assert_close(wide.double(), weights @ head.v.double(), rtol=1e-4, atol=1e-5)


def test_the_taylor_kernel_is_a_kernel_of_that_many_features():
    head, fit = content(1), content(2)
    query, key = fit.q.mean((0, 2)), fit.k.mean((0, 2))

    def features(x: torch.Tensor) -> torch.Tensor:
        pairs = list(itertools.combinations_with_replacement(range(5), 2))
        products = [x[..., a] * x[..., b] * (1.0 if a != b else 0.5**0.5) for a, b in pairs]
        return torch.cat([torch.ones_like(x[..., :1]), x, torch.stack(products, -1)], -1)

    scale = head.scaling**0.5
    phi_q = features((head.q - query[:, None]).double() * scale)
    gain = (head.scaling * torch.einsum("hd,bhnd->bhn", query.double(), head.k.double())).exp()
    phi_k = features((head.k - key[:, None]).double() * scale) * gain[..., None]
    assert phi_q.shape[-1] == 1 + 5 + 15
    weights = phi_q @ phi_k.mT
    expected = weights / weights.sum(-1, keepdim=True) @ head.v.double()
    torch.testing.assert_close(applied(Taylor(), head, fit).double(), expected, rtol=1e-4, atol=1e-5)


def test_nystrom_through_every_token_is_the_head_itself():
    head = content(3)
    torch.testing.assert_close(applied(Nystrom(landmarks=N), head, head), head.output, rtol=1e-2, atol=1e-2)
    assert (applied(Nystrom(landmarks=4), head, head) - head.output).norm() > 0.05 * head.output.norm()


def test_the_low_rank_oracle_is_nearly_the_best_of_its_rank():
    head = content(4, dim=12)
    weights = Block(head, 0, N).weights.double()
    u = torch.linalg.svd(weights).U
    projected = u[..., :4] @ u[..., :4].mT @ head.output.double()
    torch.testing.assert_close(applied(LowRank(rank=4), head, head).double(), projected, rtol=0.03, atol=0.03)
    assert (projected - head.output).norm() > 0.05 * head.output.norm()


def test_the_hybrid_s_far_share_is_right_on_average():
    head = content(5, n=80)
    candidate = Hybrid()
    ones = replace(head, v=torch.ones_like(head.v))
    edges = candidate.window.edges(Block(head, 0, 80))
    far = replace(head, v=torch.ones_like(head.v))
    fitter = candidate.fitter()
    for block in blocks(head):
        fitter.add(block)
    fitted = fitter.fitted()
    assert torch.allclose(applied(candidate, ones, head), ones.v, atol=1e-5)
    weights = []
    for start in range(0, 80, 6):  # read the weights through values that pick one key each
        v = torch.zeros_like(far.v)
        width = min(6, 80 - start)
        v[:, :, start : start + width, :width] = torch.eye(width)
        weights.append(candidate.apply(Block(replace(head, v=v), 0, 80), fitted)[..., :width])
    share = torch.cat(weights, -1).masked_fill(edges, 0.0).sum(-1).mean((0, 2))
    true = Block(head, 0, 80).weights.masked_fill(edges, 0.0).sum(-1).mean((0, 2))
    torch.testing.assert_close(share, true, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("whole", [512, 8])
def test_a_fixed_graph_is_found(monkeypatch, whole: int):
    monkeypatch.setattr(_graph, "WHOLE", whole)
    generator = torch.Generator().manual_seed(0)
    edges = torch.rand(N, N, generator=generator).argsort(-1) < 4

    def head(seed: int) -> Captured:
        scores = torch.randn(3, 1, N, N, generator=torch.Generator().manual_seed(seed))
        return planted(scores.masked_fill(~edges, NEVER), values(3, N, seed=seed + 50))

    fitter = FixedGraph(k=4).fitter()
    for block in blocks(head(1)):
        fitter.add(block)
    assert torch.equal(fitter.fitted().long().sort(-1).values, edges.nonzero()[:, 1].view(1, N, 4))
    errors = raw_errors(head(2), head(1))
    assert errors["graph-16"] < 1e-5
    assert min(errors["window-32+sinks"], errors["convolution-15"], errors["mean"]) > 0.1


@pytest.mark.parametrize("name", [name for name, form in CANDIDATE.items() if name != "rank-16"])
def test_no_form_of_a_causal_head_looks_ahead(name: str):
    candidate, at = CANDIDATE[name], 25
    head, fit = content(6, keep=causal(3, N)), content(7, keep=causal(3, N))
    changed = {key: getattr(head, key).clone() for key in ("q", "k", "v")}
    for tensor in changed.values():
        tensor[:, :, at:] += torch.randn(tensor[:, :, at:].shape, generator=torch.Generator().manual_seed(9))
    other = replace(head, **changed)
    if candidate.refusal(head):
        assert name == "nystrom-16"
        return
    before, after = applied(candidate, head, fit), applied(candidate, other, fit)
    torch.testing.assert_close(after[:, :, :at], before[:, :, :at], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(after[:, :, at:], before[:, :, at:], atol=1e-2)


def grid_head(seed: int, edges: torch.Tensor, grid: Grid, *, spread: float = 2.0) -> Captured:
    n = grid.tokens
    scores = spread * torch.randn(3, 1, n, n, generator=torch.Generator().manual_seed(seed))
    return planted(scores.masked_fill(~edges, NEVER), values(3, n, seed=seed + 1), grid=grid)


GRID = Grid((9, 12), special=2)


def test_offsets_on_a_grid_by_hand():
    offsets, placed = GRID.offsets(slice(None))
    for i, j in ((2, 2), (2, 15), (40, 7), (109, 2)):
        (yi, xi), (yj, xj) = divmod(i - 2, 12), divmod(j - 2, 12)
        assert offsets[i, j].tolist() == [yj - yi, xj - xi] and bool(placed[i, j])
    assert not placed[:2].any() and not placed[:, :2].any() and placed[2:, 2:].all()
    numbers = GRID.bin(slice(None))
    assert numbers[2, 2] == GRID.bins // 2 and int(numbers.max()) == GRID.bins
    assert torch.equal(GRID.within(slice(5, 9), ((1, 1), (2, 2))), GRID.within(slice(None), ((1, 1), (2, 2)))[5:9])


def test_a_convolution_and_a_window_on_a_grid():
    offsets, placed = GRID.offsets(slice(None))
    shift = placed & (offsets == torch.tensor([-2, 1])).all(-1)
    shift[~shift.any(-1), 0] = True

    def shifted(seed: int) -> Captured:
        head = grid_head(seed, shift, GRID, spread=0.0)
        head.v[:, :, 0] = 0.0
        return replace(head, output=Block(head, 0, GRID.tokens).output)

    errors = raw_errors(shifted(0), shifted(5))
    assert errors["convolution-15"] < 1e-4 and errors["mean"] > 0.5
    near = GRID.within(slice(None), ((3, 3), (3, 3)))
    near[:2] = True
    errors = raw_errors(grid_head(1, near, GRID), grid_head(6, near, GRID))
    assert errors["window-32"] < 1e-5 < 0.1 < errors["convolution-15"]
    with_special = near.clone()
    with_special[:, :2] = True
    errors = raw_errors(grid_head(2, with_special, GRID), grid_head(7, with_special, GRID))
    assert errors["window-32+sinks"] < 1e-5 < 0.1 < errors["window-32"]


def test_special_tokens_are_not_measured_and_count_as_sinks():
    offsets, placed = GRID.offsets(slice(None))
    edges = placed & (offsets == 0).all(-1)
    edges[:, 0] = True
    head = grid_head(3, edges, GRID, spread=0.0)
    assert not head.valid[:, :2].any() and head.valid[:, 2:].all()
    found = summarise(measure([head], [head]).structure.values, head.place)
    assert found["sink_mass"][0] == pytest.approx(0.5, rel=1e-5)
    assert found["window_mass"][0] == 1.0 and found["window_95"][0] == 0.0
    assert found["effective_degree"][0] == pytest.approx(2.0, rel=1e-5)


def test_cross_attention_has_no_offsets():
    head = content(8, n=24, m=30, cross=True)
    layer = inspect_heads([head], [content(9, n=24, m=30, cross=True)], bounds=False)
    assert (layer.role, layer.queries, layer.keys, layer.causal) == ("cross", 24, 30, False)
    assert {"convolution-15", "window-32", "window-32+sinks", "hybrid-32"} == set(layer.refusals)
    assert set(layer.heads[0].errors) == {"mean", "graph-16", "kernel-taylor2", "nystrom-16", "top-16", "rank-16"}
    assert layer.heads[0].structure["offset_share"] is None and layer.heads[0].views.kernel == []
    assert (layer.heads[0].structure["effective_degree"] or 0.0) > 1.0


def test_decay_is_an_exponential_s_half_life():
    lag = torch.arange(N)[:, None] - torch.arange(N)
    scores = torch.where(lag >= 0, -0.1 * lag, NEVER)
    head = planted(scores.expand(2, 1, N, N), values(2, N, seed=0), causal(2, N))
    middle = replace(head, q=head.q.clone())
    found = summarise(measure([middle], [middle]).structure.values, head.place)
    assert found["half_life"][0] == pytest.approx(6.93, rel=0.25)
    assert (found["decay_fit"][0] or 0.0) > 0.95


def test_edges_for_95_percent_of_the_mass():
    scores = torch.full((N, N), NEVER)
    scores[:, 3:13] = 0.0
    head = planted(scores.expand(2, 1, N, N), values(2, N, seed=0))
    found = summarise(measure([head], [head]).structure.values, head.place)
    assert found["edges_95"][0] == pytest.approx(10.0)
    assert found["effective_degree"][0] == pytest.approx(10.0, rel=1e-4)


@pytest.mark.parametrize("tokens, applies", [(17, False), (18, True)])
def test_a_window_that_holds_every_pair_is_no_form(tokens: int, applies: bool):
    for name in ("window-32", "window-32+sinks", "hybrid-32"):
        assert (CANDIDATE[name].refusal(content(0, n=tokens)) is None) == applies
