"""The graph form keeps the contract."""

from tests.contract.contract import FormContract


class TestGraph(FormContract):
    form = "graph"
