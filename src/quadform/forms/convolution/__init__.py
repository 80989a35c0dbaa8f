"""The convolution form: taps that slide along a grid, and windows that slide along a sequence."""

from quadform.forms.convolution._form import Convolution as Convolution
