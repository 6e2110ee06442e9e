"""What is asked of a search, its space, and what a solution holds."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.problem.axes import ONE_F_ONE_B, Axes
    from planner.problem.layout_text import (
        away_words,
        candidate_words,
        choice_words,
        retention_words,
        short_candidate_words,
    )
    from planner.problem.memory_bound import (
        hopeless,
        states_bytes,
        states_fit,
        too_large,
        widest_bytes,
    )
    from planner.problem.pin_checks import layout_pins, require_consistent
    from planner.problem.problem import (
        Candidate,
        Found,
        Objective,
        Problem,
        Staged,
        asked_of,
        simulate,
        usual_probability,
    )
    from planner.problem.question import Asked, Goal, Posed, dp_to_split, kept_of
    from planner.problem.regions import (
        MOST_LAYERS,
        Place,
        is_unlike,
        only_unlike,
        orders,
        too_deep,
    )
    from planner.problem.solution import (
        EXACT,
        WORTHWHILE,
        Added,
        Counters,
        Cuts,
        Operators,
        Proof,
        Solution,
        Status,
        Wider,
        hopeless_by_states,
    )
    from planner.problem.space import Space
    from planner.problem.table import Option, Table, divisors, length, take

__all__, __getattr__ = public(__name__, __file__)
