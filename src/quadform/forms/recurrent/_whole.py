"""The causal kernel in operations that autograd records, all chunks at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quadform.forms._normalise import divide


def whole(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, S: Tensor, z: Tensor, normalise: bool, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, S, z after the last sender) as `causal` gives them; memory O(N chunk), with gates for each feature O(N chunk m)."""
    n = v.shape[1]
    chunk = min(chunk, max(n, 1))
    chunks = -(-n // chunk)
    q, k, v = (F.pad(x, (0, 0, 0, chunks * chunk - n)).unflatten(1, (chunks, chunk)) for x in (q, k, v))
    mask = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    late, early, fades = q, k, None
    if gates is None:
        w = q @ k.mT
    else:
        sums = F.pad(gates, (0, 0, 0, chunks * chunk - n)).unflatten(1, (chunks, chunk)).cumsum(2)
        gap = torch.where(mask[..., None], sums[:, :, :, None] - sums[:, :, None], 0).exp().to(q.dtype)
        single = gap.shape[-1] == 1
        w = (q @ k.mT) * gap[..., 0] if single else torch.einsum("xcim,xcjm,xcijm->xcij", q, k, gap)
        last = sums[:, :, -1:]
        late, early, fades = q * sums.exp().to(q.dtype), k * (last - sums).exp().to(k.dtype), last.mT.exp().to(q.dtype)
    w = torch.where(mask, w, 0)
    added, summed = early.mT @ v, early.sum(-2)[..., None]
    starts = []
    for c in range(chunks):
        starts.append((S, z))
        if fades is not None:
            S, z = fades[:, c] * S, fades[:, c] * z
        S, z = S + added[:, c], z + summed[:, c]
    if not starts:
        return v.flatten(1, 2), S, z
    before = torch.stack([s for s, _ in starts], 1)
    y = w @ v + late @ before
    if normalise:
        y = divide(y, w.sum(-1, keepdim=True) + late @ torch.stack([s for _, s in starts], 1))
    return y.flatten(1, 2)[:, :n], S, z
