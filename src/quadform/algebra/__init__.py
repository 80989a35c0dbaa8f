"""Descriptions of the operator: edges (who talks to whom) and weights (how much), with their small tensor functions."""

from quadform.algebra._composite_weights import (
    Hybrid as Hybrid,
    Matrix as Matrix,
    Via as Via,
    pooling_matrix as pooling_matrix,
    projection_matrix as projection_matrix,
)
from quadform.algebra._content_edges import Buckets as Buckets, Chosen as Chosen, SameBucket as SameBucket, TopK as TopK
from quadform.algebra._description import (
    Description as Description,
    description as description,
    from_json as from_json,
    parse as parse,
)
from quadform.algebra._edge_list import EdgeList as EdgeList
from quadform.algebra._edge_weights import (
    Additive as Additive,
    AdditiveV2 as AdditiveV2,
    Dynamic as Dynamic,
    Taps as Taps,
    Uniform as Uniform,
)
from quadform.algebra._edges import And as And, Edges as Edges, Or as Or, Transposed as Transposed
from quadform.algebra._graph import Graph as Graph
from quadform.algebra._layout import Layout as Layout, build_layout as build_layout
from quadform.algebra._operands import Operands as Operands, TensorSpec as TensorSpec
from quadform.algebra._positions import rotary as rotary
from quadform.algebra._relative import (
    Alibi as Alibi,
    Bias as Bias,
    EdgeBias as EdgeBias,
    PairBias as PairBias,
    Quadratic as Quadratic,
    T5Buckets as T5Buckets,
    Table as Table,
)
from quadform.algebra._sequence_edges import (
    All as All,
    Causal as Causal,
    Global as Global,
    Window as Window,
    from_attention_window as from_attention_window,
    from_exact_window as from_exact_window,
    from_flash_window as from_flash_window,
    from_sliding_window as from_sliding_window,
)
from quadform.algebra._stencil import Stencil as Stencil
from quadform.algebra._views import Pairs as Pairs, Slots as Slots, View as View
from quadform.algebra._weights import Kernel as Kernel, Similarity as Similarity, Softmax as Softmax, Weights as Weights
from quadform.algebra.features import (
    Elu1 as Elu1,
    Exp as Exp,
    Favor as Favor,
    FeatureMap as FeatureMap,
    Hedgehog as Hedgehog,
    Polynomial as Polynomial,
    Relu as Relu,
    Taylor2 as Taylor2,
    favor_projection as favor_projection,
)
