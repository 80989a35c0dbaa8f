"""inspect(): which data is fitted to, what is refused, and what the report says."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from tests.inspect.planted import PlantedCapture, PlantedModel, token_batches
from torch import nn

from quadform import ArgumentError, QuadformError
from quadform.inspect import CANDIDATES, Captured, Report, inspect


def report_of(batches, **options) -> Report:
    return inspect(PlantedModel(), batches, capture=PlantedCapture(), **{"bounds": False, "costs": False, **options})


def test_a_report_has_every_layer_and_head_at_every_length():
    batches = [*token_batches(2, 3, 24, seed=0), *token_batches(2, 3, 40, seed=1)]
    report = report_of(batches, name="planted")
    assert [section.length for section in report.sections] == [24, 40]
    for section in report.sections:
        assert [layer.module for layer in section.layers] == ["layer.0", "layer.1"]
        assert (section.fitted_sequences, section.measured_sequences) == (3, 3)
        assert len(report.heads(section.length)) == 6
    assert set(report[1, 2].errors) == {candidate.name for candidate in CANDIDATES}
    assert report.summary()["best"]["20%"] <= report.summary()["best of all"]["20%"]


def test_batch_sizes_do_not_change_the_numbers():
    fit, measured = token_batches(1, 6, 24, seed=0), token_batches(1, 6, 24, seed=1)
    small = [[{"input_ids": part} for part in lot[0]["input_ids"].split(2)] for lot in (fit, measured)]
    one, other = report_of(measured, fit=fit), report_of(small[1], fit=small[0])
    for head, same in zip(one.heads(), other.heads(), strict=True):
        for form in head.errors:
            assert same.error(form) == pytest.approx(head.error(form), rel=1e-4)


def test_half_of_the_sequences_are_for_fitting_only():
    whole = token_batches(1, 6, 24, seed=0)[0]["input_ids"]
    alone = report_of([{"input_ids": whole}])
    split = report_of([{"input_ids": whole[3:]}], fit=[{"input_ids": whole[:3]}])
    assert alone.to_dict()["sections"] == split.to_dict()["sections"]


def test_progress_is_told_of_every_batch():
    seen: list[tuple[str, int, int]] = []
    report_of(token_batches(4, 2, 16, seed=0), progress=lambda *step: seen.append(step))
    assert seen == [("fitting", 1, 4), ("fitting", 2, 4), ("measuring", 3, 4), ("measuring", 4, 4)]


class Interrupting(PlantedCapture):
    """Presses Ctrl-C during the batch of a number."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def run(self, model, batch, receive) -> None:
        super().run(model, batch, receive)
        if self.batches == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("at, partial", [(2, False), (2, True), (5, False)])
def test_an_interruption_raises(at: int, partial: bool):
    """Without `partial`, and before anything is measured."""
    with pytest.raises(KeyboardInterrupt):
        inspect(
            PlantedModel(), token_batches(6, 2, 16, seed=0), capture=Interrupting(at), partial=partial, bounds=False,
            costs=False,
        )  # fmt: skip


def test_an_interruption_leaves_a_partial_report_on_request():
    batches = [*token_batches(6, 2, 16, seed=0), *token_batches(2, 2, 24, seed=1)]
    options: dict[str, Any] = {"bounds": False, "costs": False}
    report = inspect(PlantedModel(), batches, capture=Interrupting(5), partial=True, **options)
    assert not report.complete and [section.length for section in report.sections] == [16]
    assert report.section().measured_sequences == 4
    whole = inspect(PlantedModel(), batches[3:5], fit=batches[:3], capture=PlantedCapture(), **options)
    assert whole.complete and whole.section().layers == report.section().layers
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_tokens_are_those_of_the_sequence_shown_without_its_padding():
    ids = torch.tensor([[1] * 8, [0, 0, 4, 5, 6, 7, 8, 9]])
    mask = torch.tensor([[1] * 8, [0, 0, 1, 1, 1, 1, 1, 1]])
    batch = {"input_ids": ids, "attention_mask": mask}
    report = report_of([batch], fit=[batch], labels=lambda ids: [f"t{token}" for token in ids])
    assert report.sections[0].tokens == ("t4", "t5", "t6", "t7", "t8", "t9")
    assert report[0, 0].views.side == 6


@pytest.mark.parametrize(
    "batches, message",
    [
        ([], "batches: expected at least one batch, got none"),
        ([torch.zeros(2, 3)], "batches: expected mappings of tensors"),
        ([{"input_ids": torch.zeros(2, 0, dtype=torch.long)}], "at least one token"),
        ([{"input_ids": torch.zeros(1, 8, dtype=torch.long)}], "two sequences or more"),
        ([{"input_ids": torch.zeros(8, dtype=torch.long)}], r"tensors \(B, N, ...\)"),
    ],
)
def test_bad_batches(batches, message: str):
    with pytest.raises(ArgumentError, match=message):
        report_of(batches)


def test_a_length_without_batches_to_fit_on():
    with pytest.raises(ArgumentError, match=r"fit: expected batches of every length measured, \[24\]"):
        report_of(token_batches(2, 2, 24, seed=0), fit=token_batches(2, 2, 16, seed=0))


def test_a_model_that_nothing_captures():
    with pytest.raises(ArgumentError, match="model: expected a Hugging Face or timm model"):
        inspect(nn.Linear(2, 2), token_batches(2, 2, 8, seed=0))
    with pytest.raises(ArgumentError, match=r"model: expected a torch.nn.Module, got str"):
        inspect("bert", token_batches(2, 2, 8, seed=0))  # type: ignore[arg-type]


def test_weights_that_are_not_finite():
    model = PlantedModel()
    model.table.data[3] = torch.nan
    with pytest.raises(QuadformError, match=r"layer\.0: the attention output is not finite"):
        inspect(model, token_batches(2, 4, 32, seed=0), capture=PlantedCapture())


class WrongScale(PlantedCapture):
    """Says that scores were scaled by 0.51 when they were scaled by 0.5."""

    def run(self, model, batch, receive) -> None:
        def tell(captured: Captured) -> None:
            receive(
                Captured(captured.module, 0, captured.q, captured.k, captured.v, captured.keep, 0.51, captured.output)
            )

        super().run(model, batch, tell)


def test_a_capture_that_does_not_reproduce_the_model_is_refused():
    with pytest.raises(QuadformError, match="differs from what the model computed"):
        inspect(PlantedModel(), token_batches(2, 4, 32, seed=0), capture=WrongScale())


def test_part_of_a_sequence_is_refused():
    q, k = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 5, 2)
    with pytest.raises(QuadformError, match="layer: 3 queries attend to 5 keys"):
        Captured("layer", 0, q, k, k, torch.ones(1, 1, 3, 5, dtype=torch.bool), 1.0, q)
