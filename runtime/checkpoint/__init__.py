"""State saved, read and resharded."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.checkpoint.agreement import everywhere, first_rank, rank_and_world
    from runtime.checkpoint.checkpoint import Snapshot, read_wanted, restore
    from runtime.checkpoint.directory import (
        Found,
        Retention,
        forget_partial,
        latest,
        require_fresh,
        resumable,
        step_of,
    )
    from runtime.checkpoint.manifest import layout_hash
    from runtime.checkpoint.replica import (
        forget_emergency,
        inventory,
        salvaged,
        write_alone,
    )
    from runtime.checkpoint.saver import Saver
    from runtime.checkpoint.side_by_side import SideBySide
    from runtime.checkpoint.state import MODEL, Wanted, buffers, held
    from runtime.checkpoint.verification import (
        verified,
        verified_document,
        verified_view,
    )

__all__, __getattr__ = public(__name__, __file__)
