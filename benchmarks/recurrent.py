"""Times the causal kernel (linear attention) against its peers and the machine's limit, and prints a Markdown section.

    python benchmarks/recurrent.py [--rounds 5] [--threads 2] [--sizes 512 2048] [--native FOLDER]

B = 1, 8 heads, float32, elu(x) + 1. Two questions. "Kernel": features given, no normaliser. "Whole": feature map, causal
sums and normaliser, from q, k and v in the layout that each library takes. Each round measures every candidate once, and
begins with another one, so that a drift of the machine's speed reaches all of them; figures are medians (four times the
rounds up to N = 2048; one round for causal SDPA at 32768, and for two peers above 2048). Peers that are not installed are left
out. `--native` is a folder with idiap's `causal_product_cpu` built with -O3 -march=native. Peak memory is the growth of
the resident set in a process of its own, which runs the operation once.

The limit is max(FLOPs / GEMM rate, bytes / copy bandwidth) of what the operation needs: 4 N D^2 FLOPs a head forward and
14 N D^2 with backward; 4 and 11 tensors moved.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.util
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import quadform as qf
from quadform.forms.recurrent._kernel import causal_prefix, empty_sums

HEADS = 8
Run = Callable[[Tensor, Tensor, Tensor], Tensor]


def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal_prefix(q, k, v, None, 0, empty_sums(k, v), False)[0]


def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    y: Tensor = qf.attend(q, k, v, qf.Causal(), qf.Kernel("elu1"), form="recurrent")
    return y


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def naive_chunk() -> Run:
    """flash-linear-attention's reference in plain PyTorch, loaded by path: the package itself needs a GPU's compiler."""
    found = importlib.util.find_spec("fla")
    if found is None or not found.submodule_search_locations:
        raise ImportError("fla")
    path = pathlib.Path(found.submodule_search_locations[0]) / "ops" / "linear_attn" / "naive.py"
    file = importlib.util.spec_from_file_location("naive", path)
    if not path.exists() or file is None or file.loader is None:
        raise ImportError("fla.ops")
    module = importlib.util.module_from_spec(file)
    file.loader.exec_module(module)
    return lambda q, k, v: module.naive_chunk_linear_attn(q, k, v, scale=1.0)


def candidates(dim: int, native: str | None) -> dict[tuple[str, str], Run]:
    """(question, name) -> the operation, on q, k and v (B, H, N, D)."""
    found: dict[tuple[str, str], Run] = {
        ("kernel", "quadform"): kernel,
        ("whole", "quadform"): whole,
        ("whole", "SDPA causal"): softmax,
    }
    with contextlib.suppress(ImportError):
        found["kernel", "fla naive_chunk"] = naive_chunk()
    with contextlib.suppress(ImportError):
        found |= _idiap(dim, native)
    with contextlib.suppress(ImportError):
        peer = importlib.import_module("linear_attention_transformer.linear_attention_transformer")
        found["whole", "linear-attention-transformer"] = lambda q, k, v: peer.causal_linear_attn(
            q, k, v, bucket_size=64
        )
    with contextlib.suppress(ImportError):
        performer = importlib.import_module("performer_pytorch.performer_pytorch")
        found["whole", "performer-pytorch"] = lambda q, k, v: performer.causal_linear_attention_noncuda(
            F.elu(q) + 1, F.elu(k) + 1, v
        )
    return found


def _idiap(dim: int, native: str | None) -> dict[tuple[str, str], Run]:
    product = importlib.import_module("fast_transformers.causal_product")
    linear = importlib.import_module("fast_transformers.attention.causal_linear_attention")
    masking = importlib.import_module("fast_transformers.masking")
    attention = linear.CausalLinearAttention(dim)

    def operation(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[1]
        lengths = masking.LengthMask(torch.full((1,), n), max_len=n)
        y: Tensor = attention(q, k, v, masking.TriangularCausalMask(n), lengths, lengths)
        return y

    def built(library: Any, run: Run) -> Run:
        def call(*x: Tensor) -> Tensor:
            product.CausalDotProduct.dot["cpu"] = library.causal_dot_product
            product.CausalDotProduct.dot_backward["cpu"] = library.causal_dot_backward
            return run(*x)

        return call

    builds = {"idiap": importlib.import_module("fast_transformers.causal_product.causal_product_cpu")}
    if native:
        sys.path.insert(0, native)
        builds["idiap, native flags"] = importlib.import_module("causal_product_cpu")
    out: dict[tuple[str, str], Run] = {}
    for name, library in builds.items():
        out["kernel", name] = built(library, product.causal_dot_product)
        out["whole", name] = built(library, operation)
    return out


def tensors(question: str, name: str, length: int, dim: int) -> tuple[list[Tensor], Tensor]:
    """Inputs in the layout that the peer takes, and the gradient of its output."""
    q, k, v, grad = (torch.randn(1, HEADS, length, dim) for _ in range(4))
    if question == "kernel":
        q, k = (F.elu(x) + 1 for x in (q, k))
    if name.startswith("fla") or (question == "whole" and name.startswith("idiap")):
        q, k, v, grad = (x.transpose(1, 2).contiguous() for x in (q, k, v, grad))
    return [x.requires_grad_() for x in (q, k, v)], grad


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def machine_rates() -> tuple[float, float]:
    """(FLOP/s of a 1024^3 float32 matrix product, bytes/s of a 64 MB copy, counted read and write)."""
    a, x = torch.randn(1024, 1024), torch.randn(1 << 24)
    y = torch.empty_like(x)
    gemm = min(seconds(lambda: a @ a) for _ in range(3))
    return 2 * 1024**3 / gemm, 2 * 4 * x.numel() / min(seconds(lambda: y.copy_(x)) for _ in range(3))


def run_once(run: Run, x: list[Tensor], grad: Tensor, backward: bool) -> None:
    if not backward:
        with torch.no_grad():
            run(*x)
        return
    torch.autograd.grad(run(*x), x, grad)


def measure(length: int, dim: int, options: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """(question, name) -> milliseconds forward, forward + backward; and the limits under ("limit", "")."""
    work = candidates(dim, options.native)
    data = {key: tensors(*key, length, dim) for key in work}
    times: dict[tuple[str, str], list[list[float]]] = {key: [[], []] for key in (*work, ("limit", ""))}
    for key, run in work.items():
        run_once(run, *data[key], True) if length <= 2048 else None
    for n in range(options.rounds * (4 if length <= 2048 else 1)):
        gemm, copy = machine_rates()
        moved = 4.0 * HEADS * length * dim
        for i, (flops, count) in enumerate(((4, 4), (14, 11))):
            times["limit", ""][i].append(1e3 * max(flops * HEADS * length * dim**2 / gemm, count * moved / copy))
        keys = list(work)
        for key in keys[n % len(keys) :] + keys[: n % len(keys)]:
            if key[1] in SLOW and (length > 8192 or (n >= 1 and length > 2048)):
                continue
            if key[1] == "SDPA causal" and n >= 1 and length > 8192:
                continue
            for i in range(2):
                start = time.perf_counter()
                run_once(work[key], *data[key], bool(i))
                times[key][i].append(1e3 * (time.perf_counter() - start))
    return {key: [statistics.median(x) if x else float("nan") for x in both] for key, both in times.items()}


SLOW = ("linear-attention-transformer", "performer-pytorch")


def peak(question: str, name: str, length: int, dim: int, options: argparse.Namespace, backward: bool) -> float:
    """MiB that one run adds to the resident set, in a fresh process."""
    command = [sys.executable, __file__, "--peak", question, name, str(length), str(dim), str(int(backward))]
    command += ["--threads", str(options.threads)] + (["--native", options.native] if options.native else [])
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return float(found.stdout.split()[-1])


def peak_here(question: str, name: str, length: int, dim: int, backward: bool, native: str | None) -> float:
    run = candidates(dim, native)[question, name]
    run_once(run, *tensors(question, name, 128, dim), True)
    x, grad = tensors(question, name, length, dim)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again at what is resident now
    before = high_water()
    run_once(run, x, grad, backward)
    return high_water() - before


def high_water() -> float:
    """The largest resident set of this process since it was last reset, in MiB (Linux)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def report(options: argparse.Namespace) -> None:
    day = datetime.datetime.now(tz=datetime.timezone.utc).date()
    gemm, copy = machine_rates()
    print(
        f"{day}, {platform.machine()}, {options.threads} thread(s), torch {torch.__version__}, float32, batch 1, 8 heads,"
    )
    print(f"medians of {options.rounds} interleaved rounds, milliseconds, forward / forward + backward. ", end="")
    print(f"GEMM {gemm / 1e9:.0f} GFLOP/s, copy {copy / 1e9:.0f} GB/s.\n")
    for dim in options.dims:
        results = {n: measure(n, dim, options) for n in options.sizes}
        print(f"| D = {dim} | " + " | ".join(f"N = {n}" for n in options.sizes) + " |")
        print("|---" * (len(options.sizes) + 1) + "|")
        for key in results[options.sizes[0]]:
            cells = [" / ".join("-" if t != t else f"{t:.1f}" for t in results[n][key]) for n in options.sizes]
            print(f"| {' '.join(key).strip()} | " + " | ".join(cells) + " |", flush=True)
        print()
    if options.memory:
        print("| peak MiB, D = 64 | " + " | ".join(f"N = {n}" for n in options.memory) + " |")
        print("|---" * (len(options.memory) + 1) + "|")
        for key in candidates(64, options.native):
            if key[1] in SLOW or "native" in key[1]:
                continue
            lengths = [n for n in options.memory if key[1] != "SDPA causal" or n <= 8192]
            pairs = [[peak(*key, n, 64, options, b) for b in (False, True)] for n in lengths]
            cells = [f"{a:.0f} / {b:.0f}" for a, b in pairs] + ["-"] * (len(options.memory) - len(pairs))
            print(f"| {' '.join(key)} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 32])
    parser.add_argument("--memory", type=int, nargs="*", default=[8192, 32768])
    parser.add_argument("--native")
    parser.add_argument("--peak", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.peak:
        question, name, length, dim, backward = options.peak
        print(peak_here(question, name, int(length), int(dim), backward == "1", options.native))
        return
    report(options)


if __name__ == "__main__":
    main()
