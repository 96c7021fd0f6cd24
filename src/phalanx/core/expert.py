"""Protocol for experts that imitation learning learns from."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, PyTree

Memory = Any
"""What an expert remembers about a batch of episodes, as one pytree."""


class ExpertLabels(NamedTuple):
    """Actions of an expert in a batch of states."""

    actions: PyTree
    """[batch, choices, ...]: actions that are equally good. The expert itself takes the first."""
    mask: Bool[np.ndarray, "batch choices"]
    """True for valid choices. A row without one means that the expert has no answer."""


@runtime_checkable
class Expert(Protocol):
    """Labels states with actions. An expert runs on the host.

    Its memory is passed in and returned, so that one expert can follow any number of batches. An expert
    without memory returns `()`.
    """

    def init(self, states: PyTree) -> Memory:
        """Create the memory for a batch of new episodes."""

    def label(self, states: PyTree, memory: Memory) -> ExpertLabels:
        """Label each state with the actions that the expert would take."""

    def must_act(self, actions: PyTree, labels: ExpertLabels) -> Bool[np.ndarray, " batch"]:
        """Return the rows where the expert acts instead of the policy, whose actions are given."""

    def advance(
        self, memory: Memory, labels: ExpertLabels, actions: PyTree, reset: Bool[np.ndarray, " batch"]
    ) -> Memory:
        """Update the memory after a step.

        Args:
            memory: Memory before the step.
            labels: Labels of the states before the step.
            actions: Actions that were taken.
            reset: True where a new episode has started.
        """
