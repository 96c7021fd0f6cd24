"""The public names of `phalanx.tokens`, and what importing them costs."""

import subprocess
import sys

import phalanx.tokens


def test_every_public_name_is_there():
    assert [name for name in phalanx.tokens.__all__ if name not in vars(phalanx.tokens)] == []
    assert len(set(phalanx.tokens.__all__)) == len(phalanx.tokens.__all__)


def test_importing_token_batches_imports_neither_jax_nor_torch():
    code = "import sys, phalanx.tokens; print(sorted({'jax', 'torch', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
