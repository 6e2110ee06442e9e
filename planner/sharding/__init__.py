"""One sharding for each operator: an integer program and its solvers."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.sharding.choice_graph import Choice, Chosen, Status
    from planner.sharding.costs import SentBytes
    from planner.sharding.elimination import eliminate
    from planner.sharding.intra_op import BlockSharding, Posed, described, pose
    from planner.sharding.problem import ENTRY, ROUTED, BlockProblem, entry_choices
    from planner.sharding.refine import with_own_shardings
    from planner.sharding.report import (
        layout_block,
        layout_shardings,
        shardings_document,
        shardings_view,
    )

__all__, __getattr__ = public(__name__, __file__)
