"""The JSON document of `plan`."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import Any

from costmodel.stages import places_of
from planner.analysis import binds, faster, indistinguishable, loss, why_chosen, worse
from planner.problem import Candidate, Operators, Problem, Solution, Wider
from planner.report.frameworks import software_document
from profiles.errors import MeshwrightError
from profiles.models import Job, ModuleSpec, model, spec_document


def premise_document(problem: Problem, cluster: str) -> dict[str, Any]:
    """The question, as far as it is known before the answer."""
    return {
        "job": job_document(problem.job),
        "cluster": cluster,
        "gpus": problem.gpus,
    }


def nothing_document(solution: Solution | None = None) -> dict[str, Any]:
    """The answer's members where there is no layout."""
    return {
        "layout": None,
        "estimate": None,
        "bound": None,
        "search": None if solution is None else search_document(solution),
        "alternatives": [],
        "indistinguishable": [],
    }


def job_document(job: Job) -> dict[str, Any]:
    """The job as layout files hold it: a model of no catalogue is spelled out."""
    return {
        "model": job.model if _in_catalogue(job) else spec_document(job.spec),
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "optimizer": job.optimizer,
    }


def _in_catalogue(job: Job) -> bool:
    if isinstance(job.spec, ModuleSpec):
        return False
    try:
        return model(job.model).spec == job.spec
    except MeshwrightError:
        return False


def answer_document(problem: Problem, solution: Solution) -> dict[str, Any]:
    """The answer: layout, estimate, bound, search, alternatives."""
    best = solution.best
    assert best is not None, "who has no layout says why instead"
    places = places_of(best.estimate.layout, problem.machine.cluster)
    return {
        "layout": best.estimate.layout.to_dict(),
        **({"placement": [asdict(one) for one in places]} if places else {}),
        "software": software_document(problem, best.estimate.layout),
        "estimate": best.estimate.document(),
        "bound": bound_document(problem, solution),
        "search": search_document(solution),
        "binds": binds(problem, solution),
        "alternatives": [
            _alternative(problem, best, other) for other in solution.runners_up
        ],
        "indistinguishable": indistinguishable(problem, solution),
        "chosen_over": _chosen_over(problem, solution),
        "try_first": _faster(solution, solution.try_first),
        "infeasible": None,
    }


def _chosen_over(problem: Problem, solution: Solution) -> dict[str, Any] | None:
    other = solution.instead_of
    if other is None:
        return None
    return {
        "layout": other.estimate.layout.to_dict(),
        "estimate": other.estimate.document(),
        "because": why_chosen(problem, solution),
    }


def _faster(solution: Solution, other: Candidate | None) -> dict[str, Any] | None:
    """A faster layout that fits by its estimate alone, with its odds."""
    if solution.best is None or other is None:
        return None
    return {
        "layout": other.estimate.layout.to_dict(),
        "estimate": other.estimate.document(),
        "faster": faster(solution.best, other),
        "probability_fits": other.estimate.probability_fits,
    }


def bound_document(problem: Problem, solution: Solution) -> dict[str, Any]:
    quantity = problem.objective.quantity
    timed = quantity == "step_time_s"
    return {
        "objective": quantity,
        "value": solution.value,
        "lower": solution.lower,
        "lower_step_time_s": solution.lower if timed else solution.lower_step_time_s,
        "gap": solution.gap,
        "space": solution.space,
        "executable": problem.executable,
        "probability": problem.probability if problem.by_odds else None,
        "memory_limit_bytes": problem.memory_limit_bytes,
        "by_estimate": _faster(solution, solution.by_estimate),
        "complete": solution.complete,
        "added": added_document(solution),
        "cuts": _cuts(solution),
        "operators": _operators(solution.operators),
        **({"alike_stages": _alike(solution.wider)} if solution.wider else {}),
    }


def _cuts(solution: Solution) -> dict[str, Any] | None:
    """What is known of stages of unequal layers, of which `lower` speaks too; None
    where they are not searched."""
    cuts = solution.cuts
    if cuts is None:
        return None
    even = None if cuts.even_value == inf else cuts.even_value  # JSON has no infinity
    return {
        "schedule": "1f1b",
        "layouts_considered": cuts.considered,
        "pruned_by_memory": cuts.by_memory,
        "cuts_simulated": cuts.simulated + cuts.fitted,
        "lower": cuts.lower,
        "even": even,
        "gain": solution.cut_gain,
        "retention_by_stage": {"cuts_fitted": cuts.fitted, "lower": cuts.fitted_lower},
    }


def _operators(found: Operators | None) -> dict[str, Any] | None:
    """What is known of shardings other than presets; None where none were looked at."""
    if found is None:
        return None
    return {
        "replaced": found.preset_value is not None,
        "preset": {"value": found.preset_value, "lower": found.preset_lower}
        if found.preset_value is not None
        else None,
        "blocks": [{**asdict(one), "gap": one.gap} for one in found.proofs],
    }


def _alike(wider: Wider) -> dict[str, Any]:
    """What is known of alike stages alone, and what was tried beside them."""
    return {
        "value": wider.alike.value,
        "lower": wider.alike.lower,
        "gap": wider.alike.gap,
        "partitions_beside": wider.partitions,
        "simulated_beside": wider.simulated,
    }


def added_document(solution: Solution) -> dict[str, Any] | None:
    """What was tried beside the space that `lower` and `gap` speak of."""
    added = solution.added
    if added is None:
        return None
    alike = added.uniform_value < inf
    return {
        "space": "retention by stage",
        "layouts_considered": added.considered,
        "layouts_simulated": added.simulated,
        "lower": added.lower,
        "gap": max(0.0, 1 - added.lower / solution.value),
        "gain": 1 - solution.even_value / added.uniform_value if alike else None,
        "uniform": {"value": added.uniform_value, "lower": added.uniform_lower}
        if alike
        else None,
    }


def search_document(solution: Solution) -> dict[str, Any]:
    counters = solution.counters
    return {
        "name": solution.search,
        "status": solution.status.value,
        "layouts_considered": counters.considered,
        "layouts_pruned": counters.pruned,
        "layouts_simulated": counters.simulated,
        "pruned_by": {"memory": counters.by_memory, "bound": counters.by_value},
        "seconds": solution.seconds,
    }


def _alternative(problem: Problem, best: Candidate, other: Candidate) -> dict[str, Any]:
    return {
        "layout": other.estimate.layout.to_dict(),
        "estimate": other.estimate.document(),
        "worse": worse(problem, best, other),
        "loses": loss(problem, best, other),
    }
