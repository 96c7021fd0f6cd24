"""Runs a trained ARC policy in the browser, on the report page of a run."""
