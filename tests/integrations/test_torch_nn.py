"""Capture of plain PyTorch: it is the model, it explains the outputs, it misses no module, and it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from quadform import ArgumentError, QuadformError, inspect
from quadform.inspect import Captured, Grid, find_capture
from quadform.integrations.torch_nn import has_attention, torch_capture

CAPTURE = torch_capture()
N, WIDTH, HEADS = 10, 32, 4
NESTED = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sharpened(model: nn.Module) -> nn.Module:
    """In evaluation mode, with weights large enough that attention is far from uniform, and biases that are not 0."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "in_proj" in name or "_proj_weight" in name:
                parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def encoder(batch_first: bool = True, norm_first: bool = False, layers: int = 2) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=batch_first and not norm_first)
    return sharpened(model)  # type: ignore[return-value]


def padding(n: int = N, count: int = 4) -> torch.Tensor:
    """Torch's sense: True = masked; the last of three sequences is shorter."""
    mask = torch.zeros(3, n, dtype=torch.bool)
    mask[-1, n - count :] = True
    return mask


def causal(n: int = N, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return mask if dtype == torch.bool else torch.zeros(n, n).masked_fill(mask, -torch.inf)


def captured(model: nn.Module, inputs: dict[str, torch.Tensor], capture=CAPTURE) -> list[Captured]:
    calls: list[Captured] = []
    with torch.no_grad():
        assert capture.check(model, inputs) <= 1e-6
        capture.run(model, inputs, calls.append)
    return calls


def assert_explained(call: Captured) -> None:
    """The output is what the definition of `Captured` says, computed in float64."""
    q, k, v = call.q.double(), call.k.double(), call.v.double()
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = call.scaling * q @ k.transpose(-1, -2)
    if call.bias is not None:
        scores = scores + call.bias.double()
    scores = scores.masked_fill(~call.keep, -torch.inf)
    if call.sink is not None:
        column = call.sink.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    expected, rows = weights @ v, call.valid[:, None, :, None]
    torch.testing.assert_close(call.output.double() * rows, expected.nan_to_num() * rows, rtol=1e-4, atol=1e-5)
    assert float(weights.nan_to_num().amax()) > 0.3  # far from uniform


@NESTED
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32])
def test_an_encoder_is_captured(batch_first: bool, norm_first: bool, pad: bool, mask: torch.dtype | None):
    model, x = encoder(batch_first, norm_first), random(3, N, WIDTH)
    inputs = {"src": x if batch_first else x.transpose(0, 1)}
    if pad:
        kind = torch.float32 if mask == torch.float32 else torch.bool
        inputs["src_key_padding_mask"] = (
            padding() if kind == torch.bool else torch.zeros(3, N).masked_fill(padding(), -torch.inf)
        )
    if mask is not None:
        inputs["mask"] = causal(dtype=mask)
    calls = captured(model, inputs)
    assert [call.module for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    for call in calls:
        assert call.q.shape == (3, HEADS, N, WIDTH // HEADS)
        assert call.causal == (mask is not None) and not call.structured and not call.cross and call.bias is None
        assert torch.equal(call.valid, ~padding() if pad else torch.ones(3, N, dtype=torch.bool))
        assert_explained(call)


def test_queries_keys_and_values_are_the_projections_of_the_input():
    attention, x = sharpened(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)), random(2, N, WIDTH)
    assert isinstance(attention, nn.MultiheadAttention) and attention.in_proj_bias is not None
    with torch.no_grad():
        attention.in_proj_bias.copy_(random(3 * WIDTH, seed=3))
        (call,) = captured(attention, {"query": x, "key": x, "value": x})
        projected = (x.double() @ attention.in_proj_weight.double().T + attention.in_proj_bias.double()).chunk(3, -1)
        for ours, theirs in zip((call.q, call.k, call.v), projected, strict=True):
            expected = theirs.view(2, N, HEADS, -1).transpose(1, 2)
            torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)
        joined = call.output.transpose(1, 2).flatten(2)
        torch.testing.assert_close(attention.out_proj(joined), attention(x, x, x)[0], rtol=1e-4, atol=1e-5)
    assert call.module == "MultiheadAttention" and not call.cross and call.scaling == 8**-0.5
    assert_explained(call)


