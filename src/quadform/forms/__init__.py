"""Four ways to compute the operator, the chooser, and its cost model."""

from quadform.forms._attend import attend as attend
from quadform.forms._backends import backends as backends
from quadform.forms._calibration import calibrate as calibrate, trouble as trouble
from quadform.forms._explain import Explanation as Explanation, explain as explain
from quadform.forms._form import Cost as Cost, Form as Form
from quadform.forms._load import Watch as Watch, crowded as crowded
from quadform.forms._rates import (
    STATIC as STATIC,
    Calibration as Calibration,
    Rates as Rates,
    cache_file as cache_file,
    machine as machine,
    rates as rates,
)
from quadform.forms._registry import FORMS as FORMS
from quadform.forms.recurrent import (
    State as State,
    States as States,
    load_states as load_states,
    save_states as save_states,
)
from quadform.forms.recurrent._streaming import init_state as init_state, prefill as prefill, step as step
