"""Layers: the operator with its projections and parameters, at once or as a recurrent network."""

from quadform.layers._attention import Attention as Attention
from quadform.layers._linear_attention import LinearAttention as LinearAttention
