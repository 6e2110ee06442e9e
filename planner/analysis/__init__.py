"""Questions about an answer: why, what else, how robust, how large."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.analysis.alternative import Alternative, alternatives, parse_pins
    from planner.analysis.diff import (
        difference,
        difference_document,
        difference_view,
        require_alike,
    )
    from planner.analysis.explain import (
        BRIEF,
        binds,
        doubt,
        faster,
        indistinguishable,
        loss,
        worse,
    )
    from planner.analysis.infeasibility import diagnose, diagnose_search
    from planner.analysis.largest import Largest, maximize
    from planner.analysis.present import (
        present_document,
        present_lines,
        present_view,
        to_plan,
    )
    from planner.analysis.probe import POOL, probe_files, probes
    from planner.analysis.robust_choice import looked_for, recommended, why_chosen
    from planner.analysis.scaling import (
        STRONG,
        WEAK_AT,
        Planned,
        Sized,
        batches,
        curve_sizes,
        efficiency,
        planned,
        plans,
    )
    from planner.analysis.sensitivity import (
        sensitivities,
        sensitivities_table,
        sensitivity_document,
    )
    from planner.analysis.sizing import Sizing, Wanted, wanted_of
    from planner.analysis.versus import Rival, rivals

__all__, __getattr__ = public(__name__, __file__)
