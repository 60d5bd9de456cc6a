"""Counts the quirks whose tests passed, when all of them ran."""

from __future__ import annotations

import pytest

from tests.compat.quirks import QUIRKS


class QuirkCount:
    """Looks at every test's outcome."""

    def __init__(self) -> None:
        self._passed: set[str] = set()
        self._other: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        if report.when == "call" and report.passed:
            self._passed.add(name)
        elif not report.passed:
            self._other.add(name)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        ran = self._passed | self._other
        if not all(test in ran for quirk in QUIRKS for test in quirk.tests):
            return
        good = [quirk for quirk in QUIRKS if all(test in self._passed - self._other for test in quirk.tests)]
        refused = sum(bool(quirk.part) for quirk in good)
        terminalreporter.write_line(f"quirks of TGI: {len(good)} of {len(QUIRKS)} tested, {refused} of them as refusals until a later part")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(QuirkCount(), "quirk-count")
