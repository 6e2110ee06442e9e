"""What is asked of a search, its space, and what a solution holds."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

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
    from planner.problem.question import Asked, Goal, Posed, dp_to_split
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

__all__ = [
    "EXACT",
    "MOST_LAYERS",
    "ONE_F_ONE_B",
    "WORTHWHILE",
    "Added",
    "Asked",
    "Axes",
    "Candidate",
    "Counters",
    "Cuts",
    "Found",
    "Goal",
    "Objective",
    "Operators",
    "Option",
    "Place",
    "Posed",
    "Problem",
    "Proof",
    "Solution",
    "Space",
    "Staged",
    "Status",
    "Table",
    "Wider",
    "asked_of",
    "away_words",
    "candidate_words",
    "choice_words",
    "divisors",
    "dp_to_split",
    "hopeless",
    "hopeless_by_states",
    "is_unlike",
    "layout_pins",
    "length",
    "only_unlike",
    "orders",
    "require_consistent",
    "retention_words",
    "short_candidate_words",
    "simulate",
    "states_bytes",
    "states_fit",
    "take",
    "too_deep",
    "too_large",
    "usual_probability",
    "widest_bytes",
]

__getattr__ = lazily(__name__, __file__)
