"""Capture is exact, notices every mask, refuses what it does not know, and leaves the model as it was."""

from __future__ import annotations

import pytest
import torch
import transformers
from tests.integrations.models import albert_directory, batch, reaction_batches, tiny

from quadform import ArgumentError, QuadformError
from quadform.inspect import Captured, find_capture, inspect
from quadform.integrations.hugging_face import HuggingFaceCapture
from quadform.integrations.hugging_face._attention import NAME
from quadform.integrations.hugging_face._capture import attention_modules, capturing

CAPTURE = HuggingFaceCapture()


def captured(model, inputs) -> list[Captured]:
    calls: list[Captured] = []
    with torch.no_grad():
        CAPTURE.run(model, inputs, calls.append)
    return calls


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "mistral"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padding, left", [(0, False), (5, False), (5, True)])
@torch.no_grad()
def test_the_captured_run_is_the_model(kind: str, implementation: str, padding: int, left: bool):
    model = tiny(kind)
    model.set_attn_implementation(implementation)
    inputs = batch(padding=padding, left=left)
    assert CAPTURE.check(model, inputs) <= 1e-6
    own = model(**inputs).last_hidden_state
    with capturing(model, inputs, lambda _: None):
        ours = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].bool()
    torch.testing.assert_close(ours[mask], own[mask], rtol=0, atol=2e-5 if implementation == "sdpa" else 0)
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("kind, causal", [("bert", False), ("gpt2", True), ("llama", True)])
@pytest.mark.parametrize("padding", [0, 5])
def test_what_is_captured_gives_the_output(kind: str, causal: bool, padding: int):
    model, inputs = tiny(kind), batch(padding=padding)
    calls = captured(model, inputs)
    assert [call.module for call in calls] == attention_modules(model)
    for call in calls:
        assert call.causal == causal and not call.structured
        assert torch.equal(call.valid, inputs["attention_mask"].bool())
        groups = call.q.shape[1] // call.k.shape[1]
        assert groups == (2 if kind == "llama" else 1)
        k, v = call.k.double().repeat_interleave(groups, 1), call.v.double().repeat_interleave(groups, 1)
        scores = call.scaling * call.q.double() @ k.transpose(-1, -2)
        y = scores.masked_fill(~call.keep, -torch.inf).softmax(-1) @ v
        torch.testing.assert_close(call.output.double(), y, rtol=1e-4, atol=1e-5)


def test_a_sliding_window_is_in_the_mask():
    call = captured(tiny("mistral"), batch())[0]
    assert call.causal and call.structured
    lag = torch.arange(20)[:, None] - torch.arange(20)
    assert torch.equal(call.keep[0, 0], (lag >= 0) & (lag < 6))


def test_the_sliding_window_is_plain_where_it_does_not_bind():
    assert not captured(tiny("mistral"), batch(n=6))[0].structured


@torch.no_grad()
def test_a_missing_mask_function_is_noticed():
    """transformers passes no mask at all to an attention function without a mask function of its name."""
    model, inputs = tiny("bert"), batch(padding=5)
    mapping = transformers.AttentionMaskInterface._global_mapping
    with capturing(model, inputs, lambda _: None):
        function = mapping.pop(NAME)
        try:
            wrong = model(**inputs).last_hidden_state
        finally:
            mapping[NAME] = function
    own, mask = model(**inputs).last_hidden_state, inputs["attention_mask"].bool()
    assert (wrong - own)[mask].abs().max() > 1e-3


def test_a_causal_module_without_a_mask_is_refused():
    with pytest.raises(QuadformError, match="came without a mask"), capturing(tiny("gpt2"), batch(), lambda _: None):
        _causal_call(None)


class CausalModule(torch.nn.Module):
    """As attention modules of decoders say it."""

    is_causal = True


def _causal_call(mask, **options):
    from quadform.integrations.hugging_face._attention import active, attention

    recorder = active.get()
    assert recorder is not None
    module = CausalModule()
    recorder.names[id(module)] = "layer"
    q = torch.zeros(1, 2, 4, 8)
    return attention(module, q, q, q, mask, **options)


@pytest.mark.parametrize("argument", ["head_mask", "sinks", "anything_new"])
def test_unknown_arguments_are_refused_by_name(argument: str):
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    with (
        pytest.raises(QuadformError, match=f"layer: its attention takes {argument}"),
        capturing(tiny("bert"), batch(), lambda _: None),
    ):
        _causal_call(mask, **{argument: torch.zeros(1)})


@pytest.mark.parametrize("argument, message", [("position_bias", r"position_bias is \(1,\)"), ("s_aux", "s_aux has 1")])
def test_known_arguments_of_an_unknown_shape_are_refused(argument: str, message: str):
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    with pytest.raises(QuadformError, match=f"layer: its {message}"), capturing(tiny("bert"), batch(), lambda _: None):
        _causal_call(mask, **{argument: torch.zeros(1)})


