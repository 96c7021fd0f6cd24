"""HTML reports on one or several runs."""

from phalanx.logging.report.page import (
    build_page as build_page,
    report_path as report_path,
    write_report as write_report,
)
from phalanx.logging.report.run_data import RunData as RunData, load_run as load_run
