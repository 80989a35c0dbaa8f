"""What a report says, in sentences that do not flatter."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quadform.inspect._report import Head, Layer, Metric, Report

FIT, LOOSE = 0.10, 0.20
TEN, TWENTY = "10 %", "20 %"
FEATURES = "64"
"""The number of features whose bound is put into words, where it was computed."""


def summarise(report: Report, length: int | None = None) -> list[str]:
    """Sentences about the heads at a length: what fits, what does not, what cannot, and what would not be faster."""
    section = report.section(length)
    heads = report.heads(section.length)
    if not heads:
        return [f"Nothing was measured at {section.length} tokens."]
    sentences = (
        [] if report.complete else ["Measuring was interrupted: these numbers rest on fewer sequences than asked for."]
    )
    sentences += [_kinds(report, heads), _fits(report, heads), _nothing(report, heads), _medians(report, heads)]
    sentences += [*_mean(report, heads), *_oracles(report, heads), *_bounds(heads)]
    sentences += _costs(report, section.layers, section.length)
    return sentences + _refusals(report, section.layers)


def median_error(report: Report, name: str, metric: Metric, length: int | None) -> float:
    """Median of the error of a form, or of the "best" one as in `Report.summary`, over the heads that it applies to."""
    among = {"best": report.cheaper_forms(), "best of all": list(report.forms)}.get(name, [name])
    errors = [head.best(metric, among)[1] for head in report.heads(length)]
    return statistics.median([error for error in errors if error < float("inf")] or [float("inf")])


def _kinds(report: Report, heads: Sequence[Head]) -> str:
    order = list(dict.fromkeys([*(form.kind for form in report.forms.values()), *(head.kind for head in heads)]))
    counts = {kind: sum(head.kind == kind for head in heads) for kind in order if kind is not None}
    found = [f"{count} {kind}" for kind, count in counts.items() if count]
    none = sum(head.kind is None for head in heads)
    if not found:
        return f"By the simplest form within {TEN}, none of {len(heads)} heads is of any kind."
    text = f"By the simplest form within {TEN}, {len(heads)} heads are of these kinds: {_join(found)}"
    oracles = sum(head.kind is not None and not _cheaply(report, head) for head in heads)
    alone = f" ({oracles} of them by an oracle alone, which saves nothing)" if oracles else ""
    return f"{text}{alone}; {none or 'none'} of no kind."


def _cheaply(report: Report, head: Head) -> bool:
    """Whether a form of the head's kind that is no oracle is within 10 %: centred, or raw for the baseline."""
    baseline = _baseline(report)
    for name in report.cheaper_forms():
        error = head.errors.get(name)
        if error is not None and report.forms[name].kind == head.kind:
            raw = name == baseline or error.centred is None
            if head.error(name, "raw" if raw else "centred") <= FIT:
                return True
    return False


def _fits(report: Report, heads: Sequence[Head]) -> str:
    """The centred error decides: a form that only gets the mean output right does not fit."""
    forms = report.cheaper_forms()
    counts = {name: sum(head.error(name, "centred") <= FIT for head in heads) for name in forms}
    found = sorted((name for name in forms if counts[name]), key=lambda name: -counts[name])
    none = [name for name in forms if not counts[name]]
    if not found:
        return f"None of {len(heads)} heads fits a cheaper form within {TEN} (centred)."
    listed = [f"{counts[name]} {_verb(counts[name], 'fits', 'fit')} {name}" for name in found]
    text = f"Of {len(heads)} heads, each counted for every form that is within {TEN} (centred): {_join(listed)}"
    return text + (f"; none fits {_join(none, 'or')}." if none else ".")


def _nothing(report: Report, heads: Sequence[Head]) -> str:
    metrics: tuple[Metric, ...] = ("centred", "raw")
    forms = report.cheaper_forms()
    centred, raw = (sum(head.best(metric, forms)[1] > LOOSE for head in heads) for metric in metrics)
    return (
        f"{_count(centred, heads)} {_verb(centred, 'fits', 'fit')} nothing cheaper within {TWENTY} (centred); by the raw "
        f"error, which counts a right mean as success, {raw}."
    )


def _medians(report: Report, heads: Sequence[Head]) -> str:
    metrics: tuple[Metric, ...] = ("raw", "centred")
    forms = report.cheaper_forms()
    raw, centred = (statistics.median(head.best(metric, forms)[1] for head in heads) for metric in metrics)
    text = f"The best cheaper form has a median error of {percent(raw)} raw and {percent(centred)} centred"
    if (baseline := _baseline(report)) is None:
        return text + "."
    mean = statistics.median(head.error(baseline) for head in heads)
    return f"{text}; replacing attention by the mean of v has {percent(mean)} raw."


