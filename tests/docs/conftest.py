"""The scripts that make the documents are no package; their tests import them by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "docs"))
