"""The four forms by name, and the chooser."""

from __future__ import annotations

from quadform._errors import ArgumentError, Refused
from quadform.forms._call import Call
from quadform.forms._dense import Dense
from quadform.forms._form import Form
from quadform.forms.convolution import Convolution
from quadform.forms.graph import MessagePassing
from quadform.forms.recurrent import Recurrent

FORMS: dict[str, Form] = {form.name: form for form in (Dense(), Convolution(), MessagePassing(), Recurrent())}


def choose(call: Call, form: str) -> Form:
    """The form of that name, or for "auto" the accepting one with the least predicted time.

    Errors: Refused with the form's reason; ArgumentError for an unknown name.
    """
    if form != "auto":
        if form not in FORMS:
            raise ArgumentError("form", f"'auto' or one of {', '.join(map(repr, FORMS))}", repr(form))
        reason = FORMS[form].refusal(call)
        if reason is not None:
            raise Refused(f"form={form!r} does not compute {call.weights} on {call.edges}: {reason}")
        return FORMS[form]
    reasons = {name: candidate.refusal(call) for name, candidate in FORMS.items()}
    able = [candidate for name, candidate in FORMS.items() if reasons[name] is None]
    if not able:
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise Refused(f"no form computes {call.weights} on {call.edges}: {listed}")
    return min(able, key=lambda candidate: candidate.cost(call).seconds)
