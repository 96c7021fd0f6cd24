"""Protocol for experts, whose actions are the labels for imitation learning."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, PyTree

Memory = Any
"""Pytree with everything that an expert remembers about a batch of episodes, such as its current plans."""


class ExpertLabels(NamedTuple):
    """Actions that an expert recommends for a batch of states."""

    actions: PyTree
    """Equally good actions for each state, with shape `[batch, choices, ...]`. When the expert acts, it takes
    the first choice."""
    mask: Bool[np.ndarray, "batch choices"]
    """True for recommended choices, and False for padding. All choices of a state are False if the expert
    does not know which action to take."""


@runtime_checkable
class Expert(Protocol):
    """Protocol for experts, which label states with actions. An expert runs on the host, not under `jit`.

    Experts are stateless: the caller stores an expert's memory and passes it to each method, and `advance`
    returns the updated memory. One expert can therefore be used for any number of batches. The memory of an
    expert that needs none is `()`.
    """

    def init(self, states: PyTree) -> Memory:
        """Create the memory for a batch of new episodes."""

    def label(self, states: PyTree, memory: Memory) -> ExpertLabels:
        """Label each state with the actions that the expert would take."""

    def must_act(self, actions: PyTree, labels: ExpertLabels) -> Bool[np.ndarray, " batch"]:
        """Return a boolean mask of the environments in which the expert must act instead of the policy.

        For example, the expert can prevent an action that would end the episode too early.

        Args:
            actions: Actions that the policy has selected.
            labels: Labels of the current states.
        """

    def advance(
        self, memory: Memory, labels: ExpertLabels, actions: PyTree, reset: Bool[np.ndarray, " batch"]
    ) -> Memory:
        """Return the memory after a step.

        Args:
            memory: Memory before the step.
            labels: Labels of the states before the step.
            actions: Actions that were taken.
            reset: True for environments whose episode ended in this step, so that a new episode has started.
        """
