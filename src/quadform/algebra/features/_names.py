"""Feature maps by name."""

from __future__ import annotations

from quadform._errors import ArgumentError
from quadform.algebra.features._elu1 import Elu1
from quadform.algebra.features._exp import Exp
from quadform.algebra.features._favor import Favor
from quadform.algebra.features._feature_map import FeatureMap
from quadform.algebra.features._hedgehog import Hedgehog
from quadform.algebra.features._polynomial import Polynomial
from quadform.algebra.features._relu import Relu
from quadform.algebra.features._taylor2 import Taylor2

NAMES: dict[str, type[FeatureMap]] = {
    "elu1": Elu1,
    "relu": Relu,
    "exp": Exp,
    "taylor2": Taylor2,
    "polynomial": Polynomial,
    "hedgehog": Hedgehog,
    "favor": Favor,
}


def feature_map(value: FeatureMap | str) -> FeatureMap:
    """The map itself, or the one of that name.

    Errors: ArgumentError for anything else.
    """
    if isinstance(value, FeatureMap):
        return value
    if isinstance(value, str) and value in NAMES:
        return NAMES[value]()
    raise ArgumentError("feature_map", f"a FeatureMap or one of {', '.join(NAMES)}", repr(value))
