"""The searches by the names that `--search` takes."""

from __future__ import annotations

from typing import Final

from planner.baselines.exhaustive import Exhaustive
from planner.branch_and_bound import BranchAndBound
from planner.search import AbstractSearch
from profiles.errors import UnknownName, Unsupported

SEARCHES: Final[dict[str, AbstractSearch]] = {
    search.name: search for search in (BranchAndBound(), Exhaustive())
}
NOT_YET: Final = (
    *("mcmc", "recursive", "pipedream", "2bw", "megatron", "hf-ladder", "fsdp"),
    "deepspeed",
)


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
