"""The laws that every form keeps, as generated cases: run by the tests and by `quadform laws`."""

from quadform.laws._cases import DTYPES as DTYPES, Case as Case, draw as draw
from quadform.laws._laws import LAWS as LAWS, Law as Law, check as check
from quadform.laws._outcome import Outcome as Outcome
from quadform.laws._run import Entry as Entry, Report as Report, cells as cells, run_laws as run_laws
from quadform.laws._table import BY_NAME as BY_NAME, NAMES as NAMES, ROWS as ROWS, Mixer as Mixer, Row as Row
