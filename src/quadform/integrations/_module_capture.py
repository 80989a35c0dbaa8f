"""Capture of modules that call PyTorch's own attention functions: nothing in the model is replaced."""

from __future__ import annotations

import inspect as source
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from quadform._errors import ArgumentError, QuadformError
from quadform.inspect import Batch, Captured, Grid, Receive
from quadform.integrations import _attention_calls as calls
from quadform.integrations._attention_modules import attention_modules
from quadform.integrations._names import named_cross
from quadform.integrations._outputs import tensors, worst_difference
from quadform.integrations.hugging_face._beside import Watch

TOLERANCE = 1e-6
ROUNDING = 1e-4
"""How far fused kernels may be from the same model's plain computation; sharp attention magnifies their rounding."""
FindGrid = Callable[[nn.Module, Batch], "Grid | None"]
Prepare = Callable[[nn.Module], AbstractContextManager[None]]

_SIGNATURE = source.signature(F.multi_head_attention_forward)


class ModuleCapture:
    """Captures `scaled_dot_product_attention` and `multi_head_attention_forward`, which nn.MultiheadAttention calls.

    A batch holds the keyword arguments of the model; one that the model does not know by name, such as pixel_values,
    becomes its first argument.

    Args:
        grid: finds where the tokens stand.
        prepare: makes a model call the functions, for the time of a captured run.
    """

    def __init__(self, grid: FindGrid | None = None, prepare: Prepare | None = None) -> None:
        self.grid, self.prepare = grid, prepare

    def run(self, model: nn.Module, batch: Batch, receive: Receive) -> None:
        """Runs a batch, handing over each attention call; every attention module must run at least once."""
        self._run(model, batch, receive)

    def check(self, model: nn.Module, batch: Batch) -> float:
        """Largest relative difference, ||a - b|| / ||a|| over unpadded rows, of the captured run's outputs.

        Where the model as it stands runs fused kernels that round otherwise, the difference is taken to its own run
        without them, which in turn may be 1e-4 from the one with them.

        Raises:
            QuadformError: it exceeds 1e-6, or the unit of the model's dtype when that is coarser.
        """
        name, own = type(model).__name__, tensors(_forward(model, batch))
        if not own:
            raise QuadformError(f"{name} returned no floating-point tensor to compare the captured run with")
        output, recorder = self._run(model, batch, lambda _: None)
        ours = tensors(output)
        error, what, limit = worst_difference(name, own, ours, recorder.rows, TOLERANCE)
        if limit < error <= ROUNDING:
            with self.prepare(model) if self.prepare else nullcontext(), without_fused_layers():
                plain = tensors(_forward(model, batch))
            error, what, limit = worst_difference(name, plain, ours, recorder.rows, TOLERANCE)
        if not error <= limit:
            raise QuadformError(
                f"{name}: the captured computation changes its {what} by {error:.1e} (tolerance {limit:.0e}), so its "
                "attention is not what capture takes it for"
            )
        return error

    def _run(self, model: nn.Module, batch: Batch, receive: Receive) -> tuple[Any, Recorder]:
        if model.training:
            raise ArgumentError("model", "a model in evaluation mode (call model.eval())", "one in training mode")
        expected = attention_modules(model)
        recorder = Recorder(model, receive, self.grid(model, batch) if self.grid else None)
        with self.prepare(model) if self.prepare else nullcontext(), recorder.recording():
            output = _forward(model, batch)
        if silent := [name for name in expected if name not in recorder.calls]:
            raise QuadformError(
                f"attention modules that never ran in capture, or not through PyTorch's attention functions: "
                f"{', '.join(silent)}"
            )
        return output, recorder


