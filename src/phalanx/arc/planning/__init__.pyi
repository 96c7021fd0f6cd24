# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .demonstrations import (
    Demonstrations as Demonstrations,
    Transitions as Transitions,
    demonstrations as demonstrations,
)
from .plans import Plan as Plan, plan_pair as plan_pair, solution_actions as solution_actions
