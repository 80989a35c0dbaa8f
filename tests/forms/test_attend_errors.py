"""Every bad argument of `attend`: the error names the argument, what was expected and what came."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quadform as qf

Q, K, V = torch.zeros(2, 4, 5, 3), torch.zeros(2, 2, 5, 3), torch.zeros(2, 2, 5, 6)
MASK = torch.ones(2, 5, dtype=torch.bool)
SQUARE = torch.zeros(2, 2, 5, 3)


def call(**changes: Any) -> Tensor:
    arguments: dict[str, Any] = {"q": Q, "k": K, "v": V, "edges": qf.Causal(), "weights": qf.Softmax()} | changes
    y: Tensor = qf.attend(**arguments)
    return y


BAD: list[tuple[str, dict[str, Any]]] = [
    ("v", {"v": None}),
    ("v", {"v": [[1.0]]}),
    ("q", {"q": None}),
    ("k", {"k": None}),
    ("q", {"q": Q[0]}),
    ("q", {"q": Q.long()}),
    ("q", {"q": [1.0]}),
    ("q", {"q": Q.double()}),
    ("k", {"k": K.double()}),
    ("k", {"k": K.to("meta")}),
    ("q", {"q": Q[:1]}),
    ("k", {"k": K[:, :, :4]}),
    ("k", {"k": K[:, :1]}),
    ("q", {"q": Q[..., :2]}),
    ("q", {"q": Q[:, :3]}),
    ("edges", {"edges": "causal"}),
    ("edges", {"edges": qf.Softmax()}),
    ("weights", {"weights": qf.Causal()}),
    ("weights", {"weights": torch.softmax}),
    ("edges", {"weights": qf.Taps(), "tensors": {"taps": torch.zeros(4, 3)}}),
    ("edges", {"weights": qf.Dynamic()}),
    ("edges", {"weights": qf.Softmax(bias=qf.EdgeBias())}),
    ("edges", {"edges": qf.All(), "weights": qf.Kernel(decay="scalar")}),
    ("edges", {"weights": qf.Via(2, qf.Uniform("mean"), qf.Softmax())}),
    ("Graph.num_nodes", {"edges": qf.Graph([[0], [1]], 4)}),
    ("q", {"edges": qf.Stencil(2, stride=2), "weights": qf.Softmax()}),
    ("q", {"q": Q[:, :, :3], "edges": qf.Graph([[0], [1]], (5, 3)), "weights": qf.Uniform("symmetric")}),
    ("tensors", {"weights": qf.Softmax(bias=qf.Alibi())}),
    ("tensors", {"tensors": {"slopes": torch.zeros(4)}}),
    ("tensors['slopes']", {"weights": qf.Softmax(bias=qf.Alibi()), "tensors": {"slopes": torch.zeros(3)}}),
    ("tensors['slopes']", {"weights": qf.Softmax(bias=qf.Alibi()), "tensors": {"slopes": torch.zeros(4, 1)}}),
    ("tensors['slopes']", {"weights": qf.Softmax(bias=qf.Alibi()), "tensors": {"slopes": 0.5}}),
    (
        "tensors['slopes']",
        {"weights": qf.Softmax(bias=qf.Alibi()), "tensors": {"slopes": torch.zeros(4, device="meta")}},
    ),
    ("tensors['row_scale']", {"tensors": {"row_scale": torch.zeros(2, 4, 6)}}),
    ("tensors", {"edges": qf.Causal() & qf.Buckets(1, 4)}),
    ("tensors['rotations']", {"edges": qf.Buckets(2, 4), "tensors": {"rotations": torch.zeros(1, 2, 7, 2)}}),
    ("lengths", {"lengths": torch.tensor([5])}),
    ("lengths", {"lengths": torch.tensor([5.0, 5.0])}),
    ("lengths", {"lengths": [5, 5]}),
    ("lengths", {"lengths": torch.tensor([6, 5])}),
    ("lengths", {"lengths": torch.tensor([-1, 5])}),
    ("lengths", {"lengths": (torch.tensor([5, 5]),)}),
    ("lengths", {"lengths": (torch.tensor([6, 5]), torch.tensor([5, 5]))}),
    ("lengths", {"lengths": torch.tensor([5, 5]), "grid": (1, 5)}),
    ("key_mask", {"key_mask": MASK.float()}),
    ("key_mask", {"key_mask": MASK[:, :4]}),
    ("key_mask", {"key_mask": True}),
    ("positions", {"positions": torch.arange(4)}),
    ("positions", {"positions": torch.arange(5.0)}),
    ("positions", {"positions": (torch.arange(5),)}),
    ("grid", {"grid": (2, 3)}),
    ("grid", {"grid": ()}),
    (
        "grid",
        {
            "grid": (2, 5),
            "edges": qf.All(),
            "weights": qf.Softmax(bias=qf.Alibi()),
            "tensors": {"slopes": torch.zeros(4)},
        },
    ),
    ("dropout_p", {"dropout_p": 1.0}),
    ("dropout_p", {"dropout_p": -0.1}),
    ("dropout_p", {"dropout_p": "half"}),
    ("form", {"form": "sparse"}),
    ("form", {"form": None}),
    ("return_weights", {"return_weights": True, "return_state": True}),
]


@pytest.mark.parametrize(("name", "changes"), BAD, ids=[f"{i}-{name}" for i, (name, _) in enumerate(BAD)])
def test_the_error_names_the_argument_what_was_expected_and_what_came(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(qf.ArgumentError) as caught:
        call(**changes)
    text = str(caught.value)
    assert text.startswith(f"{name}: expected "), text
    assert ", got " in text, text


def test_the_call_that_they_spoil_is_a_good_one() -> None:
    assert call().shape == (2, 4, 5, 6)


def test_errors_are_value_errors_too() -> None:
    with pytest.raises(ValueError, match="form: expected"):
        call(form="sparse")
    with pytest.raises(ValueError, match="does not compute"):
        call(form="convolution")


def test_positions_of_a_stencil_are_refused() -> None:
    with pytest.raises(qf.Refused, match="numbers its receivers"):
        qf.attend(SQUARE, SQUARE, SQUARE, qf.Stencil(3), qf.Softmax(), positions=torch.arange(5))


def test_holes_with_fewer_queries_need_positions() -> None:
    holes = MASK.clone()
    holes[0, 2] = False
    with pytest.raises(qf.Refused, match="needs positions"):
        call(q=Q[:, :, :3], key_mask=holes)
    given = call(q=Q[:, :, :3], key_mask=holes, positions=(torch.arange(2, 5), torch.arange(5)))
    assert given.shape == (2, 4, 3, 6)


def test_an_unknown_weight_says_which_forms_refused_and_why() -> None:
    with pytest.raises(qf.Refused) as caught:
        call(return_state=True, edges=qf.All(), form="auto")
    assert len(str(caught.value).split()) > 6


def test_weights_are_refused_where_there_are_none() -> None:
    with pytest.raises(qf.Refused):
        call(edges=qf.All(), weights=qf.Via(2, qf.Uniform("mean"), qf.Softmax()), return_weights=True)
