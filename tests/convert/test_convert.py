"""The registry of conversions and the kernel trick."""

from __future__ import annotations

import pytest
import torch

import quadform as qf


@pytest.mark.parametrize("offset", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("degree", [2, 4])
def test_a_polynomial_similarity_is_a_kernel(degree, offset):
    similarity = qf.Similarity("polynomial", degree, scale=0.3, offset=offset)
    result = qf.convert(similarity, to="kernel")
    assert result.module == qf.Kernel(qf.Polynomial(degree, offset, 0.3))
    assert result.certificate.theorem and result.certificate.bound == 0.0
    q, k, v = (torch.randn(2, 3, 17, 5, dtype=torch.float64) for _ in range(3))
    exact, kernel = (qf.attend(q, k, v, qf.All(), w, form="dense") for w in (similarity, result.module))
    assert (kernel - exact).abs().max() < 1e-12 * exact.abs().max()


def test_what_is_not_a_polynomial_is_not_exact_and_has_a_witness():
    with pytest.raises(qf.NotExact, match="differs by") as caught:
        qf.convert(qf.Similarity("exponential"), to="kernel")
    assert caught.value.error is not None and caught.value.error > 0.01
    witness: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = caught.value.witness  # type: ignore[assignment]
    q, k, v = witness
    exact, kernel = (qf.attend(q, k, v, qf.All(), w) for w in (qf.Softmax(), qf.Kernel("taylor2")))
    assert float((kernel - exact).abs().max() / exact.abs().max()) == pytest.approx(caught.value.error)
    accepted = qf.convert(qf.Similarity("exponential"), to="kernel", tolerance=1.0)
    assert accepted.module == qf.Kernel("taylor2") and accepted.certificate.theorem is None
    with pytest.raises(qf.NotExact, match="no finite feature map"):
        qf.convert(qf.Similarity("gaussian"), to="kernel", tolerance=1.0)
    with pytest.raises(qf.NotExact, match="nothing says that it is a polynomial"):
        qf.convert(qf.Similarity(lambda q, k: (1 + (q * k).sum(-1)) ** 2), to="kernel", tolerance=1.0)


def test_errors_name_the_argument():
    with pytest.raises(qf.ArgumentError, match=r"^to: expected a registered conversion"):
        qf.convert(qf.Softmax(), to="kernel")
    with pytest.raises(qf.ArgumentError, match=r"^tolerance: expected a number of at least 0, got -1"):
        qf.convert(qf.Similarity("polynomial"), to="kernel", tolerance=-1)
