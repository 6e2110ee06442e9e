"""Processes: started, watched, reported on."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.launch.probe import Probed, probed, words
    from runtime.launch.report import diverged, opening, run_view
    from runtime.launch.run import Run, prepare

__all__, __getattr__ = public(__name__, __file__)
