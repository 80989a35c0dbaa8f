"""Feature maps phi with sim(q, k) = phi(q)'phi(k): the step from attention to recurrence. One file for each map."""

from quadform.algebra.features._elu1 import Elu1 as Elu1
from quadform.algebra.features._exp import Exp as Exp
from quadform.algebra.features._favor import Favor as Favor, favor_projection as favor_projection
from quadform.algebra.features._feature_map import FeatureMap as FeatureMap
from quadform.algebra.features._hedgehog import Hedgehog as Hedgehog
from quadform.algebra.features._names import NAMES as NAMES, feature_map as feature_map
from quadform.algebra.features._polynomial import Polynomial as Polynomial
from quadform.algebra.features._relu import Relu as Relu
from quadform.algebra.features._taylor2 import Taylor2 as Taylor2
