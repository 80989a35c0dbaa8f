"""quadform explain: what each form of a mixer costs."""

from __future__ import annotations

import json
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from quadform._errors import ArgumentError
from quadform.algebra import Edges, Stencil, Transposed, Weights, parse
from quadform.forms import Explanation, explain as explain_call


def explain(
    edges: Annotated[str, typer.Argument(help="Edges, such as 'Causal()' or 'Window(127, sinks=4)'.")],
    weights: Annotated[str, typer.Argument(help="Weights, such as 'Softmax()' or 'Kernel(\"elu1\")'.")] = "Softmax()",
    length: Annotated[int, typer.Option("--length", "-n", min=0, help="Number of tokens.")] = 2048,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key-value heads; as many as heads unless given.")] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Dimension of a head.")] = 64,
    dtype: Annotated[str, typer.Option(help="float64, float32, float16 or bfloat16.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print each form's FLOPs, memory traffic, stream state and predicted time for a mixer, or why it refuses."""
    if dtype not in ("float64", "float32", "float16", "bfloat16"):
        raise ArgumentError("--dtype", "float64, float32, float16 or bfloat16", repr(dtype))
    described = _describe(edges, weights, length, batch, heads, kv_heads or heads, head_dim, getattr(torch, dtype))
    if as_json:
        print(json.dumps(described.to_dict(), indent=2))
    else:
        Console().print(_table(described))


def _describe(
    edges_text: str, weights_text: str, n: int, batch: int, heads: int, kv_heads: int, d: int, dtype: torch.dtype
) -> Explanation:
    edges, weights = parse(edges_text), parse(weights_text)
    if not isinstance(edges, Edges):
        raise ArgumentError("edges", "edges such as Causal()", repr(edges_text))
    if not isinstance(weights, Weights):
        raise ArgumentError("weights", "weights such as Softmax()", repr(weights_text))
    inner = edges.inner if isinstance(edges, Transposed) else edges
    if isinstance(inner, Stencil) and inner.dims > 1:
        raise ArgumentError("edges", "a one-dimensional stencil, since --length gives one size", edges_text)
    queries = edges.count_queries(n, None)
    q = torch.empty(batch, heads, queries, d, dtype=dtype, device="meta")
    k = torch.empty(batch, kv_heads, n, d, dtype=dtype, device="meta")
    sizes = {"B": batch, "H": heads, "Q": queries, "K": n, "D": d, "N": n, "G": 1, "M": d}
    if isinstance(inner, Stencil):
        sizes["T"] = inner.taps
    tensors = {
        spec.name: torch.empty([int(x) if x.isdigit() else sizes[x] for x in spec.dims], dtype=dtype, device="meta")
        for spec in weights.specs()
        if not spec.optional
    }
    return explain_call(q, k, k, edges, weights, tensors=tensors)


def _table(described: Explanation) -> Table:
    table = Table(title=f"{described.weights} on {described.edges}")
    for name, justify in (
        ("form", "left"),
        ("GFLOP", "right"),
        ("MB moved", "right"),
        ("state", "right"),
        ("ms", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("")
    for name, form in described.to_dict()["forms"].items():
        mark = "chosen by auto" if name == described.chosen else ""
        if "refusal" in form:
            table.add_row(name, "-", "-", "-", "-", f"refuses: {form['refusal']}")
            continue
        state = "-" if form["state_bytes"] is None else f"{form['state_bytes']:,} B"
        table.add_row(
            name,
            f"{form['flops'] / 1e9:.3f}",
            f"{form['bytes'] / 1e6:.2f}",
            state,
            f"{form['seconds'] * 1e3:.3f}",
            mark,
        )
    table.caption = _caption(described)
    return table


def _caption(described: Explanation) -> str:
    if described.calibration is None:
        speed = "static rates of a small CPU; `quadform calibrate` measures this machine's"
    else:
        speed = f"this machine's rates, measured on {described.calibration.date}"
    note = "" if described.note is None else f"{described.note[0].upper()}{described.note[1:]}. "
    return f"{note}Times are predicted and rank the forms, by {speed}."