def test_an_encoder_and_decoder_are_captured_with_cross_attention():
    torch.manual_seed(0)
    model = sharpened(nn.Transformer(WIDTH, HEADS, 1, 2, 64, batch_first=True))
    source, target = random(3, N, WIDTH), random(3, 7, WIDTH, seed=1)
    calls = captured(
        model,
        {
            "src": source,
            "tgt": target,
            "tgt_mask": causal(7),
            "src_key_padding_mask": padding(),
            "memory_key_padding_mask": padding(),
            "tgt_key_padding_mask": padding(7, 2),
        },
    )
    assert [(call.module, call.cross, call.causal) for call in calls] == [
        ("encoder.layers.0.self_attn", False, False),
        ("decoder.layers.0.self_attn", False, True),
        ("decoder.layers.0.multihead_attn", True, False),
        ("decoder.layers.1.self_attn", False, True),
        ("decoder.layers.1.multihead_attn", True, False),
    ]
    for call in calls:
        assert_explained(call)
        assert torch.equal(call.valid, ~padding() if "encoder" in call.module else ~padding(7, 2))
        if call.cross:
            assert torch.equal(call.seen, ~padding())


def test_cross_attention_between_equal_lengths_is_no_self_attention():
    torch.manual_seed(0)
    model = sharpened(nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True), 1))
    x = random(2, N, WIDTH)
    calls = captured(model, {"tgt": x, "memory": random(2, N, WIDTH, seed=1)})
    assert [call.cross for call in calls] == [False, True]


