"""Where verifiers and prime-rl find Phalanx: the taskset `phalanx-verifiers`, its environment, its harness.

All of it is defined in `phalanx.adapters.verifiers`.
"""

from phalanx.adapters.verifiers import ChatHarness, PhalanxEnv, PhalanxTaskset

__all__ = ["ChatHarness", "PhalanxEnv", "PhalanxTaskset"]
