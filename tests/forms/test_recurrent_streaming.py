"""Streams of every mixer that the recurrent form accepts: splits, padding row by row, gradients through states, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadform as qf

HEADS, KV_HEADS, D = 4, 2, 3
ROTATIONS = torch.randn(HEADS, 2, D, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

MIXERS: list[tuple[Any, Any]] = [
    *(
        (qf.Causal(), weights)
        for weights in (
            qf.Softmax(bias=qf.Alibi()),
            qf.Softmax(softcap=2.0, bias=qf.Table(3, 2)),
            qf.Softmax(content=False, bias=qf.Alibi()),
            qf.Softmax(content=False, bias=qf.T5Buckets(8, 20)),
            qf.Similarity("cauchy"),
            qf.Additive(),
            qf.AdditiveV2(),
            qf.Kernel("exp", normalise=False),
            qf.Kernel("elu1", decay="scalar"),
            qf.Kernel("elu1", decay="feature", normalise=False),
            qf.Uniform("mean"),
        )
    ),
    (qf.Window(5, dilation=2, sinks=2), qf.Softmax()),
    (qf.Window(4, dilation=3), qf.Similarity("polynomial")),
    (qf.Window(3) | qf.Window(2, sinks=3), qf.Softmax(bias=qf.Alibi())),
    (qf.Window(4) & qf.Causal(), qf.Kernel("elu1", decay="feature")),
    (qf.Window(3, sinks=2), qf.Kernel("elu1", decay="scalar")),
    (qf.Window(4), qf.Softmax(content=False, bias=qf.Quadratic())),
    (qf.Causal() & (qf.Window(3) | qf.Global(first=2)), qf.Softmax()),
    (qf.Causal() & (qf.Window(3) | qf.Global(indices=(4,))), qf.AdditiveV2()),
    (qf.Causal() & qf.Buckets(2, 4), qf.Softmax()),
    (qf.Window(6, sinks=2) & qf.Buckets(2, 4), qf.Kernel("elu1")),
    *((qf.Stencil(3, padding="causal", border=b), qf.Taps()) for b in ("zeros", "renormalise", "replicate")),
    *((qf.Stencil(3, dilation=2, padding="causal", border=b), qf.Dynamic()) for b in ("zeros", "replicate")),
    (qf.Causal(), qf.Hybrid(qf.Window(0), qf.Kernel("relu"))),
    (qf.Causal(), qf.Hybrid(qf.Window(3, 2, sinks=2), qf.Kernel("taylor2"))),
    (qf.Causal(), qf.Hybrid(qf.Window(4) | qf.Global(first=2, indices=(3,)), qf.Kernel("elu1"))),
]
every_mixer = pytest.mark.parametrize(("edges", "weights"), MIXERS, ids=lambda part: str(part))


def sample(edges: Any, weights: Any, n: int, batch: int) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """(q, k, v and the declared tensors of a call of n tokens, the names of their dimensions)."""
    dims: dict[str, tuple[str, ...]] = {"q": ("B", "H", "Q", "D"), "k": ("B", "G", "K", "D"), "v": ("B", "G", "K", "D")}
    if "k" not in weights.reads and not edges.content:
        del dims["k"]
    dims |= {spec.name: spec.dims for spec in weights.specs()}
    sizes = {"B": batch, "H": HEADS, "Q": n, "K": n, "D": D, "M": D, "T": getattr(edges, "taps", 0)}

    torch.manual_seed(n)

    def size(name: str, dim: str) -> int:
        return int(dim) if dim.isdigit() else (KV_HEADS if name in "kv" else 1) if dim == "G" else sizes[dim]

    inputs = {name: torch.randn([size(name, d) for d in names], dtype=torch.float64) for name, names in dims.items()}
    for name in ("log_decay", "slopes"):
        if name in inputs:
            inputs[name] = inputs[name].abs() * (-1 if name == "log_decay" else 1)
    return {name: x.requires_grad_() for name, x in inputs.items()}, dims


def pick(inputs: dict[str, Tensor], dims: dict[str, tuple[str, ...]], index: Tensor, row: int | None = None) -> Any:
    """The tokens of that index alone, of one row of the batch or of all."""
    out = {}
    for name, x in inputs.items():
        if row is not None and dims[name][0] == "B":
            x = x[row : row + 1]
        for axis, dim in enumerate(dims[name]):
            x = x.index_select(axis, index) if dim in ("Q", "K") else x
        out[name] = x
    return out


def run(edges: Any, weights: Any, inputs: dict[str, Tensor], **call: Any) -> Any:
    tensors = {name: x for name, x in inputs.items() if name not in ("q", "k", "v")}
    if edges.content:
        tensors["rotations"] = ROTATIONS
    return qf.attend(inputs["q"], inputs.get("k"), inputs["v"], edges, weights, tensors=tensors, **call)


def worst(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max()) if expected.numel() else 0.0


@every_mixer
@pytest.mark.parametrize("splits", [[23], [10, 0, 1, 5, 7], [1] * 23], ids=["parallel", "chunks", "steps"])
def test_every_split_is_one_pass(edges, weights, splits):
    inputs, dims = sample(edges, weights, 23, 2)
    state, parts, start = None, [], 0
    for size in splits:
        piece = pick(inputs, dims, torch.arange(start, start + size))
        y, state = run(edges, weights, piece, state=state, return_state=True)
        parts.append(y)
        start += size
    y, expected = torch.cat(parts, 2), run(edges, weights, inputs, form="dense")
    assert worst(y, expected) < 1e-11
    cotangent = torch.randn_like(y)
    leaves = list(inputs.values())
    slopes = [torch.autograd.grad(x, leaves, cotangent, allow_unused=True) for x in (y, expected)]
    for a, b in zip(*slopes, strict=True):
        assert a is None or b is None or (a - b).abs().max() < 1e-10 * max(1.0, float(b.abs().max()))


@every_mixer
def test_each_row_counts_its_own_positions(edges, weights):
    """Left padding, right padding and holes in every call of a stream, NaN in the padding; each row alone is the oracle."""
    generator = torch.Generator().manual_seed(2)
    sizes, batch = [6, 4, 0, 7], 4
    inputs, dims = sample(edges, weights, sum(sizes), batch)
    state: Any = None
    parts, start = [], 0
    exists = torch.zeros(batch, sum(sizes), dtype=torch.bool)
    kept = torch.zeros_like(exists)
    for size in sizes:
        lengths = torch.randint(0, size + 1, (batch,), generator=generator)
        mask = torch.rand(batch, size, generator=generator) < 0.7
        mask[0], lengths[0] = True, size  # one row without padding
        inside = torch.arange(size) < lengths[:, None]
        here = mask & inside
        kept[:, start : start + size] = here
        begun = kept[:, : start + size].cumsum(-1)[:, start:] > 0
        exists[:, start : start + size] = inside & begun
        piece = pick(inputs, dims, torch.arange(start, start + size))
        for name in ("k", "v"):
            if name in piece:
                piece[name] = torch.where(here[:, None, :, None], piece[name], torch.nan)
        call: Any = {"lengths": lengths, "key_mask": mask, "return_state": True}
        y, state = run(edges, weights, piece, state=state, **call)
        parts.append(y)
        start += size
    y = torch.cat(parts, 2)
    assert state.length.tolist() == exists.sum(-1).tolist()
    for row in range(batch):
        index = exists[row].nonzero()[:, 0]
        end = int(kept[row, index].nonzero().max()) + 1  # what is masked at the very end would be padding to the oracle
        index = index[:end]
        alone = pick(inputs, dims, index, row)
        expected = run(edges, weights, alone, form="dense", key_mask=kept[row, index][None])
        assert worst(y[row : row + 1, :, index], expected) < 1e-11


@pytest.mark.parametrize(("edges", "weights"), [
    (qf.Window(4, sinks=1), qf.Softmax()),
    (qf.Causal(), qf.Softmax()),
    (qf.Causal(), qf.Kernel("elu1")),
    (qf.Causal(), qf.Hybrid(qf.Window(3, sinks=1), qf.Kernel("elu1"))),
    (qf.All(), qf.Kernel("elu1")),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("padded", [False, True])
def test_a_state_owns_no_more_memory_than_it_says_and_nothing_of_the_caller(edges, weights, padded):
    q, k, v = (torch.randn(2, h, 500, D) for h in (HEADS, KV_HEADS, KV_HEADS))
    call: Any = {"lengths": torch.tensor([500, 480])} if padded else {}
    _, state = qf.prefill(q, k, v, edges, weights, **call)
    assert sum(t.untyped_storage().nbytes() for t in (state.length, *state.tensors.values())) == state.nbytes
    before = {name: t.clone() for name, t in state.tensors.items()}
    for x in (q, k, v):
        x.fill_(torch.nan)
    assert all(torch.equal(t, before[name]) for name, t in state.tensors.items())


def test_rings_keep_the_dtype_and_sums_are_float32():
    q, k, v = (torch.randn(1, h, 9, D).bfloat16() for h in (HEADS, KV_HEADS, KV_HEADS))
    _, state = qf.prefill(q, k, v, qf.Causal(), qf.Hybrid(qf.Window(2), qf.Kernel("elu1")))
    dtypes = {name: t.dtype for name, t in state.tensors.items()}
    assert dtypes["tail_k"] == dtypes["tail_v"] == torch.bfloat16
    assert dtypes["S"] == dtypes["z"] == torch.float32


def test_five_thousand_steps_of_ones_count_to_five_thousand():
    one, weights = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16), qf.Kernel("relu")
    state = qf.init_state(qf.Causal(), weights, batch=1, heads=1, head_dim=1, dtype=torch.bfloat16)
    for _ in range(5000):
        y, state = qf.step(one, one, one, qf.Causal(), weights, state)
    assert state.tensors["z"].item() == 5000.0 and y.item() == 1.0


@pytest.mark.parametrize("decay", ["scalar", "feature"])
def test_gates_have_second_derivatives(decay):
    inputs, _ = sample(qf.Causal(), qf.Kernel("exp", decay=decay), 5, 1)
    names = list(inputs)

    def once(*leaves: Tensor) -> Tensor:
        return run(qf.Causal(), qf.Kernel("exp", decay=decay), dict(zip(names, leaves, strict=True)), form="recurrent")

    assert torch.autograd.gradcheck(once, list(inputs.values()), fast_mode=True)
    assert torch.autograd.gradgradcheck(once, list(inputs.values()), fast_mode=True)


def test_cross_attention_reduces_a_memory_once_and_reads_it_again():
    weights = qf.Kernel("elu1")
    q, k, v = (torch.randn(2, h, n, D, dtype=torch.float64) for h, n in ((4, 6), (2, 9), (2, 9)))
    lengths = torch.tensor([4, 9])
    expected = qf.attend(q, k, v, qf.All(), weights, form="dense", lengths=lengths)
    y, memory = qf.prefill(q[:, :, :2], k, v, qf.All(), weights, lengths=lengths)
    rest, after = qf.prefill(q[:, :, 2:], k[:, :, :0], v[:, :, :0], qf.All(), weights, state=memory)
    assert (torch.cat([y, rest], 2) - expected).abs().max() < 1e-13
    assert torch.equal(after.tensors["S"], memory.tensors["S"]) and after.length.tolist() == [4, 9]
    with pytest.raises(qf.Refused, match="would have needed the new keys"):
        qf.prefill(q, k, v, qf.All(), weights, state=memory)
    with pytest.raises(qf.Refused, match="no state can be carried on"):
        qf.prefill(k, k, v, qf.All(), qf.Hybrid(qf.Window(2), weights))


@pytest.mark.parametrize(("edges", "weights", "reason"), [
    (qf.Causal() & (qf.Window(3) | qf.Global(last=1)), qf.Softmax(), "the last is known only at the end"),
    (qf.Causal(), qf.Hybrid(qf.Window(3) | qf.Global(last=1), qf.Kernel("elu1")), "the last is known only at the end"),
    (qf.Causal(), qf.Hybrid(qf.Window(3) | qf.Global(indices=(7,)), qf.Kernel("elu1")), "the global token 7 sees all"),
    (qf.Causal(), qf.Softmax(bias=qf.PairBias()), "'bias' names pairs of tokens"),
], ids=str)  # fmt: skip
def test_what_is_computed_at_once_but_does_not_stream(edges, weights, reason):
    inputs, _ = sample(edges, weights, 12, 1)
    y = run(edges, weights, inputs, form="recurrent")
    assert worst(y, run(edges, weights, inputs, form="dense")) < 1e-11
    with pytest.raises(qf.Refused, match=reason):
        run(edges, weights, inputs, return_state=True)


def test_edges_that_hold_all_the_past_stream_whatever_else_they_name():
    edges = qf.Causal() & (qf.Causal() | qf.Global(last=1))
    inputs, dims = sample(edges, qf.Softmax(), 8, 1)
    first, state = run(edges, qf.Softmax(), pick(inputs, dims, torch.arange(5)), return_state=True)
    second = run(edges, qf.Softmax(), pick(inputs, dims, torch.arange(5, 8)), state=state)
    assert worst(torch.cat([first, second], 2), run(edges, qf.Softmax(), inputs, form="dense")) < 1e-12


def test_a_decayed_sink_keeps_every_gate_and_says_so_in_its_cost():
    inputs, _ = sample(qf.Window(3), qf.Kernel("elu1", decay="scalar"), 50, 1)
    sizes = []
    for edges in (qf.Window(3), qf.Window(3, sinks=1)):
        _, state = run(edges, qf.Kernel("elu1", decay="scalar"), inputs, return_state=True)
        sizes.append(state.tensors["tail_v"].shape[2])
    assert sizes == [3, 50]


@every_mixer
def test_an_empty_state_needs_no_tensors_of_the_weights(edges, weights):
    inputs, _ = sample(edges, weights, 5, 2)
    sizes: Any = {"batch": 2, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": D, "dtype": torch.float64}
    tensors = {"rotations": ROTATIONS} if edges.content else None
    empty = qf.init_state(edges, weights, tensors=tensors, **sizes)
    assert empty.length.tolist() == [0, 0]
    y, state = run(edges, weights, inputs, state=empty, return_state=True)
    assert worst(y, run(edges, weights, inputs, form="dense")) < 1e-11
    assert state.length.tolist() == [5, 5]


@pytest.mark.parametrize(("edges", "weights", "entry"), [
    (qf.Causal(), qf.Kernel("elu1"), "S of torch.float32 and shape"),
    (qf.Window(3), qf.Softmax(), "tail_k of torch.float32 and shape"),
    (qf.Causal(), qf.Hybrid(qf.Window(2), qf.Kernel("elu1")), "tail_k of torch.float32 and shape"),
], ids=str)  # fmt: skip
def test_a_state_of_other_sizes_is_named(edges, weights, entry):
    state = qf.init_state(edges, weights, batch=1, heads=2, head_dim=5)
    other = tuple(torch.randn(1, 2, 1, 4) for _ in range(3))
    with pytest.raises(qf.ArgumentError, match=f"^state: expected {entry}"):
        qf.step(*other, edges, weights, state)


def test_a_damaged_file_is_named():
    state = qf.init_state(qf.Causal(), qf.Kernel("elu1"), batch=2, heads=2, head_dim=3)
    tensors, metadata = state.to_tensors()
    cases: list[tuple[Any, Any, str]] = [
        ({n: t for n, t in tensors.items() if n != "S"}, metadata, r"^tensors: expected an entry 'S'"),
        (tensors, {"kind": "kernel"}, r"^metadata: expected an entry 'mixer'"),
        (tensors, metadata | {"kind": "lstm"}, r"^metadata\['kind'\]: expected one of"),
        (tensors | {"length": torch.zeros(2)}, metadata, r"^tensors\['length'\]: expected an int64"),
        (tensors | {"z": tensors["z"][:1]}, metadata, r"^tensors\['z'\]: expected a batch of 2 rows"),
    ]
    for damaged, about, message in cases:
        with pytest.raises(qf.ArgumentError, match=message):
            qf.State.from_tensors(damaged, about)
