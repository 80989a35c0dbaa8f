"""States on disk: bit-identical continuation in another process, whole files or none, and what is refused."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import quadform as qf
from quadform.forms import _state_file

MIXERS: list[tuple[Any, Any]] = [
    (qf.Causal(), qf.Kernel("elu1")),
    (qf.Causal(), qf.Softmax()),
    (qf.Window(3, sinks=1), qf.Softmax()),
    (qf.Causal(), qf.Hybrid(qf.Window(2, sinks=1), qf.Kernel("exp"))),
    (qf.Window(2), qf.Uniform("mean")),
]
every_mixer = pytest.mark.parametrize(("edges", "weights"), MIXERS, ids=str)

CONTINUE = """
import sys, torch, quadform as qf
torch.set_num_threads(1)
state = qf.State.load(sys.argv[1])
weights, _, edges = state.mixer.partition(" on ")
edges, weights = qf.parse(edges), qf.parse(weights)
q, k, v = torch.load(sys.argv[2])
for i in range(q.shape[2]):
    y, state = qf.step(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1], edges, weights, state)
torch.save(y, sys.argv[3])
"""


def qkv(n: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, heads, n, 4, generator=generator) for heads in (4, 2, 2)]


def state_of(edges: Any, weights: Any, n: int = 7) -> qf.State:
    """After a call of several tokens and a step, so that a growing cache has its own buffer."""
    _, state = qf.prefill(*qkv(n), edges, weights)
    return qf.step(*qkv(1, 1), edges, weights, state)[1]


def same(a: qf.State, b: qf.State) -> bool:
    if (a.kind, a.mixer, set(a.tensors)) != (b.kind, b.mixer, set(b.tensors)) or not torch.equal(a.length, b.length):
        return False
    return all(torch.equal(x, b.tensors[name]) and x.dtype == b.tensors[name].dtype for name, x in a.tensors.items())


@every_mixer
def test_another_process_continues_with_the_same_bits(edges, weights, tmp_path):
    state, more = state_of(edges, weights), qkv(5, 2)
    state.save(tmp_path / "state")
    torch.save(more, tmp_path / "more")
    arguments = [str(tmp_path / name) for name in ("state", "more", "y")]
    subprocess.run([sys.executable, "-c", CONTINUE, *arguments], check=True)
    for i in range(5):
        y, state = qf.step(*(x[:, :, i : i + 1] for x in more), edges, weights, state)
    assert torch.equal(torch.load(tmp_path / "y"), y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_values_and_dtypes_come_back(dtype, tmp_path):
    for edges, weights in MIXERS:
        _, state = qf.prefill(*(x.to(dtype) for x in qkv(5)), edges, weights)
        state.save(tmp_path / "state")
        assert same(qf.State.load(tmp_path / "state"), state)


def test_the_states_of_a_model_are_one_file(tmp_path):
    parts = [state_of(edges, weights) for edges, weights in MIXERS]
    layers: list[Any] = [parts[0], qf.States((parts[1], parts[2])), qf.States((parts[3],))]
    qf.save_states(tmp_path / "model", layers)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    first, second, third = qf.load_states(tmp_path / "model")
    assert isinstance(first, qf.State) and isinstance(second, qf.States) and isinstance(third, qf.States)
    assert same(first, parts[0])
    assert all(same(a, b) for a, b in zip((*second.parts, *third.parts), parts[1:4], strict=True))
    assert second.nbytes == parts[1].nbytes + parts[2].nbytes
    with pytest.raises(qf.QuadformError, match="one state; `load_states` reads several, got those of 3 layers"):
        qf.State.load(tmp_path / "model")
    with pytest.raises(qf.QuadformError, match="one layer's states"):
        qf.States.load(tmp_path / "model")
    layers[1].save(tmp_path / "layer")
    assert same(qf.States.load(tmp_path / "layer").parts[1], parts[2])
    qf.save_states(tmp_path / "none", [])
    assert qf.load_states(tmp_path / "none") == []


def test_the_reference(tmp_path):
    block = inspect.cleandoc(qf.save_states.__doc__ or "").partition("Reference")[2].split("\n", 2)[2]
    states = [state_of(edges, weights) for edges, weights in MIXERS]
    exec(textwrap.dedent(block), {"states": states, "path": tmp_path / "a", "json": json, "save_file": save_file})
    qf.save_states(tmp_path / "b", states)
    with safe_open(tmp_path / "a", "pt") as a, safe_open(tmp_path / "b", "pt") as b:
        assert a.metadata() == b.metadata() and set(a.keys()) == set(b.keys())
        assert all(torch.equal(a.get_tensor(name), b.get_tensor(name)) for name in list(a.keys()))


@pytest.mark.parametrize("moment", ["save_file", "_flush"])
def test_a_process_killed_while_it_saves_leaves_the_old_file(moment, tmp_path):
    old = state_of(*MIXERS[0])
    old.save(tmp_path / "state")
    before = (tmp_path / "state").read_bytes()
    code = f"""
import os, signal, sys, torch, quadform as qf
from quadform.forms import _state_file
inner = _state_file.{moment}
def killed(*arguments):
    inner(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
_state_file.{moment} = killed
x = torch.ones(1, 1, 3, 2)
qf.prefill(x, x, x, qf.Causal(), qf.Softmax())[1].save(sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "state")])
    assert done.returncode != 0
    assert (tmp_path / "state").read_bytes() == before
    assert same(qf.State.load(tmp_path / "state"), old)


