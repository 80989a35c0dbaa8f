"""The laws by name, and what each of them is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quadform.algebra import Edges
from quadform.laws import _cnn, _gnn, _limits
from quadform.laws._agreement import agreement
from quadform.laws._cases import DTYPES
from quadform.laws._cnn import cnn
from quadform.laws._future import future
from quadform.laws._gnn import gnn
from quadform.laws._honesty import acceptance, honesty
from quadform.laws._limits import limits
from quadform.laws._outcome import Outcome
from quadform.laws._padding import alignment, emptiness, holes, padding
from quadform.laws._streaming import streaming
from quadform.laws._table import ROWS, Mixer

Check = Callable[[str, int, str, int | None], list[Outcome]]
EXACT = ("float64", "float32")


@dataclass(frozen=True)
class Law:
    """A law.

    Attributes:
        name: as outcomes carry it.
        says: the law in one sentence.
        check: (subject, seed, dtype, limit on sizes) to outcomes; none where the case does not fall under the law.
        subjects: rows of the acceptance table, or what else the law is about.
        dtypes: names of the dtypes it is checked in.
    """

    name: str
    says: str
    check: Check
    subjects: tuple[str, ...]
    dtypes: tuple[str, ...] = tuple(DTYPES)


def _is_causal(mixer: Mixer) -> bool:
    return isinstance(mixer.edges, Edges) and mixer.edges.is_causal


_ROWS = tuple(row.name for row in ROWS)
_CAUSAL = tuple(row.name for row in ROWS if sum(_is_causal(m) for m in row.mixers) * 5 >= len(row.mixers))
_STREAMS = tuple(row.name for row in ROWS if row.recurrent and row.name in _CAUSAL)
_FLAT = tuple(row.name for row in ROWS if not all(m.on_graph or m.dims > 1 for m in row.mixers))
_PLAIN = tuple(name for name in _FLAT if "stencil" not in name and "uniform" not in name and not name.startswith("via"))
_REMOVABLE = tuple(name for name in _ROWS if name not in ("kernel/causal+decay", "topk", "via", "via/pooling"))

LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law("acceptance", "each form accepts and refuses what the table says", acceptance, _ROWS, ("float32",)),
        Law(
            "agreement",
            "every accepting form equals the dense float64 oracle, and so do all gradients",
            agreement,
            _ROWS,
        ),
        Law("streaming", "at once, in chunks and step by step agree; a state is a value", streaming, _STREAMS),
        Law("future", "what comes after a receiver moves nothing before it", future, _CAUSAL),
        Law("padding", "padding on either side equals the shorter sequence", padding, _FLAT),
        Law("holes", "a mask with holes removes senders and keeps positions", holes, _REMOVABLE),
        Law("emptiness", "empty rows are 0 with gradient 0; NaN stays in its sequence", emptiness, _ROWS),
        Law("alignment", "fewer queries than keys stand at the end", alignment, _PLAIN),
        Law(
            "cnn",
            "taps are torch's convolution; position-only attention is a normalised one",
            cnn,
            _cnn.SUBJECTS,
            EXACT,
        ),
        Law("limits", "mixers meet at their limits", limits, _limits.SUBJECTS, EXACT),
        Law("gnn", "masked attention is message passing", gnn, _gnn.SUBJECTS, EXACT),
        Law("honesty", "a form computes or says why not; auto computes what any form accepts", honesty, _ROWS, EXACT),
    )
}


def check(law: str, subject: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """The outcomes of one case; an exception is an outcome too, of infinite error."""
    try:
        return LAWS[law].check(subject, seed, dtype, limit)
    except Exception as error:
        witness = f"{type(error).__name__}: {error} (law {law}, {subject}, seed {seed}, {dtype}, sizes up to {limit})"
        return [Outcome(law, subject, "any", dtype, float("inf"), 0.0, witness)]
