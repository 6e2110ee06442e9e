"""The searches by the names that `--search` takes."""

from __future__ import annotations

from typing import Final

from planner.baselines.deepspeed import DeepSpeed
from planner.baselines.exhaustive import Exhaustive
from planner.baselines.fsdp import Fsdp
from planner.baselines.hf_ladder import HfLadder
from planner.baselines.mcmc import Mcmc
from planner.baselines.megatron import Megatron
from planner.baselines.pipedream import PipeDream
from planner.baselines.two_bw import TwoBw
from planner.branch_and_bound import BranchAndBound
from planner.search import AbstractSearch
from profiles.errors import UnknownName, Unsupported

PROVERS: Final[tuple[AbstractSearch, ...]] = (BranchAndBound(), Exhaustive())
BASELINES: Final[tuple[AbstractSearch, ...]] = (
    Mcmc(),
    Megatron(),
    HfLadder(),
    Fsdp(),
    DeepSpeed(),
    TwoBw(),
    PipeDream(),
)
SEARCHES: Final[dict[str, AbstractSearch]] = {
    search.name: search for search in (*PROVERS, *BASELINES)
}
NOT_YET: Final = ("recursive",)


def search_called(name: str) -> AbstractSearch:
    """The search called *name*; raises Unsupported or UnknownName."""
    if name in NOT_YET:
        raise Unsupported(
            f"--search {name} is known but not part of this version; choose one of "
            f"{', '.join(SEARCHES)}"
        )
    if name not in SEARCHES:
        raise UnknownName("search", name, (*SEARCHES, *NOT_YET))
    return SEARCHES[name]
