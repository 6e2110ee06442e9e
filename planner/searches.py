"""The searches by the names that `--search` takes, each loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, final

from planner.search import AbstractSearch
from profiles.errors import UnknownName, Unsupported

PROVERS: Final = ("branch-and-bound", "exhaustive")
BASELINES: Final = (
    *("mcmc", "megatron", "hf-ladder", "fsdp", "deepspeed", "2bw", "pipedream"),
)
NOT_YET: Final = ("recursive",)
_HOMES: Final = {
    "branch-and-bound": "planner.branch_and_bound:BranchAndBound",
    "exhaustive": "planner.baselines.exhaustive:Exhaustive",
    "mcmc": "planner.baselines.mcmc:Mcmc",
    "megatron": "planner.baselines.megatron:Megatron",
    "hf-ladder": "planner.baselines.hf_ladder:HfLadder",
    "fsdp": "planner.baselines.fsdp:Fsdp",
    "deepspeed": "planner.baselines.deepspeed:DeepSpeed",
    "2bw": "planner.baselines.two_bw:TwoBw",
    "pipedream": "planner.baselines.pipedream:PipeDream",
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
    """The search called *name*; raises Unsupported or UnknownName."""
    if name in NOT_YET:
        raise Unsupported(
            f"--search {name} is known but not part of this version; choose one of "
            f"{', '.join(SEARCHES)}"
        )
    if name not in SEARCHES:
        raise UnknownName("search", name, (*SEARCHES, *NOT_YET))
    return SEARCHES[name]
