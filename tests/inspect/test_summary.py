"""What a report says in sentences."""

from __future__ import annotations

import dataclasses

import pytest
from tests.inspect.sample import FORMS, sample

from quadform import ArgumentError
from quadform.inspect import FormError, Report
from quadform.inspect._report import FormCost
from quadform.inspect._summary import milliseconds, percent, seconds, summarise

Errors = dict[str, tuple[float, float | None]]


def planted(errors: list[Errors]) -> Report:
    """One layer whose heads have these (raw, centred) errors and nothing else, of the forms that they name."""
    report = sample(lengths=(16,), layers=1, heads=1)
    head = report[0, 0]
    heads = tuple(
        dataclasses.replace(head, kind=None, bounds={}, errors={name: FormError(*pair) for name, pair in row.items()})
        for row in errors
    )
    layer = dataclasses.replace(report.section().layers[0], heads=heads, costs={}, refusals={})
    section = dataclasses.replace(report.section(), layers=(layer,))
    forms = {name: form for name, form in FORMS.items() if name in errors[0]}
    return dataclasses.replace(report, forms=forms, sections=(section,))


FLATTERED: Errors = {"mean": (0.12, 1.0), "convolution-15": (0.3, 0.9), "window-32": (0.08, 0.6), "top-16": (0.05, 0.3)}
FITTED: Errors = {"mean": (0.9, 1.0), "convolution-15": (0.04, 0.05), "window-32": (0.5, 0.6), "top-16": (0.01, 0.01)}
MEAN: Errors = {"mean": (0.3, 1.0), "convolution-15": (0.9, 1.2), "window-32": (0.8, 1.1), "top-16": (0.6, 0.9)}


def test_the_centred_error_decides_what_fits():
    sentences = summarise(planted([FLATTERED, FITTED, MEAN]))
    every = "Of 3 heads, each counted for every form that is within 10 % (centred)"
    assert f"{every}: 1 fits convolution-15; none fits mean or window-32." in sentences
    assert (
        "2 of 3 heads fit nothing cheaper within 20 % (centred); by the raw error, which counts a right mean as success, 1."
        in sentences
    )
    assert (
        "The best cheaper form has a median error of 8.0 % raw and 60 % centred; replacing attention by the mean of v has "
        "30 % raw." in sentences
    )
    assert "On 1 of 3 heads no cheaper form does better than the mean of v." in sentences
    assert "Even top-16, an oracle that saves nothing, misses 10 % (centred) on 2 of 3 heads." in sentences


def test_nothing_fits():
    sentences = summarise(planted([FLATTERED, MEAN]))
    assert "None of 2 heads fits a cheaper form within 10 % (centred)." in sentences
    assert "By the simplest form within 10 %, none of 2 heads is of any kind." in sentences


def test_everything_fits():
    sentences = summarise(planted([FITTED]))
    assert not any("no cheaper form does better" in text or "oracle" in text for text in sentences)
    assert any(text.startswith("0 of 1 heads fit nothing cheaper") for text in sentences)


def test_kinds_are_counted():
    report = planted([FITTED, MEAN, MEAN])
    layer = report.section().layers[0]
    named = [
        dataclasses.replace(head, kind=kind)
        for head, kind in zip(layer.heads, ("convolution", "top-k", None), strict=True)
    ]
    layer = dataclasses.replace(layer, heads=tuple(named))
    report = dataclasses.replace(report, sections=(dataclasses.replace(report.section(), layers=(layer,)),))
    assert summarise(report)[0] == (
        "By the simplest form within 10 %, 3 heads are of these kinds: 1 convolution and 1 top-k (1 of them by an oracle "
        "alone, which saves nothing); 1 of no kind."
    )


