"""Every test runs on the CPU with the package's shape annotations checked.

Fixtures belong to the test files that use them.
"""

import os
import sys

from jaxtyping import install_import_hook

os.environ["JAX_PLATFORMS"] = "cpu"

if early := [name for name in sys.modules if name.partition(".")[0] == "phalanx"]:
    raise RuntimeError(f"{early[0]} was imported before the annotations could be switched on")

install_import_hook("phalanx", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")