def test_a_mask_may_be_a_bias():
    calls: list[Captured] = []
    mask = torch.full((1, 1, 4, 4), -0.5)
    mask[..., 2:] = torch.finfo(torch.float32).min
    with pytest.raises(QuadformError, match="never ran"), capturing(tiny("bert"), batch(), calls.append):
        _causal_call(mask, softcap=None)
    assert calls[0].bias is not None and torch.equal(calls[0].bias[..., :2], mask[..., :2])
    assert calls[0].keep[0, 0, 0].tolist() == [True, True, False, False]


def test_dropout_is_refused():
    with pytest.raises(QuadformError, match=r"dropout of 0\.1 is on"), capturing(tiny("bert"), batch(), lambda _: None):
        _causal_call(torch.zeros(1, 1, 4, 4), dropout=0.1, softcap=None)


def test_encoder_decoder_models_are_inspected_whole():
    """T5: a position bias in every self-attention; BART: cross-attention by its name even between equal lengths."""
    inputs = [{**batch(seed=seed), "decoder_input_ids": batch(seed=seed + 5)["input_ids"]} for seed in (0, 1)]
    report = inspect(tiny("t5"), inputs, bounds=False, costs=False)
    assert [(layer.role, layer.causal, layer.extras) for layer in report.section().layers] == [
        ("self", False, ("bias",)), ("self", True, ("bias",)), ("cross", False, ())
    ]  # fmt: skip
    report = inspect(tiny("bart"), inputs, bounds=False, costs=False)
    assert [(layer.role, layer.causal) for layer in report.section().layers] == [
        ("self", False), ("self", True), ("cross", False)
    ]  # fmt: skip
    assert set(report[2, 0].errors) == {"mean", "graph-16", "kernel-taylor2", "nystrom-16", "top-16", "rank-16"}


def test_a_soft_cap_is_inspected():
    report = inspect(tiny("gemma2"), [batch(), batch(seed=1)], bounds=False, costs=False)
    assert {layer.extras for layer in report.section().layers} == {("softcap",)}
    assert "soft cap" in report.section().layers[0].refusals["kernel-taylor2"]


def test_a_model_outside_the_interface_is_refused():
    with pytest.raises(QuadformError, match="BloomModel computes attention in its own way"):
        inspect(tiny("bloom"), [batch(), batch(seed=1)], costs=False)


def test_a_module_that_never_runs_is_named():
    model = tiny("bert")
    model.config.num_hidden_layers = 1
    spare = tiny("bert").encoder.layer[0].attention
    model.add_module("spare", spare)
    with pytest.raises(QuadformError, match=r"never ran in capture: spare\.self"):
        captured(model, batch())


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ArgumentError, match=r"model: expected a model in evaluation mode"):
        captured(tiny("bert").train(), batch())


def test_the_model_is_restored_when_the_receiver_fails():
    model = tiny("gpt2")

    def fail(_: Captured) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CAPTURE.run(model, batch(), fail)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(QuadformError, match="only inside quadform's capture"):
        model.set_attn_implementation(NAME)
        model(**batch())


def test_nan_weights_are_refused():
    model = tiny("llama")
    model.layers[1].self_attn.v_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(QuadformError, match="not finite"):
        inspect(model, [batch(), batch(seed=1)], costs=False)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "mistral"])
def test_inspection_of_every_shape_of_model(kind: str):
    report = inspect(tiny(kind), [batch(n=16), batch(n=16, seed=1)], costs=False)
    assert report.reproduction <= 1e-6
    layers = report.section().layers
    assert [len(layer.heads) for layer in layers] == [4, 4]
    assert {layer.causal for layer in layers} == {kind != "bert"}
    assert {layer.structured for layer in layers} == {kind == "mistral"}
    for layer in layers:
        for form in ("window-32", "window-32+sinks", "hybrid-32", "graph-16", "top-16", "rank-16"):
            assert layer.refusals[form] == "16 tokens are not more than it keeps"
    for head in report.heads():
        assert head.error("mean") > 0.01 and head.error("kernel-taylor2") > 0.001


def test_inspection_in_bfloat16():
    report = inspect(tiny("llama").to(torch.bfloat16), [batch(), batch(seed=1)], costs=False)
    assert report.reproduction <= torch.finfo(torch.bfloat16).eps


def test_a_shared_module_is_reported_once_a_call():
    """The trained ALBERT runs one attention module twelve times."""
    model = transformers.AutoModel.from_pretrained(albert_directory(), local_files_only=True).eval()
    assert isinstance(find_capture(model), HuggingFaceCapture)
    report = inspect(model, reaction_batches(), costs=False)
    layers = report.section().layers
    assert len({layer.module for layer in layers}) == 1
    assert [layer.call for layer in layers] == list(range(12))
    assert report.reproduction <= 1e-6
    assert len(report.heads()) == 96
    errors = [head.error("mean") for head in report.heads()]
    assert min(errors) > 0.01 and max(errors) > 0.5
    assert report.summary()["top-16"]["20%"] > report.summary()["convolution-15"]["20%"]
