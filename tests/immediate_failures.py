"""Print test failures immediately, in two lines, so that an interrupted run has still shown them."""


class ImmediateFailures:
    """A pytest plugin for the process that prints reports (with xdist not the one that runs tests)."""

    def __init__(self, config):
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report):
        terminal = self._plugins.get_plugin("terminalreporter")
        if terminal is None or not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        terminal.line(f"\n✗ {report.nodeid} ({report.when}, {report.duration:.0f} s)", red=True)
        terminal.line(f"  {crash or report.longreprtext.strip().splitlines()[-1]}")
