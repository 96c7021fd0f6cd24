"""Where verifiers and prime-rl find Phalanx: the taskset `phalanx-verifiers`, its environment, its harness.

All of it is defined in `phalanx.integrations.verifiers`.
"""

from phalanx.integrations.verifiers import ChatHarness, PhalanxEnv, PhalanxTaskset

__all__ = ["ChatHarness", "PhalanxEnv", "PhalanxTaskset"]
