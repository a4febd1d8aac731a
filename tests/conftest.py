"""Fixtures that several test files share."""

from __future__ import annotations

import pytest
from flower_processes import Federation, federation


@pytest.fixture(scope="session")
def simulation(tmp_path_factory):
    """Return a SuperLink that simulates SuperNodes: two, which is Flower's default."""
    with federation(tmp_path_factory.mktemp("simulation"), simulation=True) as started:
        yield started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Show the logs of Flower's processes where a test that uses them fails."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Federation):
                report.sections.append((f"logs of {name}", value.logs()))
    return report
