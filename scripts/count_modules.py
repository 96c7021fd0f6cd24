"""Count the modules of Phalanx in which a line runs during a command.

python scripts/count_modules.py train ppo --env arc num_updates=2 --out /tmp/run
"""

import contextlib
import sys

from phalanx.cli.app import main

if __name__ == "__main__":
    with contextlib.suppress(SystemExit):
        main()
    modules = sorted(name for name in sys.modules if name == "phalanx" or name.startswith("phalanx."))
    print(f"{len(modules)} modules")
