"""quadform: attention, convolution, message passing and recurrence as one operator in four fast forms."""

from quadform._errors import (
    ArgumentError as ArgumentError,
    NotExact as NotExact,
    QuadformError as QuadformError,
    Refused as Refused,
)
from quadform.algebra import (
    Additive as Additive,
    AdditiveV2 as AdditiveV2,
    Alibi as Alibi,
    All as All,
    And as And,
    Buckets as Buckets,
    Causal as Causal,
    Dynamic as Dynamic,
    EdgeBias as EdgeBias,
    Elu1 as Elu1,
    Exp as Exp,
    FeatureMap as FeatureMap,
    Global as Global,
    Graph as Graph,
    Hybrid as Hybrid,
    Kernel as Kernel,
    Matrix as Matrix,
    Or as Or,
    PairBias as PairBias,
    Polynomial as Polynomial,
    Quadratic as Quadratic,
    Relu as Relu,
    Similarity as Similarity,
    Softmax as Softmax,
    Stencil as Stencil,
    T5Buckets as T5Buckets,
    Table as Table,
    Taps as Taps,
    Taylor2 as Taylor2,
    TopK as TopK,
    Transposed as Transposed,
    Uniform as Uniform,
    Via as Via,
    Window as Window,
    from_attention_window as from_attention_window,
    from_exact_window as from_exact_window,
    from_flash_window as from_flash_window,
    from_json as from_json,
    from_sliding_window as from_sliding_window,
    parse as parse,
)
from quadform.convert import Certificate as Certificate, Converted as Converted, convert as convert
from quadform.forms import Explanation as Explanation, attend as attend, backends as backends, explain as explain

__version__ = "0.1.0"
