"""Steps: the short way of common mixers, buffers that states share, and what a compiler makes of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.eval_frame import is_dynamo_supported

import quadform as qf
from quadform.forms.recurrent._buffer import Placed
from quadform.forms.recurrent._quick import quick_step

QUICK: list[tuple[Any, Any]] = [
    (qf.Causal(), qf.Kernel("elu1")),
    (qf.Causal(), qf.Kernel("exp", normalise=False)),
    (qf.Causal(), qf.Kernel("taylor2")),
    (qf.Causal(), qf.Softmax()),
    (qf.Causal(), qf.Softmax(scale=0.7)),
    (qf.Window(5), qf.Softmax()),
    (qf.Window(0), qf.Softmax()),
    (qf.Window(5, sinks=2), qf.Softmax()),
    (qf.Window(2, sinks=9), qf.Softmax()),
    (qf.Causal(), qf.Hybrid(qf.Window(3), qf.Kernel("exp"))),
    (qf.Causal(), qf.Hybrid(qf.Window(0), qf.Kernel("elu1"))),
    (qf.Causal(), qf.Hybrid(qf.Window(3, sinks=2), qf.Kernel("relu"))),
    (qf.Causal(), qf.Hybrid(qf.Window(30, 2), qf.Kernel("elu1"), 0.4)),
]
TENSORS: dict[str, tuple[int, ...]] = {"feature_weight": (4, 6, 6), "feature_weight_k": (1, 6, 6), "key_centre": (4, 6)}
WITH_TENSORS: list[tuple[Any, tuple[str, ...]]] = [
    (qf.Kernel("elu1", decay="scalar"), ()),
    (qf.Kernel("exp", normalise=False, decay="feature"), ()),
    (qf.Kernel("hedgehog", decay="feature"), ("feature_weight",)),
    (qf.Kernel("hedgehog"), ("feature_weight", "feature_weight_k")),
    (qf.Kernel(qf.Favor(5), normalise=False), ("feature_projection",)),
    (qf.Kernel(qf.Taylor2(centre="fixed")), ("key_centre",)),
    (qf.Hybrid(qf.Window(2), qf.Kernel("hedgehog")), ("feature_weight", "feature_weight_k", "far_gain")),
    (qf.Hybrid(qf.Window(2, sinks=1), qf.Kernel(qf.Favor(5))), ("feature_projection",)),
    (qf.Hybrid(qf.Window(4), qf.Kernel("exp")), ("far_gain",)),
]
every_quick = pytest.mark.parametrize(("edges", "weights"), QUICK, ids=str)
GROWING = (qf.Causal(), qf.Softmax())
RING = (qf.Window(20), qf.Softmax())


def qkv(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((4, 6), (2, 6), (2, 5))
    return tuple(torch.randn(3, h, n, d, generator=generator, dtype=torch.float64).to(dtype) for h, d in sizes)


@every_quick
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_short_way_is_the_ordinary_one(edges, weights, dtype):
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[0, :3] = mask[1, 4] = mask[2, 5] = False
    _, state = qf.prefill(*qkv(6, 1, dtype), edges, weights, key_mask=mask)
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for seed in range(8):
        token = qkv(1, seed, dtype)
        expected, after = qf.attend(*token, edges, weights, state=state, return_state=True)
        assert quick_step(*token, edges, weights, state) is not None
        y, state = qf.step(*token, edges, weights, state)
        assert y.dtype == dtype
        assert (y - expected).abs().max() <= tolerance * expected.abs().max()
        assert torch.equal(state.length, after.length) and set(state.tensors) == set(after.tensors)
        for name, x in state.tensors.items():
            assert x.dtype == after.tensors[name].dtype and x.shape == after.tensors[name].shape
            assert torch.allclose(x, after.tensors[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("weights", "names"), WITH_TENSORS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_short_way_with_tensors_is_the_ordinary_one(weights, names, dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = TENSORS | {"feature_projection": (4, 5, 6), "far_gain": (4,)}
    fixed = {name: torch.randn(shapes[name], generator=generator, dtype=torch.float64) for name in names}

    def tensors(n: int) -> dict[str, Tensor]:
        if not isinstance(weights, qf.Kernel) or weights.decay is None:
            return fixed
        tail = () if weights.decay == "scalar" else (weights.phi.features(6),)
        return fixed | {"log_decay": -torch.rand(3, 4, n, *tail, generator=generator, dtype=torch.float64)}

    _, state = qf.prefill(*qkv(6, 1, dtype), qf.Causal(), weights, tensors=tensors(6))
    for seed in range(4):
        token, given = qkv(1, seed, dtype), tensors(1)
        assert quick_step(*token, qf.Causal(), weights, state, given) is not None
        expected, after = qf.attend(*token, qf.Causal(), weights, tensors=given, state=state, return_state=True)
        y, state = qf.step(*token, qf.Causal(), weights, state, tensors=given)
        assert (y - expected).abs().max() <= (1e-12 if dtype == torch.float64 else 1e-2) * expected.abs().max()
        assert all(torch.allclose(x, after.tensors[name], rtol=1e-5, atol=1e-5) for name, x in state.tensors.items())
    name = next(iter(tensors(1)))
    optional = names == ("far_gain",)
    other: list[dict[str, Tensor]] = [
        {"more": torch.ones(1)} if optional else {},
        tensors(1) | {"more": torch.ones(1)},
        tensors(1) | {name: torch.ones(4, 4, 4, 4)},
    ]
    assert all(quick_step(*qkv(1, 0, dtype), qf.Causal(), weights, state, wrong) is None for wrong in other)
    with pytest.raises(qf.ArgumentError, match="^tensors"):
        qf.step(*qkv(1, 0, dtype), qf.Causal(), weights, state, tensors=other[0])


def test_a_map_without_a_hash_takes_a_step():
    @dataclasses.dataclass
    class Squares(qf.FeatureMap):
        def features(self, head_dim: int) -> int:
            return head_dim

        def __call__(self, x: Tensor) -> Tensor:
            return x * x

    weights = qf.Kernel(Squares())
    _, state = qf.prefill(*qkv(2), qf.Causal(), weights)
    expected, _ = qf.attend(*qkv(1), qf.Causal(), weights, state=state, return_state=True)
    assert (qf.step(*qkv(1), qf.Causal(), weights, state)[0] - expected).abs().max() < 1e-13


@every_quick
def test_no_rows_and_no_numbers(edges, weights):
    for batch, width in ((0, 4), (2, 0)):
        token = [torch.ones(batch, 2, 1, 4), torch.ones(batch, 2, 1, 4), torch.ones(batch, 2, 1, width)]
        _, state = qf.prefill(*token, edges, weights)
        y, state = qf.step(*token, edges, weights, state)
        assert y.shape == (batch, 2, 1, width) and state.length.tolist() == [2] * batch


def test_all_else_goes_the_ordinary_way():
    token = qkv(1)
    others: list[tuple[Any, Any, Any]] = [
        (qf.Causal(), qf.Softmax(softcap=1.0), {}),
        (qf.Causal(), qf.Softmax(bias=qf.Alibi()), {"slopes": torch.ones(4, dtype=torch.float64)}),
        (qf.Causal(), qf.Kernel(qf.Taylor2(centre="running")), {}),
        (qf.Window(2, dilation=2), qf.Softmax(), {}),
    ]
    for edges, weights, tensors in others:
        _, state = qf.prefill(*token, edges, weights, tensors=tensors)
        assert quick_step(*token, edges, weights, state) is None
    _, state = qf.prefill(*token, *GROWING)
    q, k, v = token
    wrong = ((q, k, v[..., :2]), (q, k[:, :1], v), (q[:2], k, v), (q, k.float(), v), (q[:, :3], k, v), (None, k, v))
    assert all(quick_step(*some, *GROWING, state) is None for some in wrong)
    assert quick_step(*token, *RING, state) is None


@pytest.mark.parametrize(("edges", "weights"), [GROWING, RING, (qf.Causal(), qf.Softmax(softcap=2.0)),
    (qf.Window(20, sinks=1), qf.Softmax()), (qf.Causal(), qf.Hybrid(qf.Window(20), qf.Kernel("exp")))], ids=str)  # fmt: skip
def test_a_stream_writes_behind_what_it_has(edges, weights):
    _, state = qf.prefill(*qkv(1), edges, weights)
    places, moves = None, 0
    for seed in range(300):
        _, state = qf.step(*qkv(1, seed), edges, weights, state)
        places, before = state.tensors["tail_k"].untyped_storage().data_ptr(), places
        moves += places != before
    assert moves <= (300 // 20 + 2 if isinstance(edges, qf.Window) or isinstance(weights, qf.Hybrid) else 5)
    shown = state.tensors["tail_k"].numel() * state.tensors["tail_k"].element_size()
    assert state.tensors["tail_k"].untyped_storage().nbytes() <= max(4 * shown, 64 * 3 * 2 * 6 * 8)


@pytest.mark.parametrize(("edges", "weights"), [GROWING, RING, (qf.Causal(), qf.Softmax(softcap=2.0))], ids=str)
def test_what_a_state_shows_never_changes(edges, weights):
    """A tree of continuations, each from every state so far, in an order that mixes old and new states."""
    _, root = qf.prefill(*qkv(2, 99), edges, weights)
    known: list[tuple[Any, tuple[int, ...]]] = [(root, ())]
    generator = torch.Generator().manual_seed(0)
    for seed in range(60):
        at = int(torch.randint(len(known), (), generator=generator))
        state, path = known[at]
        known.append((qf.step(*qkv(1, seed), edges, weights, state)[1], (*path, seed)))
    limit = 20 if isinstance(edges, qf.Window) else None
    for state, path in known:
        keys = torch.cat([qkv(2, 99)[1], *(qkv(1, seed)[1] for seed in path)], 2)
        keys = keys if limit is None else keys[:, :, -limit:]
        assert torch.equal(state.tensors["tail_k"], keys)


def test_threads_that_go_on_from_one_state():
    _, state = qf.prefill(*qkv(5), *GROWING)
    _, state = qf.step(*qkv(1), *GROWING, state)
    found: dict[int, qf.State] = {}

    def work(seed: int) -> None:
        own = state
        for i in range(30):
            _, own = qf.step(*qkv(1, 100 * seed + i), *GROWING, own)
        found[seed] = own

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, own in found.items():
        new = torch.cat([qkv(1, 100 * seed + i)[2] for i in range(30)], 2)
        assert torch.equal(own.tensors["tail_v"], torch.cat([state.tensors["tail_v"], new], 2))


def test_copies_and_pickles_hold_what_is_shown_and_no_lock():
    _, state = qf.prefill(*qkv(5), *GROWING)
    _, state = qf.step(*qkv(1), *GROWING, state)
    assert isinstance(state.tensors, Placed)
    for twin in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), state.to("cpu"), state.detach()):
        assert all(torch.equal(x, twin.tensors[name]) for name, x in state.tensors.items())
        y, _ = qf.step(*qkv(1, 3), *GROWING, twin)
        assert torch.equal(y, qf.step(*qkv(1, 3), *GROWING, state)[0])


def test_a_graph_that_holds_an_older_view_stays_valid():
    _, state = qf.prefill(*qkv(5), *GROWING)
    _, state = qf.step(*qkv(1), *GROWING, state)
    q, k, v = qkv(1, 3)
    q.requires_grad_()
    y, after = qf.step(q, k, v, *GROWING, state)
    expected = torch.autograd.grad(y.square().sum(), q, retain_graph=True)[0]
    qf.step(*qkv(1, 4), *GROWING, after)
    assert torch.equal(torch.autograd.grad(y.square().sum(), q)[0], expected)


@every_quick
def test_gradients_through_steps(edges, weights):
    leaves = [x.requires_grad_() for x in qkv(6)]
    whole = qf.attend(*leaves, edges, weights, form="dense")
    _, state = qf.prefill(*(x[:, :, :2] for x in leaves), edges, weights)
    parts = []
    for i in range(2, 6):
        y, state = qf.step(*(x[:, :, i : i + 1] for x in leaves), edges, weights, state)
        parts.append(y)
    slopes = torch.autograd.grad(torch.cat(parts, 2).square().sum(), leaves)
    for a, b in zip(slopes, torch.autograd.grad(whole[:, :, 2:].square().sum(), leaves), strict=True):
        assert (a - b).abs().max() < 1e-12 * max(1.0, float(b.abs().max()))


def test_what_inference_mode_has_made_goes_on_outside_of_it():
    with torch.inference_mode():
        _, state = qf.prefill(*qkv(5), *GROWING)
        _, state = qf.step(*qkv(1), *GROWING, state)
        expected, _ = qf.step(*qkv(1, 3), *GROWING, state)
    y, after = qf.step(*qkv(1, 3), *GROWING, state)
    assert torch.equal(y, expected)
    with torch.inference_mode():
        qf.step(*qkv(1, 4), *GROWING, after)


@pytest.mark.skipif(not is_dynamo_supported(), reason="torch.compile does not run here")
@pytest.mark.parametrize(("edges", "weights"), [QUICK[0], QUICK[1], RING], ids=str)
def test_a_compiled_step_is_one_graph_that_is_compiled_once(edges, weights):
    torch._dynamo.reset()

    def once(q: Tensor, k: Tensor, v: Tensor, state: qf.State) -> Any:
        return qf.step(q, k, v, edges, weights, state)

    compiled = torch.compile(once, fullgraph=True, backend="eager")
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        _, state = qf.prefill(*qkv(30), edges, weights)
        plain = state
        for seed in range(50):
            y, state = compiled(*qkv(1, seed), state)
            expected, plain = qf.step(*qkv(1, seed), edges, weights, plain)
            assert (y - expected).abs().max() < 1e-12
    torch._dynamo.reset()