def _mean(report: Report, heads: Sequence[Head]) -> list[str]:
    baseline = _baseline(report)
    others = [name for name in report.cheaper_forms() if name != baseline]
    if baseline is None or not others:
        return []
    worse = sum(head.error(baseline) <= head.best("raw", others)[1] for head in heads)
    return [f"On {_count(worse, heads)} no cheaper form does better than the mean of v."] if worse else []


def _oracles(report: Report, heads: Sequence[Head]) -> list[str]:
    sentences = []
    for name in (name for name, form in report.forms.items() if form.oracle):
        beyond = sum(head.error(name, "centred") > FIT for head in heads)
        if beyond:
            text = f"Even {name}, an oracle that saves nothing, misses {TEN} (centred) on {_count(beyond, heads)}."
            sentences.append(text)
    return sentences


def _bounds(heads: Sequence[Head]) -> list[str]:
    sentences = []
    for family in dict.fromkeys(family for head in heads for family in head.bounds):
        known = [head.bounds[family] for head in heads if head.bounds.get(family)]
        if not known:
            continue
        count = FEATURES if any(FEATURES in bound for bound in known) else _largest(known)
        values = [bound[count] for bound in known if count in bound]
        beyond = sum(value > FIT for value in values)
        what = f"hybrid with a kernel of {count} features" if family == "hybrid" else f"{family} with {count} features"
        if beyond:
            text = (
                f"No {what}, however trained, can come within {TEN} of the weights of {beyond} of {len(values)} heads."
            )
        else:
            text = f"The lower bounds exclude a {what} within {TEN} on no head; whether training finds one, they do not say."
        sentences.append(text)
    return sentences


def _largest(known: Sequence[dict[str, float]]) -> str:
    return max((count for bound in known for count in bound), key=int)


def _costs(report: Report, layers: Sequence[Layer], length: int) -> list[str]:
    pairs = {name: seconds(layers, name) for name in report.cheaper_forms()}
    timed = {name: pair for name, pair in pairs.items() if pair is not None}
    if not timed:
        reason = report.timing.refusal or "no form has a measured cost"
        return [f"Nothing was timed ({reason}), so no form is known to be cheaper here."]
    usual = statistics.mode(attention for _, attention in timed.values())
    where = f"at {length} tokens on this machine ({report.timing.machine}, {_threads(report)})"
    texts: dict[bool, list[str]] = {False: [], True: []}
    for name, (own, attention) in timed.items():
        text = f"{name} {milliseconds(own)}" + ("" if attention == usual else f" against {milliseconds(attention)}")
        texts[own < attention].append(text)
    slower, faster = texts[False], texts[True]
    what = f"than attention {where}, which takes {milliseconds(usual)} a layer"
    if not faster:
        return [f"No form is cheaper {what}: {_join(slower)}."]
    sentences = [f"Not cheaper {what}: {_join(slower)}."] if slower else []
    return [*sentences, f"Cheaper {what if not slower else 'than it'}: {_join(faster)}."]


def seconds(layers: Sequence[Layer], form: str) -> tuple[float, float] | None:
    """(form, attention): mean measured seconds per layer, over the layers where both are known; None without any."""
    pairs = []
    for layer in layers:
        own, attention = layer.costs.get(form), layer.costs.get("attention")
        if own and attention and own.seconds is not None and attention.seconds is not None:
            pairs.append((own.seconds, attention.seconds))
    if not pairs:
        return None
    return sum(own for own, _ in pairs) / len(pairs), sum(attention for _, attention in pairs) / len(pairs)


def _refusals(report: Report, layers: Sequence[Layer]) -> list[str]:
    alike: dict[tuple[str, int], list[str]] = {}
    for name in report.forms:
        reasons = [layer.refusals[name] for layer in layers if name in layer.refusals]
        if reasons:
            alike.setdefault((_join(list(dict.fromkeys(reasons)), "or"), len(reasons)), []).append(name)
    return [
        f"{_join(names)} {_verb(len(names), 'does', 'do')} not apply to "
        f"{'any layer' if count == len(layers) else f'{count} of {len(layers)} layers'}: {reason}."
        for (reason, count), names in alike.items()
    ]


def _baseline(report: Report) -> str | None:
    return next((name for name, form in report.forms.items() if form.kind == "mean" or name == "mean"), None)


def _threads(report: Report) -> str:
    return "1 thread" if report.timing.threads == 1 else f"{report.timing.threads} threads"


def _count(count: int, heads: Sequence[Head]) -> str:
    return f"{count} of {len(heads)} heads"


def _verb(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _join(parts: Iterable[str], word: str = "and") -> str:
    """ "a, b and c"."""
    *head, last = parts
    return f"{', '.join(head)} {word} {last}" if head else last


def percent(value: float) -> str:
    """Two significant digits below 10 %, whole numbers from there; "undefined" for an infinite one."""
    if value == float("inf"):
        return "undefined"
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def milliseconds(value: float) -> str:
    """Three significant digits."""
    return f"{1000 * value:.3g} ms"
