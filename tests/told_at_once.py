"""A failure is told when it happens, in two lines: a run that is cut off later has still said it."""


class ToldAtOnce:
    """For pytest; where reports are printed (with xdist that is not where tests run)."""

    def __init__(self, config):
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report):
        terminal = self._plugins.get_plugin("terminalreporter")
        if terminal is None or not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        terminal.line(f"\n✗ {report.nodeid} ({report.when}, {report.duration:.0f} s)", red=True)
        terminal.line(f"  {crash or report.longreprtext.strip().splitlines()[-1]}")
