"""Questions about an answer: why, what else, how robust, how large."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
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
    from planner.analysis.probe import POOL, probe_files, probes
    from planner.analysis.robust_choice import looked_for, recommended, why_chosen
    from planner.analysis.scaling import Sized, efficiency, plans
    from planner.analysis.sensitivity import (
        sensitivities,
        sensitivities_table,
        sensitivity_document,
    )

__all__ = [
    "BRIEF",
    "POOL",
    "Largest",
    "Sized",
    "binds",
    "diagnose",
    "diagnose_search",
    "difference",
    "difference_document",
    "difference_view",
    "doubt",
    "efficiency",
    "faster",
    "indistinguishable",
    "looked_for",
    "loss",
    "maximize",
    "plans",
    "probe_files",
    "probes",
    "recommended",
    "require_alike",
    "sensitivities",
    "sensitivities_table",
    "sensitivity_document",
    "why_chosen",
    "worse",
]

__getattr__ = lazily(__name__, __file__)