BEYOND = ", however trained, can come within 10 % of the weights of 2 of 2 heads."
OPEN = "The lower bounds exclude a kernel with 64 features within 10 % on no head; whether training finds one, they do not say."


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"kernel": {"16": 0.3, "64": 0.11}}, "No kernel with 64 features" + BEYOND),
        ({"hybrid": {"16": 0.3}}, "No hybrid with a kernel of 16 features" + BEYOND),
        ({"kernel": {"64": 0.09}}, OPEN),
    ],
)
def test_bounds(bounds: dict[str, dict[str, float]], said: str):
    report = planted([FITTED, MEAN])
    layer = report.section().layers[0]
    layer = dataclasses.replace(layer, heads=tuple(dataclasses.replace(head, bounds=bounds) for head in layer.heads))
    report = dataclasses.replace(report, sections=(dataclasses.replace(report.section(), layers=(layer,)),))
    assert said in summarise(report)
    assert not any("bound" in text or "however trained" in text for text in summarise(planted([FITTED])))


def costed(**costs: float | None) -> Report:
    report = planted([FITTED])
    names = {"attention": "attention", "window": "window-32", "convolution": "convolution-15", "mean": "mean"}
    found = {names[name]: FormCost(value, 1.0, None) for name, value in costs.items()}
    layer = dataclasses.replace(report.section().layers[0], costs=found)
    return dataclasses.replace(report, sections=(dataclasses.replace(report.section(), layers=(layer,)),))


WHERE = "at 16 tokens on this machine (a synthetic machine, 1 thread)"


def test_what_is_not_cheaper_is_said():
    assert summarise(costed(attention=2.2e-4, window=3.1e-4, convolution=2.2e-4))[-1] == (
        f"No form is cheaper than attention {WHERE}, which takes 0.22 ms a layer: convolution-15 0.22 ms and window-32 0.31 ms."
    )
    slower, faster = summarise(costed(attention=2.2e-4, window=3.1e-4, mean=1e-5))[-2:]
    assert slower == f"Not cheaper than attention {WHERE}, which takes 0.22 ms a layer: window-32 0.31 ms."
    assert faster == "Cheaper than it: mean 0.01 ms."


def test_what_was_not_timed_is_not_called_cheaper():
    said = "Nothing was timed (no form has a measured cost), so no form is known to be cheaper here."
    assert said in summarise(costed(attention=2.2e-4, window=None))
    refused = sample(lengths=(16,), seconds=False)
    assert any("the machine was too busy to time anything" in text for text in summarise(refused))
    assert not any("heaper than" in text for text in summarise(refused))


def test_seconds_are_compared_over_the_same_layers():
    report = sample(lengths=(64,))
    layers = report.section().layers
    with_kernel = [layer for layer in layers if "kernel-taylor2" in layer.costs]
    assert 0 < len(with_kernel) < len(layers)
    found = seconds(layers, "kernel-taylor2")
    assert found is not None
    expected = [
        sum(layer.costs[name].seconds or 0.0 for layer in with_kernel) / len(with_kernel)
        for name in ("kernel-taylor2", "attention")
    ]
    assert found == pytest.approx(tuple(expected))
    assert seconds(layers, "top-16") is None


def test_refusals_interruption_and_lengths():
    report = sample(complete=False)
    sentences = summarise(report, 128)
    assert sentences[0].startswith("Measuring was interrupted")
    assert "convolution-15 does not apply to 1 of 4 layers: offsets between two sequences mean nothing." in sentences
    assert any("at 128 tokens" in text for text in sentences)
    assert summarise(report) == summarise(report, 64)
    with pytest.raises(ArgumentError, match="length"):
        summarise(report, 7)


def test_no_heads():
    report = sample(lengths=(16,))
    report = dataclasses.replace(report, sections=(dataclasses.replace(report.section(), layers=()),))
    assert summarise(report) == ["Nothing was measured at 16 tokens."]


def test_numbers():
    assert [percent(x) for x in (0.0, 0.012, 0.0996, 0.1, 1.234, float("inf"))] == [
        "0.0 %",
        "1.2 %",
        "10.0 %",
        "10 %",
        "123 %",
        "undefined",
    ]
    assert milliseconds(0.0003149) == "0.315 ms"
