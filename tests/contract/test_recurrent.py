"""The recurrent form keeps the contract."""

from tests.contract.contract import RefusingContract


class TestRecurrent(RefusingContract):
    form = "recurrent"
