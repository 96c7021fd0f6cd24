"""Arguments of a wrong type are rejected with the expected type.

The calls run in another process, because the test session checks annotations first.
"""

import subprocess
import sys

import pytest

TABLE = "LengthTable.from_arrays(ids, lengths)"
CASES = {
    "BatchPlanBuilder([3, 4], config)": f"must be {{id: length}} or a LengthTable, got list; use {TABLE}",
    "BatchPlanBuilder(np.array([3, 4]), config)": f"got ndarray; use {TABLE}",
    "TokenBudgetBatchSampler([3, 4], spec, 64)": f"got list; use {TABLE}",
    "compute_length_histogram([3, 4])": f"got list; use {TABLE}",
    "BatchPlanBuilder({'a': 3}, {'token_budget': 64})": "(dict); use BatchingConfig(**batching_config)",
    "BatchPlanBuilder({'a': 3}, config, packing={})": "packing must be a PackingConfig, got {} (dict)",
    "BatchPlanBuilder({'a': 3}, None)": "batching_config must be a BatchingConfig, got None (NoneType)",
    "TokenBudgetBatchSampler({'a': 3}, (8, 16), 64)": "bucket_spec must be a BucketSpec, got (8, 16) (tuple)",
    "TokenBudgetBatchSampler.from_config({'a': 3}, spec)": "batching_config must be a BatchingConfig, got",
    "analyze_bucket_efficiency({'a': 3}, config)": "bucket_spec must be a BucketSpec, got BatchingConfig",
    "create_efficiency_report({'a': 3}, [8])": "bucket_spec must be a BucketSpec, got [8] (list)",
    "save_batch_plan('plan', '/tmp/never')": "plan must be a BatchPlan, got 'plan' (str)",
}
PROGRAM = """
import sys

import numpy as np

from phalanx.data import *

config, spec = BatchingConfig.throughput(64), BucketSpec(edges=(8,), max_sample_length=16)
for case in sys.argv[1:]:
    try:
        eval(case)
        print("nothing was raised")
    except TypeError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    command = [sys.executable, "-c", PROGRAM, *CASES]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(CASES, result.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_wrong_type_is_reported_with_the_expected_one(messages: dict[str, str], case: str) -> None:
    assert CASES[case] in messages[case]
