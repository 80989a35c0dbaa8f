"""inspect(model, batches): the main job, from a model and its inputs to a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from quadform._errors import QuadformError
from quadform.inspect import _inputs
from quadform.inspect._adapters import Batch, Capture, find_capture
from quadform.inspect._captured import Captured
from quadform.inspect._costs import Costs
from quadform.inspect._interrupt import Stop, graceful
from quadform.inspect._layers import Site, form_infos
from quadform.inspect._measures import Fitted, Fitting
from quadform.inspect._report import Report, Section
from quadform.inspect.candidates import CANDIDATES, Candidate

Key = tuple[str, int]
Progress = Callable[[str, int, int], None]


def inspect(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    fit: Iterable[Batch] | None = None,
    candidates: Sequence[Candidate] = CANDIDATES,
    bounds: bool = True,
    costs: bool = True,
    partial: bool = False,
    capture: Capture | None = None,
    name: str | None = None,
    text: str = "the batches given",
    labels: Callable[[list[int]], list[str]] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measures what every attention head of a model is, on the given inputs.

    For each head with weights A and values v, and each candidate form with output y, the raw error is
    ||A v - y|| / ||A v|| over all tokens of the measured sequences; the centred error divides by the norm of A v after
    each sequence's mean output is removed. Nothing is measured on sequences that a form was fitted to. Memory does not
    grow with the square of the length beyond the masks.

    Args:
        model: a Hugging Face model in evaluation mode, a module with torch.nn.MultiheadAttention inside, a timm model,
            or any module together with `capture`.
        batches: mappings of tensors that the model is called with, such as input_ids and attention_mask, both (B, N),
            or pixel_values (B, C, height, width). Batches of several lengths give one section each.
        fit: batches of other documents, to fit on. Without it the first half of `batches` (of the sequences of a
            single batch) is for fitting and the second half is measured, so order them by document.
        candidates: the forms to compare with, simplest first.
        bounds: whether to compute lower bounds on kernels, which takes several times as long as all else.
        costs: whether to time each form on this machine; the report says so where a busy machine forbids it.
        partial: Ctrl-C ends measuring after the batch at hand and reports what there is, with `complete` False.
            Otherwise, and before anything is measured, it raises KeyboardInterrupt as usual.
        capture: how q, k and v are captured; found by the model's class unless given.
        name: the model's name in the report.
        text: where the inputs come from, for the report.
        labels: turns token ids into strings for the report.
        progress: called with (what, done, total) after each batch.

    Returns:
        A Report, with `.table()`, `.summary()`, `.to_json(path)` and `.to_html(path)`.

    Raises:
        ArgumentError: an argument is wrong, or there are too few sequences.
        QuadformError: the model's attention cannot be captured exactly: an unknown argument, a module that never ran,
            values that are not finite, or an output that differs from the model's own by more than 1e-6.
    """
    capture = capture or find_capture(model)
    fitting, measured = _inputs.by_size(batches, fit)
    total = sum(len(fitting[size]) + len(measured[size]) for size in measured)
    done = 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(what, done, total)

    clock, worst, sections = Costs(measure=costs), 0.0, []
    with torch.no_grad(), graceful(partial) as stop:
        for size in sorted(measured):
            worst = max(worst, capture.check(model, measured[size][0]))
            fitted = _fit(model, capture, fitting[size], candidates, step, stop)
            if stop.asked:
                break
            sites, count = _measure(model, capture, measured[size], candidates, fitted, bounds, step, stop)
            worst = max([worst, *(site.measuring.reproduction(key[0]) for key, site in sites.items())])
            sections.append(_section(fitting[size], measured[size], count, sites, clock, labels))
            if stop.asked:
                break
        if not sections:
            raise KeyboardInterrupt
        complete = not stop.asked
    return Report(
        name or type(model).__name__, text, worst, form_infos(candidates), clock.timing(), complete, tuple(sections)
    )


def _fit(
    model: nn.Module,
    capture: Capture,
    batches: list[Batch],
    candidates: Sequence[Candidate],
    step: Callable[[str], None],
    stop: Stop,
) -> dict[Key, Fitted]:
    sites: dict[Key, Fitting] = defaultdict(lambda: Fitting(candidates))
    for batch in batches:
        capture.run(model, batch, lambda captured: sites[captured.site].add(captured))
        step("fitting")
        if stop.asked:
            return {}
    return {site: fitting.fitted() for site, fitting in sites.items()}


def _measure(
    model: nn.Module,
    capture: Capture,
    batches: list[Batch],
    candidates: Sequence[Candidate],
    fitted: dict[Key, Fitted],
    bounds: bool,
    step: Callable[[str], None],
    stop: Stop,
) -> tuple[dict[Key, Site], int]:
    """(the sites, how many batches were measured)."""
    sites: dict[Key, Site] = {}
    example = _inputs.example(batches[0])

    def receive(captured: Captured) -> None:
        key = captured.site
        if key not in fitted:
            raise QuadformError(f"{key[0]}: call {key[1]} happened on the measured batches only, not on those to fit")
        if key not in sites:
            sites[key] = Site(captured, min(example, len(captured.q) - 1), candidates, fitted[key], bounds)
        sites[key].add(captured)

    count = 0
    for batch in batches:
        capture.run(model, batch, receive)
        step("measuring")
        count += 1
        if stop.asked:
            break
    return sites, count


def _section(
    fitting: list[Batch],
    measured: list[Batch],
    count: int,
    sites: dict[Key, Site],
    clock: Costs,
    labels: Callable[[list[int]], list[str]] | None,
) -> Section:
    layers = tuple(site.layer(clock) for site in sites.values())
    size = _inputs.shape(measured[0])
    length = size[1] if "input_ids" in measured[0] else layers[0].queries
    sequences = [sum(_inputs.shape(batch)[0] for batch in part) for part in (fitting, measured[:count])]
    shown = _inputs.tokens(measured[0], _inputs.example(measured[0]), labels)
    return Section(length, sequences[0], sequences[1], shown, layers)
