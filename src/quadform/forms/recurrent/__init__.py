"""The recurrent form: a state carried from token to token."""

from quadform.forms.recurrent._form import Recurrent as Recurrent
from quadform.forms.recurrent._state import State as State
from quadform.forms.recurrent._states import States as States, load_states as load_states, save_states as save_states
