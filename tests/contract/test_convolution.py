"""The convolution form keeps the contract."""

from tests.contract.contract import RefusingContract


class TestConvolution(RefusingContract):
    form = "convolution"