class Custom(nn.Module):
    """Positions on queries and keys alone, as detectors have them, and weights that are used."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, x, mask=None, need_weights=True, average=True):
        q = k = x + torch.linspace(-1, 1, x.shape[1])[:, None]
        y, weights = self.attention(
            q, k, x, attn_mask=mask, need_weights=need_weights, average_attn_weights=average, is_causal=False
        )
        return {"y": (x + y,), "weights": weights} if need_weights else [x + y]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("mask", [False, True])
def test_a_module_of_one_s_own_is_captured(need_weights: bool, average: bool, zero: bool, mask: bool):
    inputs: dict[str, Any] = {"x": random(3, N, WIDTH), "need_weights": need_weights, "average": average}
    if mask:
        inputs["mask"] = random(3 * HEADS, N, N, seed=2).masked_fill(causal(), -torch.inf)
    (call,) = captured(sharpened(Custom(add_zero_attn=zero)), inputs)
    assert call.module == "attention" and not call.cross and call.causal == mask
    assert (call.sink is not None) == zero and (call.bias is not None) == mask
    assert call.keep.shape == (3, HEADS if mask else 1, N, N)
    assert_explained(call)


def test_widths_of_their_own_for_keys_and_values():
    model = sharpened(nn.MultiheadAttention(WIDTH, HEADS, bias=False, kdim=12, vdim=20))
    inputs = {"query": random(6, 2, WIDTH), "key": random(9, 2, 12), "value": random(9, 2, 20)}
    (call,) = captured(model, inputs)
    assert call.cross and call.q.shape == (2, HEADS, 6, 8) and call.k.shape == call.v.shape == (2, HEADS, 9, 8)
    assert_explained(call)


def test_a_sequence_without_a_batch():
    x = random(N, WIDTH)
    mask = padding()[-1]
    inputs = {"query": x, "key": x, "value": x, "key_padding_mask": mask}
    (call,) = captured(sharpened(nn.MultiheadAttention(WIDTH, HEADS)), inputs)
    assert call.q.shape == (1, HEADS, N, 8) and torch.equal(call.valid, ~mask[None])


def test_large_negative_scores_are_masks_and_small_ones_a_bias():
    model, x = sharpened(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)), random(2, N, WIDTH)
    inputs = {"query": x, "key": x, "value": x}
    (call,) = captured(model, {**inputs, "attn_mask": torch.zeros(N, N).masked_fill(causal(), -1e9)})
    assert call.causal and call.bias is None
    distance = (torch.arange(N)[:, None] - torch.arange(N)).abs().float()
    (call,) = captured(model, {**inputs, "attn_mask": -distance})
    assert not call.causal and call.bias is not None
    assert torch.equal(call.bias[0, 0], -distance)
    assert_explained(call)


class Grouped(nn.Module):
    """Grouped-query attention by PyTorch's function."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.queries, self.both = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None, scale=None, is_causal=True):
        q = self.queries(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = self.both(x).unflatten(-1, (2, 2, 8)).permute(2, 0, 3, 1, 4)
        options = {"attn_mask": mask, "is_causal": is_causal and mask is None, "enable_gqa": True}
        y = F.scaled_dot_product_attention(3 * q, 3 * k, v, scale=scale, **options)
        return x + y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("mask", [None, ~causal(), random(3, 1, N, N, seed=5)])
def test_modules_that_call_the_function_themselves_are_captured(scale: float | None, mask: torch.Tensor | None):
    model = nn.Sequential(Grouped().eval())
    calls: list[Captured] = []
    inputs: dict[str, Any] = {"x": random(3, N, WIDTH), "mask": mask, "scale": scale}
    with torch.no_grad():
        assert CAPTURE.check(model[0], inputs) <= 1e-6
        CAPTURE.run(model[0], inputs, calls.append)
    (call,) = calls
    assert call.q.shape[1] == 4 and call.k.shape[1] == 2
    assert call.scaling == (8**-0.5 if scale is None else 0.7)
    assert call.causal == (mask is None or mask.dtype == torch.bool)
    assert_explained(call)


def test_an_input_of_an_unknown_name_is_the_first_argument():
    model, grid = nn.Sequential(Grouped()).eval(), Grid((3, 3), special=1)
    (call,) = captured(model, {"pixel_values": random(2, N, WIDTH)}, torch_capture(grid))
    assert call.module == "0" and call.grid == grid
    (call,) = captured(model, {"pixel_values": random(2, N + 1, WIDTH)}, torch_capture(grid))
    assert call.grid is None


@NESTED
@pytest.mark.parametrize("pad", [False, True])
@torch.no_grad()
def test_the_fused_encoder_layer_is_not_missed(pad: bool, monkeypatch: pytest.MonkeyPatch):
    """In evaluation torch runs a whole encoder layer as one kernel, which never calls the attention module."""
    fused: list[int] = []
    kernel = torch._transformer_encoder_layer_fwd

    def count(*args):
        fused.append(1)
        return kernel(*args)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", count)
    model, inputs = encoder(), {"src": random(3, N, WIDTH)}
    if pad:
        inputs["src_key_padding_mask"] = padding()
    model(**inputs)
    assert len(fused) == 2
    assert 0 <= CAPTURE.check(model, inputs) <= 1e-6
    assert len(fused) == 4  # the model's own run is the fused one
    calls: list[Captured] = []
    CAPTURE.run(model, inputs, calls.append)
    assert len(fused) == 4 and len(calls) == 2
    assert torch.backends.mha.get_fastpath_enabled()


@torch.no_grad()
def test_nothing_is_left_behind_when_the_receiver_fails():
    model = encoder()

    def fail(_: Captured) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CAPTURE.run(model, {"src": random(2, N, WIDTH)}, fail)
    assert torch.backends.mha.get_fastpath_enabled()
    assert not torch.nn.modules.module._global_forward_pre_hooks and not torch.nn.modules.module._global_forward_hooks
    assert len(captured(model, {"src": random(2, N, WIDTH)})) == 2


@torch.no_grad()
def test_a_shared_module_has_its_calls_numbered():
    model = encoder()
    model.layers[1] = model.layers[0]
    assert [call.call for call in captured(model, {"src": random(2, N, WIDTH)})] == [0, 1]


@torch.no_grad()
def test_a_wrong_capture_is_noticed(monkeypatch: pytest.MonkeyPatch):
    from quadform.integrations import _attention_calls

    fused = _attention_calls.fused
    monkeypatch.setattr(_attention_calls, "fused", lambda call: fused(call._replace(scaling=1.0)))
    with pytest.raises(QuadformError, match="TransformerEncoder: the captured computation changes its output by"):
        CAPTURE.check(encoder(), {"src": random(2, N, WIDTH)})


@NESTED
@torch.no_grad()
def test_what_padding_holds_does_not_matter_to_the_check():
    """torch leaves zeros in the padded rows of a fused run without a last norm, and numbers in those of a plain one."""
    model, x, mask = encoder(layers=1), random(3, N, WIDTH), padding()
    assert not model(x, src_key_padding_mask=mask)[mask].any()
    assert CAPTURE.check(model, {"src": x, "src_key_padding_mask": mask}) <= 1e-6


def test_a_report_on_an_encoder():
    batches = [{"src": random(4, 16, WIDTH, seed=seed)} for seed in range(2)]
    report = inspect(encoder(), batches)
    assert report.reproduction <= 1e-6
    assert [layer.module for layer in report.section().layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert len(list(report.heads())) == 2 * HEADS
    assert "window-32" in report.section().layers[0].refusals  # it holds all of 16 tokens
    for head in report.heads():
        assert head.error("mean") > 0.01 and head.error("kernel-taylor2") > 0.001


def refused(model: Any, message: str, **inputs: Any) -> None:
    with pytest.raises(QuadformError, match=message), torch.no_grad():
        CAPTURE.run(model, inputs, lambda _: None)


def test_refusals_of_one_call():
    x = random(3, N, WIDTH)
    same = {"query": x, "key": x, "value": x}
    plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    refused(nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True).eval(), "its attention has bias_k and bias_v", **same)
    refused(plain, "NaN or infinity in its attention mask", attn_mask=torch.full((N, N), torch.nan), **same)
    refused(plain, "is_causal without the causal attn_mask", is_causal=True, **same)
    refused(plain, "is_causal without the causal", is_causal=True, attn_mask=causal().T, need_weights=False, **same)
    refused(nn.MultiheadAttention(WIDTH, HEADS), "a model in evaluation mode", **same)


def test_dropout_in_one_module_is_refused():
    model = Custom(dropout=0.1).eval()
    model.attention.train()
    refused(model, "attention: attention dropout of 0.1 is on", x=random(2, N, WIDTH))


@NESTED
def test_a_nested_tensor_is_refused():
    nested = torch.nested.nested_tensor([random(4, WIDTH), random(6, WIDTH)])
    refused(encoder(), r"layers\.0\.self_attn: a nested tensor", src=nested)


def test_modules_that_never_run_are_named():
    model = encoder()
    model.add_module("spare", nn.MultiheadAttention(WIDTH, HEADS).eval())
    refused(model, r"never ran in capture.*: spare$", src=random(2, N, WIDTH))


class ByHand(nn.Module):
    """Attention that calls no function of PyTorch's."""

    def forward(self, x):
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


class WithModule(nn.Module):
    """The same with a softmax that is a module."""

    def __init__(self):
        super().__init__()
        self.normalise = nn.Softmax(-1)

    def forward(self, x):
        return torch.einsum("bij,bjd->bid", self.normalise(torch.einsum("bid,bjd->bij", x, x)), x)


@pytest.mark.parametrize("kind", [ByHand, WithModule])
def test_attention_by_hand_is_refused_by_name(kind: type[nn.Module]):
    model = nn.Sequential(Grouped(), kind()).eval()
    refused(model, rf"1 \(.*{kind.__name__}\) computes attention in its own way", input=random(2, N, WIDTH))
    assert has_attention(kind())


def helper(x: torch.Tensor) -> torch.Tensor:
    """Attention by hand, outside any module."""
    return (x @ x.transpose(1, 2)).softmax(-1) @ x


class WithHelper(nn.Module):
    """Attention that its forward does not show."""

    def forward(self, x):
        return helper(x)


def test_attention_by_hand_in_a_helper_is_noticed_when_it_runs():
    model = nn.Sequential(Grouped(), WithHelper()).eval()
    refused(model, "^1 computes attention in its own way beside PyTorch's", input=random(2, N, WIDTH))


class Experts(nn.Module):
    """A mixture: a softmax that is no attention."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return sum(weights[..., at, None] * expert(x) for at, expert in enumerate(self.experts))


def test_a_softmax_that_is_no_attention_is_let_through():
    calls = captured(nn.Sequential(Grouped(), Experts()).eval(), {"input": random(2, N, WIDTH)})
    assert [call.module for call in calls] == ["0"]


class Folded(nn.Module):
    """Heads folded into the batch."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.0)


class Dropping(nn.Module):
    """Dropout that does not ask whether it trains."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.1)


def test_shapes_and_dropout_of_the_function_are_refused():
    refused(Folded().eval(), r"queries are \(2, 10, 32\)", x=random(2, N, WIDTH))
    refused(Dropping().eval(), "attention dropout of 0.1 is on", x=random(2, N, WIDTH))


def test_compiled_modules_are_refused():
    refused(torch.compile(encoder(), backend="eager"), "a compiled module", src=random(2, N, WIDTH))
    model = encoder()
    model.compile(backend="eager")
    refused(model, "a compiled module", src=random(2, N, WIDTH))


class Silent(nn.Module):
    """Returns no tensor."""

    def __init__(self):
        super().__init__()
        self.inside = Grouped()

    def forward(self, x):
        self.inside(x)


def test_a_model_without_attention_or_output_is_refused():
    refused(nn.Linear(4, 4).eval(), "Linear: no module calls PyTorch's attention functions", input=random(2, 4))
    assert not has_attention(nn.Linear(4, 4))

    with pytest.raises(QuadformError, match=r"Silent returned no floating-point tensor"), torch.no_grad():
        CAPTURE.check(Silent().eval(), {"x": random(2, N, WIDTH)})


def test_values_that_are_not_finite_are_refused():
    model = encoder()
    with torch.no_grad():
        model.layers[0].linear1.weight[0, 0] = torch.nan
        with pytest.raises(QuadformError, match="its output is not finite"):
            CAPTURE.check(model, {"src": random(2, N, WIDTH)})


def test_the_adapter_is_found_by_the_model_s_kind():
    capture = find_capture(encoder())
    assert type(capture) is type(CAPTURE)
    with pytest.raises(ArgumentError, match="model"):
        find_capture(nn.Linear(4, 4))
