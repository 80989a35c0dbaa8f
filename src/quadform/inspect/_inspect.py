"""inspect(model, batches): the main job, from a model and its inputs to a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from quadform._errors import ArgumentError, QuadformError
from quadform.inspect import _structure
from quadform.inspect._adapters import Batch, Capture, find_capture
from quadform.inspect._candidates import CANDIDATES, Candidate
from quadform.inspect._captured import Captured
from quadform.inspect._measures import Fitted, Fitting, Measuring
from quadform.inspect._report import FormError, FormInfo, Head, Layer, Report, Section
from quadform.inspect._views import EXCERPT, Snapshot

Site = tuple[str, int]
Progress = Callable[[str, int, int], None]


def inspect(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    fit: Iterable[Batch] | None = None,
    candidates: Sequence[Candidate] = CANDIDATES,
    capture: Capture | None = None,
    name: str | None = None,
    text: str = "the batches given",
    labels: Callable[[list[int]], list[str]] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measures what every attention head of a model is, on the given inputs.

    For each head with weights A and values v, and each candidate form with output y, the raw error is
    ||A v - y|| / ||A v|| over all tokens of the measured sequences; the centred error divides by the norm of A v after
    each sequence's mean output is removed. Nothing is measured on sequences that a form was fitted to.

    Args:
        model: a Hugging Face model in evaluation mode, or any module together with `capture`.
        batches: mappings of tensors that the model is called with, such as input_ids and attention_mask, both (B, N).
            All sequences of a batch have one length; batches of several lengths give one section each.
        fit: batches of other documents, to fit on. Without it the first half of `batches` (of the sequences of a
            single batch) is for fitting and the second half is measured, so order them by document.
        candidates: the forms to compare with.
        capture: how q, k and v are captured; found by the model's class unless given.
        name: the model's name in the report.
        text: where the sequences come from, for the report.
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
    fitting, measured = _by_length(batches, fit)
    total = sum(map(len, fitting.values())) + sum(map(len, measured.values()))
    done = 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(what, done, total)

    worst, sections = 0.0, []
    with torch.no_grad():
        for length in sorted(measured):
            worst = max(worst, capture.check(model, measured[length][0]))
            fitted = _fit(model, capture, fitting[length], candidates, step)
            layers, error = _measure(model, capture, measured[length], candidates, fitted, step)
            worst = max(worst, error)
            fits, measures = (sum(_shape(batch)[0] for batch in part) for part in (fitting[length], measured[length]))
            tokens = _tokens(measured[length][0], _example(measured[length][0]), labels)
            sections.append(Section(length, fits, measures, tokens, layers))
    forms = {form.name: FormInfo(form.letter, form.description, form.oracle) for form in candidates}
    return Report(name or type(model).__name__, text, worst, forms, tuple(sections))


def _fit(
    model: nn.Module,
    capture: Capture,
    batches: list[Batch],
    candidates: Sequence[Candidate],
    step: Callable[[str], None],
) -> dict[Site, Fitted]:
    sites: dict[Site, Fitting] = defaultdict(lambda: Fitting(candidates))
    for batch in batches:
        capture.run(model, batch, lambda captured: sites[captured.site].add(captured))
        step("fitting")
    return {site: fitting.fitted() for site, fitting in sites.items()}


def _measure(
    model: nn.Module,
    capture: Capture,
    batches: list[Batch],
    candidates: Sequence[Candidate],
    fitted: dict[Site, Fitted],
    step: Callable[[str], None],
) -> tuple[tuple[Layer, ...], float]:
    sites: dict[Site, Measuring] = {}
    snapshots: dict[Site, Snapshot] = {}
    example = _example(batches[0])

    def receive(captured: Captured) -> None:
        site = captured.site
        if site not in fitted:
            raise QuadformError(f"{site[0]}: call {site[1]} happened on the measured batches only, not on those to fit")
        if site not in sites:
            sites[site] = Measuring(candidates, fitted[site])
            snapshots[site] = Snapshot(captured, example)
        sites[site].add(captured)

    for batch in batches:
        capture.run(model, batch, receive)
        step("measuring")
    worst, layers = 0.0, []
    for (module, call), measuring in sites.items():
        worst = max(worst, measuring.reproduction(module))
        heads = _heads(measuring, snapshots[module, call])
        layers.append(Layer(module, call, measuring.causal, measuring.structured, heads))
    return tuple(layers), worst


def _heads(measuring: Measuring, snapshot: Snapshot) -> tuple[Head, ...]:
    errors, sums = measuring.errors(), measuring.structure.values
    structure = {name: values.tolist() for name, values in _structure.summarise(sums).items()}
    return tuple(
        Head(
            {form: FormError(raw[head], centred[head]) for form, (raw, centred) in errors.items()},
            {name: values[head] for name, values in structure.items()},
            snapshot.views(head, sums),
        )
        for head in range(sums["rows"].numel())
    )


def _by_length(
    batches: Iterable[Batch], fit: Iterable[Batch] | None
) -> tuple[dict[int, list[Batch]], dict[int, list[Batch]]]:
    measured = _group("batches", batches)
    if fit is not None:
        fitting = _group("fit", fit)
        if missing := sorted(set(measured) - set(fitting)):
            raise ArgumentError("fit", f"batches of every length measured, {sorted(measured)}", f"none of {missing}")
        return fitting, measured
    fitting = {}
    for length, group in measured.items():
        fitting[length], measured[length] = _halves(length, group)
    return fitting, measured


def _group(name: str, batches: Iterable[Batch]) -> dict[int, list[Batch]]:
    groups: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        if not isinstance(batch, Mapping) or not any(isinstance(value, Tensor) for value in batch.values()):
            raise ArgumentError(name, "mappings of tensors, such as {'input_ids': ids}", type(batch).__name__)
        if 0 in _shape(batch):
            raise ArgumentError(name, "batches with at least one sequence of at least one token", tuple(_shape(batch)))
        groups[_shape(batch)[1]].append(batch)
    if not groups:
        raise ArgumentError(name, "at least one batch", "none")
    return groups


def _halves(length: int, group: list[Batch]) -> tuple[list[Batch], list[Batch]]:
    if len(group) > 1:
        return group[: len(group) // 2], group[len(group) // 2 :]
    size = _shape(group[0])[0]
    if size < 2:
        raise ArgumentError("batches", "two sequences or more of each length: one part is fitted to", f"1 of {length}")
    cut = size // 2
    halves = [
        {
            key: value[part] if isinstance(value, Tensor) and value.ndim and value.shape[0] == size else value
            for key, value in group[0].items()
        }
        for part in (slice(cut), slice(cut, None))
    ]
    return [halves[0]], [halves[1]]


def _shape(batch: Batch) -> torch.Size:
    values = [value for value in batch.values() if isinstance(value, Tensor) and value.ndim >= 2]
    main = batch.get("input_ids", values[0] if values else None)
    if not isinstance(main, Tensor) or main.ndim < 2:
        raise ArgumentError("batches", "tensors (B, N, ...) in every mapping", sorted(batch))
    return main.shape


def _example(batch: Batch) -> int:
    """The sequence that the views show: the one whose beginning has the most different tokens."""
    rows = [_beginning(batch, row) for row in range(_shape(batch)[0])]
    return max(range(len(rows)), key=lambda row: len(set(rows[row])))


def _beginning(batch: Batch, row: int) -> list[int]:
    """The first tokens of a sequence that are no padding; their positions when there are no token ids."""
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if ids is None:
        return list(range(min(EXCERPT, _shape(batch)[1])))
    kept = ids[row][mask[row].bool()] if mask is not None and mask.ndim == 2 else ids[row]
    return [int(value) for value in kept[:EXCERPT]]


def _tokens(batch: Batch, row: int, labels: Callable[[list[int]], list[str]] | None) -> tuple[str, ...]:
    values = _beginning(batch, row)
    return tuple(labels(values)) if labels is not None and "input_ids" in batch else tuple(map(str, values))
