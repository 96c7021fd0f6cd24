"""Package in which verifiers and prime-rl find the `phalanx-verifiers` taskset and its environment."""

from phalanx.integrations.verifiers import ChatHarness, PhalanxTaskset, VerifiersEnv

__all__ = ["ChatHarness", "PhalanxTaskset", "VerifiersEnv"]
