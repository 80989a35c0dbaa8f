"""The cheaper forms that a head is compared with: one small file each."""

from quadform.inspect.candidates._candidate import Candidate as Candidate, Fitter as Fitter
from quadform.inspect.candidates._convolution import Convolution as Convolution
from quadform.inspect.candidates._graph import FixedGraph as FixedGraph
from quadform.inspect.candidates._hybrid import Hybrid as Hybrid
from quadform.inspect.candidates._kernel import Taylor as Taylor
from quadform.inspect.candidates._low_rank import LowRank as LowRank
from quadform.inspect.candidates._mean import Mean as Mean
from quadform.inspect.candidates._nystrom import Nystrom as Nystrom
from quadform.inspect.candidates._top_k import TopK as TopK
from quadform.inspect.candidates._window import NEAR as NEAR, Window as Window

CANDIDATES: tuple[Candidate, ...] = (
    Mean(),
    Convolution(),
    NEAR,
    Window(sinks=True),
    FixedGraph(),
    Taylor(),
    Nystrom(),
    Hybrid(),
    TopK(),
    LowRank(),
)
"""Simplest first: a head is named by the first that fits it."""
