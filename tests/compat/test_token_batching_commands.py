"""The commands of the token batching module's description, each as it stands but for the command's name.

They run one after another in one folder, because each needs what the ones before have written.
"""

import json
import shlex
from pathlib import Path

import pytest
import tokenizers
from typer.testing import CliRunner

from phalanx.cli import app as cli
from phalanx.data import BatchReader, load_batch_plan

LENGTH_CACHE = """
# Build length cache
phalanx data lengths build --dataset train.jsonl --tokenizer gpt2 --output lengths.jsonl

# Show length cache stats
phalanx data lengths stats --cache lengths.jsonl
"""

BATCH_PLAN = """
# Build batch plan
phalanx data batchplan build \\
    --lengths lengths.jsonl \\
    --epochs 3 \\
    --token-budget 4096 \\
    --bucket-edges 128,256,512 \\
    --output batch_plan/

# Show batch plan info
phalanx data batchplan info --plan batch_plan/

# Show sharded view for distributed training
phalanx data batchplan info --plan batch_plan/ --rank 0 --world-size 4

# Verify batch plan reproducibility
phalanx data batchplan verify --plan batch_plan/ --lengths lengths.jsonl

# Pre-shard for distributed training
phalanx data batchplan shard --plan batch_plan/ --world-size 4 --output shards/
"""

ANALYSIS = """
# Analyze batching efficiency
phalanx data batching analyze --cache lengths.jsonl --bucket-edges 128,256,512

# Display length histogram
phalanx data batching histogram --cache lengths.jsonl --bins 20 --width 50

# Get bucket edge suggestions
phalanx data batching suggest --cache lengths.jsonl --num-buckets 4 --goal waste
"""

BATCH_FILES = """
# Generate NPZ batch files from BatchPlan
phalanx data batch generate \\
    --plan batch_plan/ \\
    --dataset train.jsonl \\
    --tokenizer gpt2 \\
    --output batches/
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset of 200 texts of 5 to 601 words, and a tokenizer named gpt2 that needs no network."""
    monkeypatch.chdir(tmp_path)
    words = ("a", "b", "c")
    rows = [
        {"id": f"t{row}", "text": " ".join(words[i % 3] for i in range(5 + 3 * row))} for row in range(200)
    ]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vocabulary = {"[UNK]": 0, "<pad>": 1, **{word: place + 2 for place, word in enumerate(words)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    Path("gpt2").mkdir()
    tokenizer.save("gpt2/tokenizer.json")
    return tmp_path


def run(block: str) -> list[str]:
    """The output of each command of a block."""
    outputs = []
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "phalanx"
            result = CliRunner().invoke(cli.app, words[1:])
            assert result.exit_code == 0, f"{line}: {result.output} {result.exception!r}"
            outputs.append(result.output)
    return outputs


def test_every_command_runs_and_says_what_it_did(folder: Path) -> None:
    built, stats = run(LENGTH_CACHE)
    tokens = sum(5 + 3 * row for row in range(200))
    assert f"200 samples, {tokens:,} tokens" in built
    assert "longest    602" in stats

    _, info, sharded, verified, shards = run(BATCH_PLAN)
    plan = load_batch_plan("batch_plan/")
    assert plan.num_epochs == 3 and plan.fingerprint in info
    assert "rank 0 of 4" in sharded
    assert f"{plan.num_batches:,} batches are the same" in verified
    assert "slowest over ideal" in shards
    assert {path.name for path in Path("shards").iterdir()} == {f"rank_{rank}" for rank in range(4)}

    analysis, histogram, suggestion = run(ANALYSIS)
    assert "Recommendations" in analysis
    assert sum("|" in line for line in histogram.splitlines()) == 20
    assert len(suggestion.splitlines()[0].split(",")) == 3

    run(BATCH_FILES)
    reader = BatchReader("batches/")
    assert reader.fingerprint == plan.fingerprint
    assert reader.verify() == plan.num_batches
