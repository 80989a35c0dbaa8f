"""Settings of every test: one thread, and how many generated cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from quadform.forms._rates import forget

torch.set_num_threads(1)  # two busy threads on a shared machine have turned 0.1 ms into 30 ms


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", type=int, default=None, help="generated cases of the laws in all (some hundreds unless given)"
    )
    parser.addoption("--mutations", action="store_true", help="also run the ten mutations, minutes")


@pytest.fixture(scope="session", autouse=True)
def empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No calibration of this machine, so that no test's choice of form depends on where it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUADFORM_CACHE", str(tmp_path_factory.mktemp("cache")))
        forget()
        yield


@pytest.fixture(scope="session")
def cases(request: pytest.FixtureRequest) -> int | None:
    """How many generated cases were asked for; None for the default of each test."""
    value: int | None = request.config.getoption("--cases")
    return value


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the mutations out unless they are asked for."""
    slow = [item for item in items if item.name.startswith("test_mutation[")]
    if slow and not config.getoption("--mutations"):
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
