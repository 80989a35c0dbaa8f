"""The recurrent form: a state carried from token to token."""

from quadform.forms.recurrent._form import Recurrent as Recurrent
from quadform.forms.recurrent._state import State as State
