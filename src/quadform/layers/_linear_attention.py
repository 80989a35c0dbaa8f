"""Attention whose similarity factors, and which is a recurrent network therefore."""

from __future__ import annotations

from typing import Any, Literal

from quadform.algebra import All, Causal, FeatureMap, Kernel
from quadform.layers._attention import Attention


class LinearAttention(Attention):
    """`Attention` with a Kernel, y_i = sum_j phi(q_i)'phi(k_j) v_j / sum_j phi(q_i)'phi(k_j): linear time, and a recurrence

        S_i = S_(i-1) + phi(k_i) v_i',    z_i = z_(i-1) + phi(k_i),    y_i = phi(q_i)'S_i / phi(q_i)'z_i.

    Args:
        embed_dim, num_heads, more: as in `Attention`.
        feature_map: phi, or its name: "elu1", "relu", "exp", "taylor2", "polynomial", "hedgehog", "favor". What it
            draws (the projection of "favor") is a buffer of the state_dict: a restored model computes the same numbers, and
            only `redraw` changes it.
        causal: whether a token sees its past alone.
        normalise: divide by the row's sum.
        decay: None, or "scalar" or "feature": gates that each token computes, by which the past fades (causal only).

    Source: Katharopoulos et al. 2020, "Transformers are RNNs"; Yang et al. 2024 for gates.

    Reference:

        layer = Attention(embed_dim, num_heads, Causal(), Kernel(feature_map))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feature_map: FeatureMap | str = "elu1",
        *,
        causal: bool = True,
        normalise: bool = True,
        decay: Literal["scalar", "feature"] | None = None,
        **more: Any,
    ) -> None:
        edges = Causal() if causal else All()
        super().__init__(embed_dim, num_heads, edges, Kernel(feature_map, normalise, decay), **more)
