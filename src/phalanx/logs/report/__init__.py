"""The report: a run directory, or several side by side, as one HTML page that needs no network.

What a run directory holds is written by the handlers and the trainer; nothing here changes it.
"""

from phalanx.logs.report.page import build_page, report_path, save_page, write_report
from phalanx.logs.report.run_directory import RunData, read_run

__all__ = ["RunData", "build_page", "read_run", "report_path", "save_page", "write_report"]
