"""The dense form keeps the contract."""

from tests.contract.contract import FormContract


class TestDense(FormContract):
    form = "dense"
