"""Captures a tiny random model of every architecture in the table of the tests, and writes docs/models.md about it.

Run from anywhere, with the test extra installed: python scripts/architectures.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import transformers  # noqa: E402
from tests.integrations.architectures import Architecture, architectures  # noqa: E402

from quadform import QuadformError  # noqa: E402
from quadform.integrations.hugging_face import HuggingFaceCapture  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
INTRODUCTION = """\
# Hugging Face models that inspection covers

<!-- Written by scripts/architectures.py; a test compares it with the table that the script reads. -->

`quadform inspect` captures a model's attention through the attention interface of transformers. Below is what it does
with {count} architectures of transformers {version}, each as a tiny random model: {routed} are captured, and {refused} are
refused with the sentence that is shown. An architecture that is not here is treated by the same rules: before anything
is measured, the captured run must give the model's own outputs, every attention module must have run, and no attention may
be computed beside the interface. Otherwise the model is refused.

"Captured" means that for each architecture a test holds the following, with the model's default attention and with "eager":

- the captured run's outputs are the model's own, ||a - b|| / ||a|| <= 1e-6 over rows that are no padding;
- every attention module ran, as often as the layers of the configuration say;
- attention computed again in float64 from the captured q, k, v, mask, scaling, bias, cap and sinks is the captured output,
  within 1e-4;
- where transformers returns the weights of all attention calls, the captured ones are the same, within 1e-4.

In the column "attention": *bidirectional*, *causal* and *cross* are the kinds of calls (keys of another sequence, or on a
coarser grid than the queries, are *cross*); *grouped-query* heads share keys and values; a *window* stands for every mask
that holds more than padding and causality; *bias* is added to the scores, *softcap* bounds them, *sinks* are scores of a
further key without a value; on a *grid* offsets are measured in two dimensions. What a model has beside attention, such
as recurrent layers, is neither captured nor changed.

| architecture | class | attention | captured |
|---|---|---|---|
"""


def outcome(item: Architecture) -> tuple[str, bool]:
    """What capture does with the architecture, in words, and whether that is what the table says."""
    capture, model, inputs = HuggingFaceCapture(), item.build(), item.inputs()
    try:
        with torch.no_grad():
            error = capture.check(model, inputs)
    except QuadformError as refusal:
        return f"no: {refusal}", item.refused is not None and str(refusal).startswith(item.refused)
    return "yes, <= 1e-6", item.refused is None and error <= 1e-6


def main() -> None:
    """Writes the page; ends with an error when an outcome is not the table's."""
    transformers.utils.logging.set_verbosity_error()
    table, rows, wrong = architectures(), [], []
    for item in table:
        words, expected = outcome(item)
        rows.append(f"| {item.name} | `{item.model}` | {'' if item.refused else item.attention()} | {words} |")
        if not expected:
            wrong.append(f"{item.name}: {words}")
    if wrong:
        sys.exit("\n".join(["Nothing is written. Not as the table says:", *wrong]))
    routed = sum(item.refused is None for item in table)
    version = ".".join(transformers.__version__.split(".")[:2])
    introduction = INTRODUCTION.format(count=len(table), version=version, routed=routed, refused=len(table) - routed)
    PAGE.write_text(introduction + "\n".join(rows) + "\n", "utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {routed} of {len(table)} architectures are captured, the others refused")


if __name__ == "__main__":
    main()
