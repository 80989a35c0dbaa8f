"""The forms of a layer as they are run, and what they are measured to cost."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
import torch
import torch.nn.functional as F

from quadform.forms import machine
from quadform.inspect import _costs, _mixers
from quadform.inspect._costs import OWN, Costs, _Call, take_turns
from quadform.inspect._grid import Grid
from quadform.inspect._mixers import Mixer, Shape
from quadform.inspect._report import Timing
from quadform.inspect.candidates import CANDIDATES


def shape(n=24, *, causal=False, heads=4, kv_heads=4, dim=8, grid=None, keys=None):
    return Shape(
        heads, kv_heads, n, keys or n, dim, dim, causal, keys is not None, grid or Grid((keys or n,)), torch.float32
    )


LINE, PAST, IMAGE = shape(), shape(causal=True, kv_heads=2), shape(21, grid=Grid((4, 5), 1))
CROSS = shape(6, keys=17)
PLAIN_IMAGE = shape(20, grid=Grid((4, 5)))
SHAPES = {"line": LINE, "past": PAST, "image": IMAGE, "plain image": PLAIN_IMAGE, "cross": CROSS}


def run(mixer: Mixer | None, at: Shape):
    """(q, k, v, y) of the very call that is timed, keys and values repeated for each query head."""
    assert mixer is not None
    inputs: dict[Shape, _costs.Inputs] = {}
    timed = _Call(mixer, at).prepared(False, inputs)
    assert timed is not None
    ((q, k, v),) = inputs.values()
    y = timed()
    assert isinstance(y, torch.Tensor) and y.shape == (*q.shape[:3], v.shape[-1]) and y.isfinite().all()
    groups = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), y


def masked(q, k, v, keep):
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ v


def close(y, expected) -> bool:
    return bool((y - expected).abs().max() <= 2e-5 * expected.abs().max())


def past(at: Shape):
    """(n, m): the pairs that a layer allows."""
    allowed = torch.ones(at.queries, at.keys, dtype=torch.bool)
    return allowed.tril() if at.causal else allowed


@pytest.mark.parametrize("name", SHAPES)
def test_the_layers_own_attention(name):
    at = SHAPES[name]
    q, k, v, y = run(_mixers.attention(at), at)
    assert close(y, masked(q, k, v, past(at)))
    inputs: dict[Shape, _costs.Inputs] = {}
    own = _Call(_mixers.attention(at), at).prepared(True, inputs)
    assert own is not None and close(own(), y)


@pytest.mark.parametrize("name", SHAPES)
def test_mean(name):
    at = SHAPES[name]
    _, _, v, y = run(_mixers.mean(at), at)
    allowed = past(at).float()
    assert close(y, allowed / allowed.sum(-1, keepdim=True) @ v)


def near_on_a_line(at: Shape, size: int, sinks: bool):
    d = torch.arange(at.keys) - torch.arange(at.queries)[:, None]
    last = at.keys - 1
    if at.causal:
        return (d <= 0) & ((d > -size) | (sinks & (torch.arange(at.keys) < 4)))
    near = d.abs() <= size // 2
    if sinks:
        near[:, [0, last]] = near[[0, last]] = True
    return near


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", ["line", "past"])
def test_window_on_a_line(name, sinks):
    at = SHAPES[name]
    q, k, v, y = run(_mixers.window(at, 6, 3, sinks), at)
    assert close(y, masked(q, k, v, near_on_a_line(at, 6, sinks)))


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("special", [0, 1, 2])
def test_window_on_an_image(special, sinks, monkeypatch):
    monkeypatch.setattr(_mixers, "PAIRS", 50)  # so that the pairs are listed in several pieces
    at = shape(20 + special, grid=Grid((4, 5), special))
    q, k, v, y = run(_mixers.window(at, 6, 3, sinks), at)
    keep = torch.zeros(at.queries, at.keys, dtype=torch.bool)
    for i in range(20):
        for j in range(20):
            keep[special + i, special + j] = abs(i // 5 - j // 5) <= 1 and abs(i % 5 - j % 5) <= 1
    if sinks:
        sink = list(range(special)) or [0, 19]
        keep[:, sink] = keep[sink] = True
    assert close(y, masked(q, k, v, keep))


def test_a_causal_window_on_an_image_never_looks_ahead():
    at = shape(20, grid=Grid((4, 5)), causal=True)
    mixer = _mixers.window(at, 6, 3, True)
    assert mixer is not None
    sender, receiver = mixer.edges.edge_index  # type: ignore[attr-defined]
    assert bool((sender <= receiver).all()) and len(sender) > 20


@pytest.mark.parametrize("name", SHAPES)
def test_graph(name, monkeypatch):
    monkeypatch.setattr(_mixers, "PAIRS", 50)
    at = SHAPES[name]
    mixer = _mixers.graph(at, 5)
    q, k, v, y = run(mixer, at)
    assert mixer is not None
    sender, receiver = mixer.edges.edge_index  # type: ignore[attr-defined]
    keep = torch.zeros(at.queries, at.keys, dtype=torch.bool)
    keep[receiver, sender] = True
    assert keep.sum() == len(sender)
    assert keep.sum(-1).tolist() == past(at).sum(-1).clamp(max=5).tolist()
    assert not bool((keep & ~past(at)).any())
    assert close(y, masked(q, k, v, keep))


@pytest.mark.parametrize("width", [4, 5])
@pytest.mark.parametrize("name", ["line", "past", "image", "plain image"])
def test_convolution(name, width):
    at = SHAPES[name]
    mixer = _mixers.convolution(at, width, 3)
    _, _, v, y = run(mixer, at)
    assert mixer is not None
    taps = mixer.tensors(at)["taps"]
    b, heads, n, e = v.shape
    if at.grid.dims == 1:
        left = width - 1 if at.causal else width // 2
        padded = F.pad(v.movedim(2, 3).reshape(b, heads * e, n), (left, width - 1 - left))
        kernel = taps.repeat_interleave(e, 0)[:, None]
        expected = F.conv1d(padded, kernel, groups=heads * e).view(b, heads, e, n).movedim(3, 2)
    else:
        image = v.movedim(2, 3).reshape(b, heads * e, *at.grid.sizes)
        kernel = taps.view(heads, 1, 3, 3).repeat_interleave(e, 0)
        expected = F.conv2d(image, kernel, padding=1, groups=heads * e).view(b, heads, e, n).movedim(3, 2)
    assert close(y, expected)


@pytest.mark.parametrize("name", SHAPES)
def test_taylor(name):
    at = SHAPES[name]
    q, k, v, y = run(_mixers.taylor(at), at)
    s = q @ k.mT * at.head_dim**-0.5
    weights = (1 + s + s * s / 2) * past(at)
    assert close(y, weights / weights.sum(-1, keepdim=True) @ v)


@pytest.mark.parametrize("name", SHAPES)
def test_top_k(name):
    at = SHAPES[name]
    q, k, v, y = run(_mixers.top_k(at, 5), at)
    scores = (q @ k.mT).masked_fill(~past(at), -torch.inf)
    least = scores.topk(5, -1).values[..., -1:]
    assert close(y, masked(q, k, v, (scores >= least) & past(at)))


@pytest.mark.parametrize("name", ["line", "past"])
def test_hybrid(name):
    at = SHAPES[name]
    q, k, v, y = run(_mixers.hybrid(at, 6, 3), at)
    near = (q @ k.mT * at.head_dim**-0.5).exp()
    far = (q[..., :1] + k[..., :1].mT).exp()
    weights = torch.where(near_on_a_line(at, 6, True), near, far) * past(at)
    assert close(y, weights / weights.sum(-1, keepdim=True) @ v)


@pytest.mark.parametrize("name", ["line", "image"])
def test_nystrom(name):
    at = SHAPES[name]
    q, k, v, y = run(_mixers.nystrom(at, 3), at)
    n, scale = at.keys, at.head_dim**-0.5
    pool = F.adaptive_avg_pool1d(torch.eye(n)[None], 3)[0].T  # (3, n): each node's average
    first, last = ((a @ b.mT * scale).softmax(-1) for a, b in ((q, pool @ k), (pool @ q, k)))
    core = ((pool @ q) @ (pool @ k).mT * scale).softmax(-1)
    assert (y - first @ torch.linalg.pinv(core) @ last @ v).abs().max() < 1e-2 * y.abs().max()


def test_forms_that_a_layer_cannot_have():
    for form in (
        _mixers.window(CROSS, 6, 3, False), _mixers.convolution(CROSS, 5, 3), _mixers.hybrid(CROSS, 6, 3),
        _mixers.nystrom(CROSS, 3), _mixers.nystrom(PAST, 3), _mixers.hybrid(IMAGE, 6, 3),
    ):  # fmt: skip
        assert form is None


@pytest.fixture
def quiet(monkeypatch):
    """A machine that is quiet whatever runs on it; the value counts how often forms took turns."""
    count: list[set[str]] = []

    def turns(runs):
        count.append(set(runs))
        return {name: float(len(name)) for name, run in runs.items() if run() is not None}

    monkeypatch.setattr(_costs, "trouble", lambda: None)
    monkeypatch.setattr(_costs, "crowded", lambda others: None)
    monkeypatch.setattr(_costs, "take_turns", turns)
    return count


@pytest.mark.parametrize("name", SHAPES)
def test_every_candidate_that_can_be_run_is_timed_beside_attention(quiet, name):
    at = SHAPES[name]
    costs = Costs()
    found = costs.layer(at, CANDIDATES)
    runnable = {form.name for form in CANDIDATES if form.mixer(at) is not None}
    assert set(found) == runnable | {OWN} and len(runnable) >= 4
    assert {form: cost.seconds for form, cost in found.items()} == {form: float(len(form)) for form in found}
    assert all(cost.flops > 0 for cost in found.values())
    assert costs.timing() == Timing(machine(), torch.get_num_threads(), None)


def test_a_shape_is_measured_once(quiet):
    costs = Costs()
    first = costs.layer(LINE, CANDIDATES)
    assert costs.layer(dataclasses.replace(LINE), CANDIDATES) == first and len(quiet) == 1
    costs.layer(PAST, CANDIDATES)
    costs.layer(LINE, CANDIDATES[:2])
    assert len(quiet) == 3 and quiet[2] == {OWN, CANDIDATES[0].name, CANDIDATES[1].name}


def test_states_are_those_of_streams(quiet):
    state = {name: cost.state for name, cost in Costs().layer(PAST, CANDIDATES).items()}
    width = 4 * PAST.kv_heads * 2 * PAST.head_dim
    assert state[OWN] == width * PAST.keys
    assert state["window-32"] == width * 31
    assert state["graph-16"] is None
    assert all(cost.state is None for cost in Costs().layer(LINE, CANDIDATES).values())


def test_a_machine_that_is_not_quiet_gives_no_seconds_but_a_sentence(quiet, monkeypatch):
    monkeypatch.setattr(_costs, "trouble", lambda: "other processes keep 1.9 of 2 cores busy")
    costs = Costs()
    found = costs.layer(LINE, CANDIDATES)
    assert all(cost.seconds is None and cost.flops > 0 for cost in found.values()) and not quiet
    assert costs.timing().refusal == "other processes keep 1.9 of 2 cores busy"


def test_a_measurement_that_is_disturbed_three_times_is_given_up(quiet, monkeypatch):
    answers = iter(["busy", None, "busy", "busy", "still busy"])
    monkeypatch.setattr(_costs, "crowded", lambda others: next(answers))
    costs = Costs()
    assert costs.layer(LINE, CANDIDATES)[OWN].seconds is not None and costs.timing().refusal is None
    assert costs.layer(PAST, CANDIDATES)[OWN].seconds is None and costs.timing().refusal == "still busy"
    assert costs.layer(CROSS, CANDIDATES)[OWN].seconds is None and len(quiet) == 5


def test_without_measuring_only_operations_are_counted(quiet):
    costs = Costs(measure=False)
    found = costs.layer(LINE, CANDIDATES)
    assert found[OWN].seconds is None and found[OWN].flops == 4 * 24 * 24 * 4 * 8 and not quiet
    assert costs.timing().refusal == "not asked for"
    json.dumps([dataclasses.asdict(cost) for cost in found.values()])


def test_a_form_that_needs_much_memory_is_timed_on_some_heads(quiet, monkeypatch):
    whole = Costs().layer(LINE, CANDIDATES)["top-16"]
    call = _Call(_mixers.top_k(LINE, 16), LINE)  # type: ignore[arg-type]
    monkeypatch.setattr(_costs, "MEMORY", call._needs() / 3)
    part = Costs().layer(LINE, CANDIDATES)["top-16"]
    assert whole.seconds == 6.0 and part.seconds == 24.0 and part.flops == whole.flops
    monkeypatch.setattr(_costs, "MEMORY", call._needs() / 100)
    assert Costs().layer(LINE, CANDIDATES)["top-16"].seconds is None


def test_an_empty_sequence_has_no_times(quiet):
    found = Costs().layer(shape(0), CANDIDATES)
    assert all(cost.seconds is None for cost in found.values())


def clock(monkeypatch):
    """A clock that only the runs advance."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def run(name, seconds, log):
        def step():
            log.append(name)
            now[0] += seconds

        return step

    return run


def test_forms_take_turns(monkeypatch):
    log: list[str] = []
    run = clock(monkeypatch)
    runs = {name: run(name, seconds, log) for name, seconds in (("a", 0.01), ("b", 0.1), ("c", 0.6), ("d", 2.5))}
    assert take_turns(runs) == pytest.approx({"a": 0.01, "b": 0.1, "c": 0.6, "d": 2.5})
    assert "".join(log[:10]) == "abcdabcabc"
    assert {name: log.count(name) for name in runs} == {"a": 16, "b": 4, "c": 3, "d": 1}
