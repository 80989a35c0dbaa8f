"""Rotary positions: what they do to q'k."""

from __future__ import annotations

import pytest
import torch

import quadform as qf


@pytest.mark.parametrize("interleaved", [False, True])
def test_products_depend_on_the_offset_alone(interleaved):
    q, k = (torch.randn(1, 2, 1, 8, dtype=torch.float64) for _ in range(2))

    def product(i: int, j: int) -> torch.Tensor:
        a, b = (qf.rotary(x, torch.tensor([p]), interleaved=interleaved) for x, p in ((q, i), (k, j)))
        return (a * b).sum()

    assert torch.allclose(product(9, 4), product(105, 100))
    assert not torch.allclose(product(9, 4), product(9, 5))
    assert torch.equal(qf.rotary(q, torch.tensor([0])), q)


def test_it_is_a_complex_rotation():
    x, positions = torch.randn(2, 3, 5, 6, dtype=torch.float64), torch.arange(10).view(2, 5)
    angle = positions[:, None, :, None] * 10000.0 ** (-torch.arange(3) / 3)
    z = torch.complex(x[..., :3], x[..., 3:]) * torch.exp(1j * angle)
    assert torch.allclose(qf.rotary(x, positions), torch.cat([z.real, z.imag], -1))


def test_errors_name_the_argument():
    with pytest.raises(qf.ArgumentError, match=r"^x: expected a tensor \(B, H, N, D\) with an even D"):
        qf.rotary(torch.randn(1, 1, 2, 3), torch.arange(2))
    with pytest.raises(qf.ArgumentError, match="^positions: expected integers"):
        qf.rotary(torch.randn(1, 1, 2, 4), torch.arange(3))


def test_a_similarity_of_ones_own():
    q, k, v = (torch.randn(1, 2, 6, 4, dtype=torch.float64) for _ in range(3))

    def laplace(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(a - b).abs().sum(-1))

    y = qf.attend(q, k, v, qf.Causal(), qf.Similarity(laplace))
    w = torch.exp(-torch.cdist(q, k, p=1)).tril()
    assert torch.allclose(y, w / w.sum(-1, keepdim=True) @ v)
    with pytest.raises(qf.ArgumentError, match="^function: expected a value that JSON can hold"):
        qf.Similarity(laplace).to_json()
