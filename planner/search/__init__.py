"""Branch and bound over the space, with bounds and a shortlist."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.search.bounds import ENDS, Floor, leaf_bytes, leaf_s, rough_s
    from planner.search.branch_and_bound import BranchAndBound
    from planner.search.branch_queue import BranchQueue
    from planner.search.corner import fast_fit
    from planner.search.frontier import Frontier
    from planner.search.least_peak import first_fit, free, leanest
    from planner.search.mixture import least_mixture
    from planner.search.offload import everything_away, over_offloads
    from planner.search.registry import BASELINES, SEARCHES, search_called
    from planner.search.remat_per_stage import making_again, polished, without_auto
    from planner.search.search import AbstractSearch, Clock, Limits, Progress
    from planner.search.shortlist import FARTHEST, Shortlist, distinct
    from planner.search.verify import again_priced, check

__all__, __getattr__ = public(__name__, __file__)
