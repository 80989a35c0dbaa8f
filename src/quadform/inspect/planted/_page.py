"""The confusion of the planted heads as a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Iterable

from quadform.inspect.planted._confusion import Confusion

_PAGE = """# Planted heads

Is the inspector right? Here it names heads whose kind is known, because they were made to be of that kind. The data set
[planted-heads.safetensors](../data/planted-heads.safetensors) holds them and its [card](../data/README.md) says how each kind
is made. This page is the output of

    {command}

and counts {heads} heads: those of {sets}, with and without a causal mask (low rank: without), each at several levels of noise
(its standard deviation in the scores).

The name of a head is the kind of the first form, from simple to rich, whose error on sequences that nothing was fitted to
is at most 10 %. The mean counts by its raw error, all others by the centred one, which removes each sequence's mean output.
Rows are what was planted, columns what was found. Mixed heads fit no form, so they have to stay without a name.

{counts}

{verdict}

Noise of 0.3 and more changes what a head is. A convolution with noisy scores is a window, since its weights depend on content
now but stay near (with sinks, where its padding counts). A mean with noisy scores is a kernel with small scores. Kernels and
low ranks drown.

## By what margin

The largest error of the planted kind's own form over all heads of a row, and the least error of any form that is asked before
it; for mixed heads, of any form at all. The limit is 10 %.

{margins}
"""


def page(confusion: Confusion, sets: str, command: str) -> str:
    """The page: `sets` says which sets were named, such as "seeds 0 to 9", and `command` what made it."""
    counts = [["planted", "noise", *confusion.columns()]]
    for (kind, noise), row in confusion.rows().items():
        counts.append([kind, f"{noise:g}", *(str(count or "") for count in row.values())])
    margins = [["planted", "noise", "its own form, at most", "a simpler form, at least"]]
    for (kind, noise), pair in confusion.margins().items():
        margins.append([kind, f"{noise:g}", *(percent(value) for value in pair)])
    wrong = len(confusion.wrong)
    verdict = "Up to a noise of 0.1 every head is named as planted, and no mixed head is named at any noise."
    return _PAGE.format(
        command=command,
        heads=len(confusion.found),
        sets=sets,
        counts=_table(counts),
        margins=_table(margins),
        verdict=f"{wrong} heads are named wrongly." if wrong else verdict,
    )


def percent(error: float) -> str:
    """An error in per cent, or nothing where there is none."""
    return "" if math.isinf(error) else f"{error:.1%}".replace("%", " %")


def _table(lines: list[list[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return "\n".join([line(lines[0]), line(["---"] * len(lines[0])), *map(line, lines[1:])])
