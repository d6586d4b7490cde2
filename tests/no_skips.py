"""A pytest plug-in for a machine that has every tool: a skipped test is a failure there.

Loaded by name (``-p tests.no_skips``); `make test` does so when FORGE_NO_SKIPS is set.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when anything was skipped."""
    if _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name what was skipped, above pytest's closing line."""
    skipped = _skipped(config)
    if skipped:
        terminalreporter.section("skips count as failures here", red=True, bold=True)
        for report in skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            terminalreporter.write_line(f"{report.nodeid}: {why}")


def _skipped(config: pytest.Config) -> list[Any]:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else list(reporter.stats.get("skipped", ()))
