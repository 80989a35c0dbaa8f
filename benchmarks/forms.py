"""Times the forms of some mixers against SDPA and against the machine's limit, interleaved, and prints a Markdown table.

    python benchmarks/forms.py [--rounds 7] [--threads 2] > docs/benchmarks.md

Each round measures, in turn: the GEMM rate, the copy bandwidth, SDPA (the peer, causal), and every accepting form, so that a
drift of the machine's speed reaches all of them. Figures are medians. The limit is max(FLOPs / GEMM rate, bytes / copy
bandwidth) of the arithmetic that the mixer needs, whatever the form.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import quadform as qf

HEADS, DIM = 8, 64


@dataclass(frozen=True)
class Work:
    """A mixer at a length, and how many pairs of tokens it needs."""

    edges: qf.Edges
    weights: qf.Weights
    length: int
    flops: float
    tensors: dict[str, Tensor]


def works() -> list[Work]:
    """The measured mixers."""
    out = []
    for n in (1024, 4096):
        pairs = 4.0 * HEADS * DIM
        out.append(Work(qf.Causal(), qf.Softmax(), n, pairs * n * n / 2, {}))
        out.append(Work(qf.Window(255), qf.Softmax(), n, pairs * n * 256, {}))
        out.append(Work(qf.Window(63, sinks=4), qf.Softmax(), n, pairs * n * 68, {}))
        out.append(Work(qf.Causal(), qf.Kernel("elu1"), n, 4.0 * HEADS * DIM * DIM * n, {}))
        out.append(Work(qf.Stencil(31), qf.Taps(), n, 2.0 * HEADS * DIM * n * 31, {"taps": torch.randn(HEADS, 31)}))
        graph = qf.Graph(torch.randint(0, n, (2, 16 * n)), n)
        out.append(Work(graph, qf.Softmax(), n, pairs * 16 * n, {}))
    return out


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def machine_rates() -> tuple[float, float]:
    """(FLOP/s of a 1024^3 float32 matrix product, bytes/s of a 64 MB copy, counted read and write)."""
    a = torch.randn(1024, 1024)
    x = torch.randn(1 << 24)
    y = torch.empty_like(x)
    return 2 * 1024**3 / min(seconds(lambda: a @ a) for _ in range(3)), 2 * 4 * x.numel() / seconds(lambda: y.copy_(x))


def candidates(work: Work, backward: bool) -> dict[str, Callable[[], object]]:
    """The peer and every accepting form, each as one call."""
    q, k, v = (torch.randn(1, HEADS, work.length, DIM, requires_grad=backward) for _ in range(3))

    def whole(y: Tensor) -> object:
        return torch.autograd.grad(y.sum(), (q, k, v), allow_unused=True) if backward else y

    out: dict[str, Callable[[], object]] = {
        "SDPA causal": lambda: whole(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    }
    for form in qf.explain(q, k, v, work.edges, work.weights, tensors=work.tensors).costs:
        out[form] = lambda form=form: whole(  # type: ignore[misc]
            qf.attend(q, k, v, work.edges, work.weights, tensors=work.tensors, form=form)
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print("# Benchmarks\n")
    print(
        f"{datetime.date.today()}, {platform.machine()}, {options.threads} threads, torch {torch.__version__}, float32,"
    )
    print(f"batch 1, {HEADS} heads of dimension {DIM}, medians of {options.rounds} interleaved rounds, milliseconds.")
    print(
        "`python benchmarks/forms.py` makes this page. The limit is max(FLOPs / GEMM rate, bytes / copy bandwidth) of the"
    )
    print("arithmetic that the mixer needs; the column SDPA is causal softmax attention over all tokens.\n")
    print("| mixer | N | pass | limit | SDPA causal | dense | convolution | graph | recurrent | auto takes |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for work in works():
        for backward in (False, True):
            measure(work, backward, options.rounds)


def measure(work: Work, backward: bool, rounds: int) -> None:
    """One row of the table."""
    runs = candidates(work, backward)
    times: dict[str, list[float]] = {name: [] for name in runs}
    rates: list[tuple[float, float]] = []
    for run in runs.values():
        run()
    for _ in range(rounds):
        rates.append(machine_rates())
        for name, run in runs.items():
            times[name].append(seconds(run))
    gemm, copy = (statistics.median(r) for r in zip(*rates, strict=True))
    passes = 3.5 if backward else 1.0
    limit = max(work.flops * passes / gemm, 4 * 4.0 * HEADS * DIM * work.length * (2 if backward else 1) / copy)
    shown = {name: f"{statistics.median(t) * 1e3:.1f}" for name, t in times.items()}
    q = torch.empty(1, HEADS, work.length, DIM, device="meta")
    named = {name: x.to("meta") for name, x in work.tensors.items()}
    chosen = qf.explain(q, q, q, work.edges, work.weights, tensors=named).chosen
    cells = [shown.get(name, "-") for name in ("SDPA causal", "dense", "convolution", "graph", "recurrent")]
    label = str(work.edges) if not isinstance(work.edges, qf.Graph) else "Graph, 16 edges a node"
    step = "forward + backward" if backward else "forward"
    print(
        f"| {work.weights} on {label} | {work.length} | {step} | {limit * 1e3:.1f} | {' | '.join(cells)} | {chosen} |"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
