# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .page import (
    build_page as build_page,
    report_path as report_path,
    save_page as save_page,
    write_report as write_report,
)
from .run_data import RunData as RunData, read_run as read_run
