"""Law 8: a form computes a call or says in a sentence why not; nothing falls back silently."""

from __future__ import annotations

import math

from quadform._errors import Refused
from quadform.forms import FORMS
from quadform.laws._cases import DTYPES, draw
from quadform.laws._oracle import bounds, call_of, formula, resolved_edges
from quadform.laws._outcome import Outcome, distance
from quadform.laws._table import BY_NAME, NAMES


def honesty(row: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """`form=name` raises Refused exactly where the form's refusal says so, and "auto" computes whatever one form accepts."""
    case = draw(row, seed, DTYPES[dtype], limit)
    call = call_of(case, case.leaves(case.dtype))
    out = []
    for name, form in FORMS.items():
        reason = form.refusal(call)
        try:
            case.attend(name)
            raised = None
        except Refused as error:
            raised = str(error)
        kept = (reason is None) == (raised is None) and (
            reason is None or (is_sentence(reason) and reason in str(raised))
        )
        witness = f"refusal {reason!r}, raised {raised!r}: {case.describe()}"
        out.append(Outcome("honesty", row, name, dtype, 0.0 if kept else math.inf, 0.0, witness))
    exact = formula(case, case.leaves(DTYPES["float64"]), resolved_edges(case))
    bound = bounds(case, exact, resolved_edges(case))
    return [*out, Outcome("honesty", row, "auto", dtype, distance(case.attend("auto"), exact), bound, case.describe())]


def acceptance(row: str, seed: int, dtype: str, limit: int | None = None) -> list[Outcome]:
    """The acceptance table on a plain call: a cell that refuses where it must accept, or accepts where it must refuse."""
    case = draw(row, seed, DTYPES[dtype], limit, plain=True, square=True)
    call, out = call_of(case, case.leaves(case.dtype)), []
    for name in NAMES:
        if name not in FORMS:
            out.append(Outcome("acceptance", row, name, dtype, math.inf, 0.0, f"there is no form {name!r}"))
            continue
        reason, wanted = FORMS[name].refusal(call), BY_NAME[row].accepts(name)
        kept = (reason is None) == wanted and (reason is None or is_sentence(reason))
        said = "accepts" if reason is None else f"refuses ({reason})"
        witness = f"{name} {said}, must {'accept' if wanted else 'refuse, in a sentence'}: {case.describe()}"
        out.append(Outcome("acceptance", row, name, dtype, 0.0 if kept else math.inf, 0.0, witness))
    return out


def is_sentence(reason: str) -> bool:
    """At least four words that start with a letter or a description."""
    return len(reason.split()) >= 4 and (reason[0].isalpha() or reason[0] == "(")
