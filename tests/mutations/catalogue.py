"""The mutations: what is changed, and which law says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in a file of the package, once; `law` on `subject` must find it."""

    kind: str
    name: str
    file: str
    old: str
    new: str
    law: str
    subject: str


MUTATIONS = (
    Mutation(
        "edge",
        "causal edges lose the receiver itself",
        "algebra/_sequence_edges.py",
        "return (at.k_pos[:, None, :] <= at.q_pos[:, :, None])[:, None]",
        "return (at.k_pos[:, None, :] < at.q_pos[:, :, None])[:, None]",
        "limits",
        "one causal bucket is Causal",
    ),
    Mutation(
        "edge",
        "a window loses its leftmost key",
        "algebra/_sequence_edges.py",
        "near = ahead & (d >= -self.left * self.dilation)",
        "near = ahead & (d > -self.left * self.dilation)",
        "limits",
        "dynamic convolution is attention",
    ),
    Mutation(
        "edge",
        "reflection repeats the border cell",
        "algebra/_stencil.py",
        "period = (2 * last).clamp(min=1)",
        "period = (2 * last + 1).clamp(min=1)",
        "cnn",
        "convolution 1d reflect",
    ),
    Mutation(
        "edge",
        "a sender counts once however often it is named",
        "algebra/_graph.py",
        "device=count.device), accumulate=True",
        "device=count.device), accumulate=False",
        "gnn",
        "sum",
    ),
    Mutation(
        "weight",
        "scores are scaled by 1 / head_dim",
        "algebra/_weights.py",
        "max(q.shape[-1], 1) ** -0.5",
        "max(q.shape[-1], 1) ** -1.0",
        "limits",
        "a polynomial kernel is its similarity",
    ),
    Mutation(
        "weight",
        "a Gaussian is centred at 0",
        "algebra/_relative.py",
        "d = offset.to(centre.dtype) - by_head(centre)",
        "d = offset.to(centre.dtype) - 0 * by_head(centre)",
        "cnn",
        "normalised 1d renormalise",
    ),
    Mutation(
        "weight",
        "the symmetric normaliser forgets the sender's degree",
        "algebra/_edge_weights.py",
        'return view.receiver(operands.named("root")) * view.sender(operands.named("root_k"))',
        'return view.receiver(operands.named("root")) * view.sender(operands.named("root_k")).sign()',
        "gnn",
        "GCN",
    ),
    Mutation(
        "mask",
        "a padded row is one cell shorter",
        "algebra/_layout.py",
        "torch.where(some, last - first + 1, 0)",
        "torch.where(some, last - first, 0)",
        "padding",
        "relative-bias/stencil",
    ),
    Mutation(
        "mask",
        "queries stand at the start of the keys",
        "algebra/_layout.py",
        "q_start, end = zero, k_len - q_len",
        "q_start, end = zero, 0 * k_len",
        "alignment",
        "softmax/causal",
    ),
    Mutation(
        "mask",
        "what padded values hold is multiplied by 0 instead of left out",
        "forms/_call.py",
        "v = torch.where(keep, v, 0)",
        "v = v * keep",
        "padding",
        "kernel/all",
    ),
    Mutation(
        "form",
        "an epsilon is added to the normaliser",
        "forms/_normalise.py",
        "return torch.where(zero, 0, numerator / torch.where(zero, 1, denominator))",
        "return torch.where(zero, 0, numerator / (torch.where(zero, 1, denominator) + 1e-6))",
        "cnn",
        "normalised 1d replicate",
    ),
    Mutation(
        "form",
        "the dense form drops multiplicities of an edge",
        "forms/_normalise.py",
        "w = torch.exp(scores - torch.where(top == -torch.inf, 0, top))\n"
        "    w = w if count.dtype == torch.bool else w * count",
        "w = torch.exp(scores - torch.where(top == -torch.inf, 0, top))",
        "gnn",
        "GATv2",
    ),
    Mutation(
        "form",
        "a normalised convolution has one maximum for all rows",
        "forms/convolution/_taps.py",
        "return _exact_rows(y, rare, v, scores, here, frame) if bool(rare.any()) else y",
        "return y",
        "cnn",
        "peaked 1d",
    ),
    Mutation(
        "form",
        "the convolution form accepts a kernel on a window",
        "forms/convolution/_form.py",
        "if isinstance(weights, Kernel):",
        "if False:",
        "acceptance",
        "kernel/window",
    ),
    Mutation(
        "form",
        "message passing loses the sign in the gradient of the senders",
        "forms/graph/_products.py",
        "grad_b = spmm(structure.T, grad, a) if",
        "grad_b = spmm(structure.T, grad.abs(), a) if",
        "agreement",
        "*/graph",
    ),
    Mutation(
        "form",
        "a stream forgets the oldest key of its ring",
        "forms/recurrent/_tail.py",
        "size = count if limit is None else min(limit, count)",
        "size = count if limit is None else min(max(limit - 1, 0), count)",
        "streaming",
        "window/causal",
    ),
    Mutation(
        "form",
        "a stream forgets its sums between two calls",
        "forms/recurrent/_sums.py",
        "before = empty_sums(k, operands.v) if call.state is None else restore(call.state, call.heads)",
        "before = empty_sums(k, operands.v)",
        "streaming",
        "kernel/causal",
    ),
)
