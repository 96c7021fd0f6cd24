"""Let tests import the scripts in `scripts/docs` by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "docs"))
