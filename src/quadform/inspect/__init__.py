"""What a pretrained model's heads really are: capture, measures, report."""

from quadform.inspect._adapters import (
    Batch as Batch,
    Capture as Capture,
    Receive as Receive,
    find_capture as find_capture,
    register_capture as register_capture,
)
from quadform.inspect._captured import Captured as Captured
from quadform.inspect._compare import Comparison as Comparison, compare as compare
from quadform.inspect._grid import Grid as Grid
from quadform.inspect._inspect import inspect as inspect
from quadform.inspect._layers import inspect_heads as inspect_heads
from quadform.inspect._report import (
    FormCost as FormCost,
    FormError as FormError,
    FormInfo as FormInfo,
    Head as Head,
    Layer as Layer,
    Report as Report,
    Section as Section,
    Timing as Timing,
)
from quadform.inspect._write import check_writable as check_writable, write_whole as write_whole
from quadform.inspect.candidates import (
    CANDIDATES as CANDIDATES,
    Candidate as Candidate,
    Convolution as Convolution,
    FixedGraph as FixedGraph,
    Hybrid as Hybrid,
    LowRank as LowRank,
    Mean as Mean,
    Nystrom as Nystrom,
    Taylor as Taylor,
    TopK as TopK,
    Window as Window,
)