def test_a_save_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    old = state_of(*MIXERS[0])
    old.save(tmp_path / "state")

    def fail(path: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(_state_file, "_flush", fail)
    with pytest.raises(qf.QuadformError, match="state cannot be written: no space left"):
        state_of(*MIXERS[1]).save(tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert same(qf.State.load(tmp_path / "state"), old)
    with pytest.raises(qf.QuadformError, match="cannot be written"):
        old.save(tmp_path / "missing" / "state")


def written(path: Path, state: qf.State, tensors: dict[str, Tensor] | None = None, **metadata: str) -> Path:
    """A file of that state with other entries and metadata."""
    own, about = state.to_tensors()
    entries = {f"0.{name}": x for name, x in own.items()} | (tensors or {})
    entries = {name: x.contiguous() for name, x in entries.items() if x is not None}
    save_file(entries, path, {"schema": _state_file.SCHEMA, "states": json.dumps([about])} | metadata)
    return path


NAN = torch.tensor(torch.nan)
DAMAGE: list[tuple[int, dict[str, Any], dict[str, str], str]] = [
    (0, {}, {"schema": "quadform/state/9"}, "its schema is 'quadform/state/9'"),
    (0, {}, {"more": "x"}, r"unknown metadata \['more'\]"),
    (0, {}, {"states": "{"}, "Expecting property name"),
    (0, {}, {"states": "{}"}, "no list of descriptions"),
    (0, {}, {"states": '[{"kind": "kernel"}]'}, "no list of descriptions"),
    (0, {}, {"states": '[{"kind": "lstm", "mixer": "x"}]'}, "expected one of 'kernel'"),
    (0, {}, {"states": "[" * 5000 + "]" * 5000}, "recursion|no list"),
    (0, {"0.more": torch.ones(2)}, {}, "expected entries of a kernel state"),
    (0, {"1.S": torch.ones(2)}, {}, r"unknown entries \['1.S'\]"),
    (0, {"0.tail_v": torch.ones(2, 2, 3, 4)}, {}, "expected entries of a kernel state"),
    (0, {"0.z": None}, {}, "expected an entry 'z'"),
    (0, {"0.z": torch.ones(2, 2, 9)}, {}, "beside z"),
    (0, {"0.S": torch.ones(2, 2, 4)}, {}, "beside z"),
    (0, {"0.S": torch.ones(3, 2, 4, 4)}, {}, "a batch of 2 rows"),
    (0, {"0.S": torch.ones(2, 4, 4, 4).bfloat16(), "0.z": torch.ones(2, 4, 4).bfloat16()}, {}, "float32 or float64"),
    (0, {"0.z": torch.full((2, 2, 4), torch.nan)}, {}, "16 that are not"),
    (0, {"0.z": torch.full((2, 2, 4), torch.inf)}, {}, "expected finite numbers"),
    (0, {"0.z": torch.ones(0, 2, 1 << 41)}, {}, "which no state has"),
    (0, {"0.length": torch.tensor([-1, 3])}, {}, "numbers from 0"),
    (0, {"0.length": torch.tensor([1 << 60, 3])}, {}, "numbers from 0"),
    (0, {"0.length": torch.ones(2)}, {}, "an int64 tensor"),
    (1, {"0.tail_v": torch.ones(2, 2, 9, 4)}, {}, "floating-point numbers"),
    (1, {"0.tail_k": torch.ones(2, 3, 8, 4)}, {}, "floating-point numbers"),
    (1, {"0.tail_valid": torch.ones(2, 8)}, {}, "a bool tensor"),
    (1, {"0.tail_more": torch.ones(2, 8)}, {}, "expected entries of a tail state"),
    (2, {"0.sink_valid": None}, {}, "'sink_v' and 'sink_valid'"),
]


@pytest.mark.parametrize(("which", "tensors", "metadata", "message"), DAMAGE, ids=[case[-1][:30] for case in DAMAGE])
def test_what_is_no_state_is_refused(which, tensors, metadata, message, tmp_path):
    path = written(tmp_path / "state", state_of(*MIXERS[which]), tensors, **metadata)
    with pytest.raises(qf.QuadformError, match=message) as caught:
        qf.State.load(path)
    assert "state is no file of states that can be read" in str(caught.value)


def test_files_that_are_no_safetensors_are_refused(tmp_path):
    path = tmp_path / "state"
    state_of(*MIXERS[1]).save(path)
    whole = path.read_bytes()
    for content in (b"", b"PK", whole[:-1], whole[:20], whole + b"0", b"\xff" * 8 + whole[8:]):
        path.write_bytes(content)
        with pytest.raises(qf.QuadformError, match="no file of states"):
            qf.load_states(path)
    path.write_bytes(whole)
    with pytest.raises(qf.QuadformError, match="more than the 10 that are allowed"):
        qf.load_states(path, largest=10)
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(qf.QuadformError, match="no file of states"):
            qf.load_states(missing)


def test_a_state_that_could_not_be_read_again_is_not_written(tmp_path):
    q, k, v = qkv(3)
    v[0, 0, 1, 0] = torch.nan
    for edges, weights in MIXERS[:2]:
        _, state = qf.prefill(q, k, v, edges, weights)
        with pytest.raises(qf.ArgumentError, match="expected finite numbers"):
            state.save(tmp_path / "state")
        with pytest.raises(qf.ArgumentError, match="expected finite numbers"):
            qf.save_states(tmp_path / "state", [state])
    assert not list(tmp_path.iterdir())


def test_a_gate_that_is_shut_may_be_saved(tmp_path):
    weights = qf.Kernel("elu1", decay="scalar")
    gates = torch.zeros(2, 4, 3)
    gates[:, :, 1] = -torch.inf
    _, state = qf.prefill(*qkv(3), qf.Window(2), weights, tensors={"log_decay": gates})
    state.save(tmp_path / "state")
    assert same(qf.State.load(tmp_path / "state"), state)