class Recorder(TorchFunctionMode):
    """Within `recording()`, computes every attention call itself and hands it over under its module's name.

    Attributes:
        calls: how often each module computed attention.
        rows: by their shape (B, N), the tokens that are no padding.
    """

    def __init__(self, model: nn.Module, receive: Receive, grid: Grid | None) -> None:
        super().__init__()
        self.names = {id(module): name or type(model).__name__ for name, module in model.named_modules()}
        self.receive, self.grid = receive, grid
        self.calls: dict[str, int] = {}
        self.rows: dict[tuple[int, ...], Tensor] = {}
        self.stack: list[str] = []
        self.beside = Beside(model)
        self.seen: dict[str, Tensor] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records, and removes its hooks whatever happens."""
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            with without_fused_layers(), self.beside.watching(), self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            with self.beside.paused():
                return self._hand_over(calls.scaled_dot_product(self._name(), *args, **kwargs))[0]
        if func is F.multi_head_attention_forward:
            with self.beside.paused():
                return self._multi_head(*args, **kwargs)
        return func(*args, **kwargs)

    def _enter(self, module: nn.Module, args: Any) -> None:
        if id(module) in self.names:
            self.stack.append(self.names[id(module)])
            if isinstance(module, nn.MultiheadAttention) and any(getattr(x, "is_nested", False) for x in args):
                raise QuadformError(f"{self.stack[-1]}: a nested tensor; pass a padded one and its mask")

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if id(module) in self.names:
            self.stack.pop()

    def _name(self) -> str:
        if not self.stack:
            raise QuadformError("attention was computed outside the captured model's modules")
        return self.stack[-1]

    def _multi_head(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        bound = _SIGNATURE.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        single = given["query"].ndim == 2
        if single:
            given |= {key: given[key].unsqueeze(1) for key in ("query", "key", "value")}
            if given["key_padding_mask"] is not None:
                given["key_padding_mask"] = given["key_padding_mask"][None]
        output, weights = self._hand_over(calls.multi_head(self._name(), given), given["need_weights"])
        output = F.linear(output.permute(2, 0, 1, 3).flatten(2), given["out_proj_weight"], given["out_proj_bias"])
        if weights is not None and given["average_attn_weights"]:
            weights = weights.mean(1)
        return (output.squeeze(1), weights if weights is None else weights.squeeze(0)) if single else (output, weights)

    def _hand_over(self, call: calls.Call, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        name = self._name()
        output, weights = calls.evaluate(call) if need_weights else (calls.fused(call), None)
        number = self.calls.get(name, 0)
        self.calls[name] = number + 1
        n, m = call.query.shape[-2], call.key.shape[-2]
        cross = call.cross if call.cross is not None else n != m or named_cross(name)
        place, known = name.rpartition(".")[0], None
        if cross and (before := self.seen.get(place)) is not None and before.shape == (len(call.query), n):
            known = before
        captured = Captured(
            name,
            number,
            call.query,
            call.key,
            call.value,
            call.keep,
            call.scaling,
            output,
            bias=call.bias,
            sink=call.sink,
            cross=cross,
            grid=self.grid if self.grid is not None and self.grid.tokens == m else None,
            queries=known,
        )
        if not cross:
            self.seen[place] = captured.seen
            shape = tuple(captured.seen.shape)
            self.rows[shape] = captured.seen & self.rows.get(shape, captured.seen)
        self.receive(captured)
        return output, weights


class Beside(Watch):
    """Refuses attention that a model computes neither by a captured function nor in a forward that looks like it."""

    def _refuse(self, does: str = "computes attention in its own way") -> None:
        raise QuadformError(
            f"{self._module()} {does} beside PyTorch's attention functions, so not all attention of the model can be "
            "captured; capture a part of the model without it"
        )


@contextmanager
def without_fused_layers() -> Iterator[None]:
    """Within it, torch runs no encoder layer as one kernel, which would call neither of the attention functions."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _forward(model: nn.Module, batch: Batch) -> Any:
    parameters = source.signature(model.forward).parameters
    first = next(iter(parameters), "")
    unknown = [key for key in batch if key not in parameters]
    if len(unknown) == 1 and first not in batch:
        return model(batch[unknown[0]], **{key: value for key, value in batch.items() if key != unknown[0]})
    return model(**batch)
