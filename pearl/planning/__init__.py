"""From a decision to a plan: which workers change, in which order, and what the state is afterwards.

Pure: no step is carried out here. `make_plan` finds the fewest changes and orders them, `apply_plan` is the model of
their effect, and `plan_to_dict` is the plan as data.
"""

from pearl.planning.apply import StalePlanError, advance, apply_plan, touched
from pearl.planning.document import plan_to_dict, step_to_dict
from pearl.planning.estimate import estimate_s, phase_of
from pearl.planning.order import make_plan

__all__ = [
    "StalePlanError",
    "advance",
    "apply_plan",
    "estimate_s",
    "make_plan",
    "phase_of",
    "plan_to_dict",
    "step_to_dict",
    "touched",
]
