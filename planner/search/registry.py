"""The searches by the names that `--search` takes, each loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, final

from planner.search.search import AbstractSearch
from profiles.errors import UnknownName

PROVERS: Final = ("branch-and-bound", "exhaustive")
BASELINES: Final = (
    *("mcmc", "megatron", "hf-ladder", "fsdp", "deepspeed", "2bw", "pipedream"),
    "recursive",
)
_HOMES: Final = {
    "branch-and-bound": "planner.search.branch_and_bound:BranchAndBound",
    "exhaustive": "planner.baselines.exhaustive:Exhaustive",
    "mcmc": "planner.baselines.mcmc:Mcmc",
    "megatron": "planner.baselines.recipes:Megatron",
    "hf-ladder": "planner.baselines.recipes:HfLadder",
    "fsdp": "planner.baselines.recipes:Fsdp",
    "deepspeed": "planner.baselines.recipes:DeepSpeed",
    "2bw": "planner.baselines.two_bw:TwoBw",
    "pipedream": "planner.baselines.pipedream:PipeDream",
    "recursive": "planner.baselines.tofu:Tofu",
}


@final
class _Searches(Mapping[str, AbstractSearch]):
    """All searches by name, in order; an unknown one raises KeyError."""

    def __getitem__(self, name: str) -> AbstractSearch:
        home, _, called = _HOMES[name].partition(":")
        search: AbstractSearch = getattr(import_module(home), called)()
        return search

    def __iter__(self) -> Iterator[str]:
        return iter((*PROVERS, *BASELINES))

    def __len__(self) -> int:
        return len(_HOMES)


SEARCHES: Final = _Searches()


def search_called(name: str) -> AbstractSearch:
    """The search called *name*; raises UnknownName."""
    if name not in SEARCHES:
        raise UnknownName("search", name, SEARCHES)
    return SEARCHES[name]
