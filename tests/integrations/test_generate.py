"""Generation with states: the same tokens as the parallel form, in constant memory, on stock decoders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.integrations.causal import KINDS, decoder, plans, prompt
from tests.integrations.models import tiny

import quadform as qf
from quadform import ArgumentError, QuadformError, Refused
from quadform.integrations.hugging_face import StateCache, load_cache, read_mixers, save_cache, with_mixers

KERNEL = qf.Causal(), qf.Kernel("elu1")
PLANS = tuple(plans("llama"))
CONSTANT = ("kernel", "window", "hybrid", "retention", "relative", "convolution", "mixed")


def greedy(model: Any, inputs: dict[str, torch.Tensor], tokens: int = 24, **options: Any) -> torch.Tensor:
    out: torch.Tensor = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, **options)
    return out


@torch.no_grad()
def logits(
    model: Any, inputs: dict[str, torch.Tensor], cache: Any = None, chunks: tuple[int, ...] = ()
) -> torch.Tensor:
    """(B, N, V), in chunks through a cache where one is given."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    if cache is None:
        out: torch.Tensor = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        return out
    parts, start = [], 0
    for size in chunks:
        now = slice(start, start + size)
        start += size
        parts.append(
            model(
                input_ids=ids[:, now],
                attention_mask=mask[:, :start],
                position_ids=positions[:, now],
                cache=cache,
            ).logits
        )
    return torch.cat(parts, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", PLANS)
def test_states_give_the_tokens_of_the_parallel_form(kind: str, plan: str):
    model, inputs = decoder(kind), prompt()
    stock = greedy(model, inputs)
    with with_mixers(model, plans(kind)[plan]) as mixed:
        cache = mixed.cache()
        assert isinstance(cache, StateCache)
        streamed = greedy(model, inputs, cache=cache)
        assert torch.equal(streamed, greedy(model, inputs, use_cache=False))
        assert torch.equal(streamed, greedy(model, inputs)), "keys and values in transformers' own cache"
    assert torch.equal(streamed, stock) == (plan == "softmax")
    assert torch.equal(stock, greedy(model, inputs)), "the model has its own attention again"


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_the_cache_under_its_older_name():
    model, inputs = decoder("llama"), prompt()
    with with_mixers(model, KERNEL) as mixed:
        cache = mixed.cache()
        assert torch.equal(greedy(model, inputs, past_key_values=cache), greedy(model, inputs, cache=mixed.cache()))
        assert cache.seen == 32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", PLANS)
def test_padding_on_the_left_changes_nothing_in_any_chunks(kind: str, plan: str):
    model, inputs = decoder(kind), prompt(2, 50, padding=11)
    alone = {"input_ids": inputs["input_ids"][1:, 11:], "attention_mask": torch.ones(1, 39, dtype=torch.int64)}
    with with_mixers(model, plans(kind)[plan]) as mixed:
        whole, single = logits(model, inputs), logits(model, alone)
        chunked = logits(model, inputs, mixed.cache(), (7, 1, 20, 3, 19))
    torch.testing.assert_close(whole[1:, 11:], single, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(chunked[0], whole[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(chunked[1, 11:], whole[1, 11:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plan", PLANS)
def test_beams(plan: str):
    model, inputs = decoder("llama"), prompt()
    with with_mixers(model, plans("llama")[plan]) as mixed:
        beams = greedy(model, inputs, cache=mixed.cache(), num_beams=3)
        assert torch.equal(beams, greedy(model, inputs, use_cache=False, num_beams=3))


@pytest.mark.parametrize("plan", PLANS)
def test_state_bytes_stay_constant_where_the_mixers_do(plan: str):
    model, inputs = decoder("llama"), prompt()
    sizes = []
    with with_mixers(model, plans("llama")[plan]) as mixed:
        for tokens in (20, 60):
            cache = mixed.cache()
            greedy(model, inputs, tokens, cache=cache)
            assert cache.seen == cache.get_seq_length() == 9 + tokens - 1
            sizes.append(cache.nbytes)
    assert (sizes[0] == sizes[1]) == (plan in CONSTANT)


def test_a_batch_is_repeated_and_selected():
    model, inputs = decoder("llama"), prompt()
    rows = torch.tensor([1, 1, 0, 0])
    with with_mixers(model, plans("llama")["mixed"]) as mixed:
        cache, longer = mixed.cache(), mixed.cache()
        logits(model, inputs, cache, (9,))
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([2, 3, 0, 1]))
        picked = {name: x[rows] for name, x in inputs.items()}
        logits(model, picked, longer, (9,))
        assert cache.batch_size == longer.batch_size == 4
        for name, state in cache.states().items():
            other = longer.states()[name]
            assert torch.equal(state.length, other.length)
            for key, x in state.tensors.items():
                torch.testing.assert_close(x, other.tensors[key], msg=f"{name} {key}")
        cache.reset()
        assert cache.batch_size == -1 and cache.nbytes == cache.seen == 0


@pytest.mark.parametrize("method", ["prompt_lookup_num_tokens", "assistant_model"])
def test_what_takes_tokens_back_is_refused(method: str):
    model = decoder("llama")
    options = {method: decoder("llama") if method == "assistant_model" else 2}
    inputs = prompt(1, padding=0)
    with with_mixers(model, KERNEL) as mixed:
        with pytest.raises((QuadformError, ValueError), match="take tokens back|cache that can be cropped"):
            greedy(model, inputs, cache=mixed.cache(), **options)
        cache = mixed.cache()
        logits(model, inputs, cache, (9,))
        cache.crop(0)
        with pytest.raises(QuadformError, match="assisted decoding, prompt lookup and contrastive search"):
            cache.crop(-1)


def test_the_scale_of_the_model_is_used():
    """GPT-2 can divide its scores by the layer's number."""
    model, inputs = decoder("gpt2", scale_attn_by_inverse_layer_idx=True), prompt()
    with with_mixers(model) as mixed:
        ours = logits(model, inputs)
        scales = [group.weights.scale for mixers in mixed.modules.values() for group in mixers.groups]  # type: ignore[attr-defined]
    assert scales == pytest.approx([8**-0.5, 8**-0.5 / 2])
    torch.testing.assert_close(ours[0], logits(model, inputs)[0], rtol=1e-4, atol=1e-4)


def test_the_heads_of_a_group_are_the_model_s():
    """Softmax in two groups, in another order than the heads', is the model."""
    model, inputs = decoder("gpt2"), prompt()
    softmax = qf.Causal(), qf.Softmax()
    with with_mixers(model, {0: [((3, 1), softmax), ((0,), softmax)], "transformer.h.1.attn": softmax}):
        ours = logits(model, inputs)
    torch.testing.assert_close(ours[0], logits(model, inputs)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_a_sliding_window_is_respected_or_refused(kind: str):
    model, inputs = decoder(kind), prompt(2, 20)
    own, tokens = logits(model, inputs), greedy(model, inputs)
    with with_mixers(model) as mixed:
        torch.testing.assert_close(logits(model, inputs)[0], own[0], rtol=1e-4, atol=1e-4)
        assert torch.equal(tokens, greedy(model, inputs, cache=mixed.cache()))
    with with_mixers(model, {0: (qf.Window(3), qf.Softmax())}) as mixed:
        assert torch.equal(greedy(model, inputs, cache=mixed.cache()), greedy(model, inputs, use_cache=False))
    for edges in (qf.Causal(), qf.Window(6), qf.Window(2, sinks=1)):
        with pytest.raises(QuadformError, match=r"has a sliding window of 6 keys, and .* reaches beyond it"):
            with_mixers(model, {0: (edges, qf.Softmax())})
    assert torch.equal(tokens, greedy(model, inputs)), "a refusal leaves the model as it was"


def test_a_soft_cap_is_respected_or_refused():
    model, inputs = decoder("gemma2", attn_logit_softcapping=0.5), prompt()
    own = logits(model, inputs)
    with with_mixers(model):
        torch.testing.assert_close(logits(model, inputs)[0], own[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(QuadformError, match="soft cap of 0.5, which Kernel"):
        with_mixers(model, {1: KERNEL})


@torch.no_grad()
def test_masks_that_a_mixer_would_not_follow_are_refused():
    model, inputs = decoder("llama"), prompt(2, 12)
    causal = torch.ones(12, 12, dtype=torch.bool).tril()[None, None].expand(2, 1, -1, -1)
    packed = torch.arange(6).repeat(2)[None].expand(2, -1)
    with with_mixers(model, KERNEL) as mixed:
        expected = model(input_ids=inputs["input_ids"], use_cache=False).logits
        same = model(input_ids=inputs["input_ids"], attention_mask=causal, use_cache=False).logits
        torch.testing.assert_close(same, expected, rtol=1e-4, atol=1e-4)
        added = torch.zeros(2, 1, 12, 12).masked_fill(~causal, torch.finfo(torch.float32).min)
        same = model(input_ids=inputs["input_ids"], attention_mask=added, use_cache=False).logits
        torch.testing.assert_close(same, expected, rtol=1e-4, atol=1e-4)
        with pytest.raises(QuadformError, match="its mask is not causal"):
            model(input_ids=inputs["input_ids"], attention_mask=causal.triu(-3), use_cache=False)
        with pytest.raises(QuadformError, match="its mask adds numbers"):
            model(input_ids=inputs["input_ids"], attention_mask=added.masked_fill(causal, 0.5), use_cache=False)
        with pytest.raises(QuadformError, match="its mask is not causal"):
            model(input_ids=inputs["input_ids"], position_ids=packed, use_cache=False)
        with pytest.raises(QuadformError, match="a mask of four dimensions"):
            model(input_ids=inputs["input_ids"], attention_mask=causal, cache=mixed.cache())
        with pytest.raises(QuadformError, match="output_attentions must be off"):
            model(**inputs, output_attentions=True, use_cache=False)
        with pytest.raises(QuadformError, match="takes surprise, which a mixer does not know"):
            model(**inputs, surprise=1, use_cache=False)


def test_dropout_in_training():
    model = decoder("llama", attention_dropout=0.5)
    inputs = prompt()
    with with_mixers(model, {0: KERNEL}) as mixed:
        model.train()
        torch.manual_seed(0)
        first = model(**inputs, use_cache=False).logits
        assert not torch.equal(first, model(**inputs, use_cache=False).logits)
        with pytest.raises(QuadformError, match="attention dropout of 0.5 is on"):
            model(**inputs, cache=mixed.cache())


def test_preparation_leaves_modes_alone():
    model = decoder("llama").train()
    model.model.layers[1].eval()
    with with_mixers(model, KERNEL):
        assert model.training and not model.model.layers[1].training


@pytest.mark.parametrize(
    "mixers, message",
    [
        ((qf.Window(3, 3), qf.Softmax()), "causal edges for"),
        ((qf.All(), qf.Kernel()), "causal edges for"),
        ({2: KERNEL}, "layers from 0 to 1, or names such as model.layers.0.self_attn"),
        ({"model.layers.0": KERNEL}, "layers from 0 to 1"),
        ({0: KERNEL, "model.layers.0.self_attn": KERNEL}, "once each"),
        ({0: [((0, 0), KERNEL)]}, "each of the 2 key-value heads"),
        ({0: [((2,), KERNEL)]}, "each of the 2 key-value heads"),
        ({0: [((), KERNEL)]}, "numbers of key-value heads"),
        ({0: [KERNEL]}, "pairs"),
        ({0: "Causal()"}, "a list of"),
        ("Causal()", "a mapping from layers to mixers"),
        ({0: (qf.Window(4), qf.Softmax(content=False, bias=qf.Table(4, 0)))}, "'table'"),
    ],
)
def test_wrong_mixers(mixers: Any, message: str):
    model = decoder("llama")
    with pytest.raises(ArgumentError, match=message):
        with_mixers(model, mixers)
    assert model.config._attn_implementation == "sdpa"
    assert not any(hasattr(module, "quadform_mixers") for module in model.modules())


def test_models_that_cannot_be_mixed():
    with pytest.raises(ArgumentError, match="a model of transformers"):
        with_mixers(torch.nn.Linear(2, 2), KERNEL)
    with pytest.raises(ArgumentError, match="without cross-attention"):
        with_mixers(tiny("t5"), KERNEL)
    with pytest.raises(QuadformError, match="computes attention in its own way"):
        with_mixers(tiny("bloom"), KERNEL)
    with pytest.raises(QuadformError, match="not causal"):
        with_mixers(tiny("bert"), KERNEL)
    model = decoder("llama")
    with with_mixers(model, KERNEL), pytest.raises(ArgumentError, match="without mixers"):
        with_mixers(model, KERNEL)


def test_modules_that_do_not_call_the_function_are_noticed():
    model = decoder("llama")
    model.model.layers[1].self_attn.config = decoder("llama").config
    own = model.model.layers[1].self_attn
    own.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(QuadformError, match="do not call the registered function: model.layers.1.self_attn"):
        with_mixers(model, KERNEL)


def test_a_mixer_without_a_state_is_refused_by_name():
    model, inputs = decoder("llama"), prompt()
    with with_mixers(model, {1: (qf.Causal() & qf.TopK(3), qf.Softmax())}) as mixed:
        assert greedy(model, inputs, use_cache=False).shape == (2, 33)
        with pytest.raises(Refused, match=r"model.layers.1.self_attn: .*TopK\(3\).* keeps no state"):
            mixed.cache()


def test_a_cache_ends_with_its_model():
    model, inputs = decoder("llama"), prompt()
    mixed = with_mixers(model, KERNEL)
    cache = mixed.cache()
    mixed.restore()
    mixed.restore()
    with pytest.raises(QuadformError, match="has its own attention again"):
        greedy(model, inputs, cache=cache)


def test_keys_that_lose_their_way_are_noticed():
    with with_mixers(decoder("llama"), KERNEL) as mixed:
        cache = mixed.cache()
        x = torch.zeros(1, 2, 1, 8)
        cache.layers[0].update(x, x)
        with pytest.raises(QuadformError, match="never reached its mixers"):
            cache.layers[0].update(x, x)


@pytest.mark.parametrize("plan", PLANS)
def test_a_saved_cache_goes_on(plan: str, tmp_path):
    model, inputs = decoder("qwen3"), prompt()
    file = tmp_path / "state"
    with with_mixers(model, plans("qwen3")[plan]) as mixed:
        whole = greedy(model, inputs, 16, cache=mixed.cache())
        cache = mixed.cache()
        part = greedy(model, inputs, 7, cache=cache)
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, 7, dtype=torch.int64)], 1)
        save_cache(cache, file, part, mask)
    with with_mixers(decoder("qwen3"), plans("qwen3")[plan]) as mixed:
        loaded, rest = load_cache(mixed, file)
        assert loaded.nbytes == cache.nbytes
        assert all(torch.equal(rest[name], x) for name, x in (("input_ids", part), ("attention_mask", mask)))
        assert torch.equal(greedy(mixed.model, rest, 9, cache=loaded), whole)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_files_that_do_not_fit(tmp_path):
    model, inputs = decoder("llama"), prompt()
    file = tmp_path / "state"
    with with_mixers(model, KERNEL) as mixed:
        cache = mixed.cache()
        logits(model, inputs, cache, (9,))
        ids = inputs["input_ids"]
        for wrong in (ids[:, 1:], ids[:1]):
            with pytest.raises(ArgumentError, match="2 rows of at least 9 tokens"):
                save_cache(cache, file, wrong)
        with pytest.raises(ArgumentError, match="attention_mask"):
            save_cache(cache, file, ids, ids[:, 1:])
        with pytest.raises(QuadformError, match="cannot be written"):
            save_cache(cache, tmp_path / "no" / "folder", ids)
        save_cache(cache, file, ids)
        tensors = load_file(file)
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        for changes, without, message in (
            ({"schema": "another"}, "", "a file of schema"),
            ({"model": "another"}, "", "a file that this model wrote"),
            ({"seen": "10"}, "", "tokens"),
            ({"seen": "x"}, "", "a file that save_cache wrote"),
            ({"states": "{}"}, "", "for layer and group 0.0"),
            ({}, "tokens", "a file of schema"),
            ({}, "1.0.S", "'S'"),
        ):
            kept = {name: x for name, x in tensors.items() if name != without}
            save_file(kept, file, metadata | changes)
            with pytest.raises(ArgumentError, match=message):
                load_cache(mixed, file)
        save_file(tensors | {"tokens": ids[:1].int(), "mask": ids[:1].bool()}, file, metadata)
        with pytest.raises(ArgumentError, match="2 rows of tokens"):
            load_cache(mixed, file)


@pytest.mark.parametrize("plan", ["kernel", "mixed"])
def test_a_compiled_model_neither_breaks_nor_compiles_again(plan: str, monkeypatch):
    """The prompt and the following tokens have a graph each, whose mask grows."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    model, inputs = decoder("llama"), prompt(2, 12)
    with with_mixers(model, plans("llama")[plan]) as mixed:
        expected = greedy(model, inputs, 60, cache=mixed.cache())
        reset()
        counters.clear()
        monkeypatch.setattr(model, "forward", torch.compile(model.forward, backend="eager"))
        few = greedy(model, inputs, 6, cache=mixed.cache())
        graphs = counters["stats"]["unique_graphs"]
        many = greedy(model, inputs, 60, cache=mixed.cache())
    assert graphs > 0 and counters["stats"]["unique_graphs"] == graphs and not counters["graph_break"]
    assert torch.equal(many, expected) and torch.equal(few, expected[:, :18])


def test_transformers_static_cache():
    """Its keys have room for tokens to come, which the mask leaves out."""
    model, inputs = decoder("llama"), prompt()
    for plan in ("kernel", "window", "some"):
        with with_mixers(model, plans("llama")[plan]):
            static = greedy(model, inputs, cache_implementation="static")
            assert torch.equal(static, greedy(model, inputs, use_cache=False))


def test_the_page_s_code_runs(tmp_path, monkeypatch):
    page = (Path(__file__).resolve().parents[2] / "docs" / "generation.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (file,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    inputs = prompt(1, padding=0)
    names: dict[str, Any] = {"model": decoder("llama"), "ids": inputs["input_ids"]}
    exec(compile(code, "generation.md", "exec"), names)
    assert names["tokens"].shape == (1, 9 + 60 + 60)
    Path("mixers.json").write_text(file)
    model = decoder("gpt2", num_hidden_layers=6)
    with with_mixers(model, read_mixers("mixers.json")) as mixed:
        assert greedy(model, inputs, cache=mixed.cache()).shape == (1, 33)
        sizes = [len(mixers.groups) for mixers in mixed.modules.values()]
    assert sizes == [3, 1, 1, 1, 1, 1]
