"""The kernel trick: a similarity that is a polynomial of q'k is a Kernel, exactly; exp(q'k) is one approximately."""

from __future__ import annotations

import torch

from quadform._errors import NotExact
from quadform.algebra import All, FeatureMap, Kernel, Polynomial, Similarity, Taylor2
from quadform.convert._registry import Certificate, Converted, register
from quadform.forms import attend

PROBES, TOKENS, HEAD_DIM = 8, 24, 6


@register(Similarity, "kernel")
def similarity_to_kernel(similarity: Similarity) -> Converted:
    """Similarity("polynomial", p) is Kernel(Polynomial(p)), since (c + s)^p = phi(q)'phi(k) for the monomials of degree p
    in [sqrt(c), sqrt(scale) x]. Similarity("exponential") becomes its second-order Taylor kernel, which is not equal.

    The error is measured on standard normal q, k and v in float64. Errors: NotExact for the other functions, whose feature
    maps have infinitely many features.
    """
    if similarity.function == "polynomial":
        phi: FeatureMap = Polynomial(similarity.degree, similarity.offset, similarity.scale)
        theorem: str | None = "(c + s)^p is an inner product of the monomials of degree p in [sqrt(c), sqrt(scale) x]"
    elif similarity.function == "exponential":
        phi, theorem = Taylor2(similarity.scale), None
    elif callable(similarity.function):
        raise NotExact(f"{similarity} is a function of one's own, and nothing says that it is a polynomial in q'k")
    else:
        raise NotExact(f"{similarity} has no finite feature map: its power series in q'k does not end")
    kernel = Kernel(phi)
    generator = torch.Generator().manual_seed(0)
    worst, witness = 0.0, None
    for _ in range(PROBES):
        q, k, v = (torch.randn(1, 1, TOKENS, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
        exact = attend(q, k, v, All(), similarity, form="dense")
        error = float((attend(q, k, v, All(), kernel, form="dense") - exact).abs().max() / exact.abs().max())
        if witness is None or error > worst:
            worst, witness = error, (q, k, v)
    bound = 0.0 if theorem else None
    return Converted(kernel, Certificate(theorem, bound, worst, "float64", PROBES, witness))
