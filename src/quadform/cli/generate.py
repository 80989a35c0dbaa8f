"""quadform generate: text from a decoder whose heads are mixers, in memory that does not grow where theirs does not."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from quadform.integrations.hugging_face import (
    generate_text,
    load_model,
    load_tokenizer,
    read_mixers,
    with_mixers,
)


def generate(
    model: Annotated[str, typer.Argument(help="A Hugging Face directory, or an installed package that carries one.")],
    prompt: Annotated[str, typer.Argument(help="The text to go on from; '-' for standard input.")] = "",
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="New tokens at most.")] = 100,
    mixer: Annotated[
        str | None,
        typer.Option(
            help='"edges; weights" for every head, such as "Causal(); Kernel(\'elu1\')", or a JSON file of mixers. '
            "The model's own softmax unless given.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Write the state to this file at the end.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the file of --state.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print tokens/s and the state's bytes on stderr.")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of sampling; 0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Of sampling.", show_default=False)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the text and the statistics as JSON at the end, and nothing before.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
) -> None:
    """Generate text with a pretrained decoder whose attention heads are replaced by mixers, and print it as it comes."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported, which is below
    torch.set_num_threads(threads)
    mixers = None if mixer is None else read_mixers(mixer)
    text = sys.stdin.read() if prompt == "-" else prompt
    tokenizer = load_tokenizer(model)
    pieces: list[str] = []

    def write(piece: str) -> None:
        pieces.append(piece)
        if not as_json:
            print(piece, end="", flush=True)

    with with_mixers(load_model(model, "AutoModelForCausalLM"), mixers) as mixed:
        done = generate_text(
            mixed,
            tokenizer,
            text,
            write,
            tokens=tokens,
            temperature=temperature,
            seed=seed,
            state=state,
            resume=resume,
        )
    if as_json:
        found = {"text": "".join(pieces), **dataclasses.asdict(done), "tokens_per_second": done.tokens_per_second}
        print(json.dumps(found, indent=2))
    else:
        print()
    if stats:
        print(
            f"{done.tokens} tokens, {done.tokens_per_second:.1f} tokens/s after the first; {done.prompt} tokens read and "
            f"the first one written in {done.first_seconds:.3f} s; state of {done.state_bytes:,} bytes",
            file=sys.stderr,
        )
