"""What the words of a report mean."""

from __future__ import annotations

TERMS: dict[str, tuple[str, str]] = {
    "raw": (
        "raw error",
        "‖Av \u2212 y‖ / ‖Av‖ over all tokens of the measured sequences: A are the head's weights, v its values and y what the "
        "form computes instead. It counts the mean output, which is often a large part, as success.",
    ),
    "centred": (
        "centred error",
        "‖Av \u2212 y‖ divided by what is left of ‖Av‖ after each sequence's mean output is removed: a form that only gets "
        "the mean right scores 100 %. A dash where the output of the head never varies.",
    ),
    "baseline": (
        "baseline",
        "What replacing attention by the mean of v would cost. A form that is not clearly below it has learned nothing "
        "of what the head does.",
    ),
    "oracle": (
        "oracle",
        "A form that needs all the scores before it can leave any out: it diagnoses a head and saves no work by itself.",
    ),
    "kind": (
        "kind",
        "The kind of the simplest form within 10 % of the head, by the centred error (the mean by its raw one); an "
        "oracle may be what fits. A dash where nothing does.",
    ),
    "bound": (
        "lower bound",
        "\u2016A \u2212 A\u2032\u2016 / \u2016A\u2016 that no A\u2032 of the family can beat, however it is trained. "
        "It speaks of the weights A; the errors of the forms speak of the outputs Av, so the two are not on one scale. A "
        "small bound promises nothing.",
    ),
    "kernel bound": (
        "bound for kernels",
        "The lower bound for every kernel φ(q)ᵀφ(k) with the given number of features, normalised in any way.",
    ),
    "hybrid bound": (
        "bound for hybrids",
        "The lower bound for exact weights near the token and at the sinks, and any kernel with the given number of "
        "features elsewhere.",
    ),
    "sinks": (
        "sinks",
        "Tokens that take weight whatever the input says: the first and the last one, for causal heads the first four, "
        "on a picture the class and register tokens.",
    ),
    "time": (
        "time",
        "Measured seconds of one call for one sequence and all heads of the layer, on the machine named above. Fewer "
        "operations are no promise of less time.",
    ),
    "flops": ("FLOPs", "Floating-point operations of that call, by the form's own count."),
    "state": (
        "state",
        "Bytes that a stream must keep between two tokens, for all heads of the layer. A dash where the form does not "
        "stream.",
    ),
    "median": ("median", "Half of the heads have a smaller error."),
    "attention": ("attention", "The head as it is: softmax over all keys that the mask allows. Its error is 0."),
}
"""By key: the word, and one or two sentences."""


KEY = ("effective_degree", "sink_mass", "window_mass", "offset_share", "rank")
"""The statistics that the table of all heads has room for."""


def label(statistic: str) -> str:
    """How a statistic is called on the page."""
    return statistic.replace("_95", "_for_95 %").replace("_", " ")


def unit(statistic: str) -> str:
    """ "share" for a statistic between 0 and 1 that reads as per cent, else "number"."""
    return "share" if statistic.endswith(("_mass", "_share", "_fit")) else "number"
