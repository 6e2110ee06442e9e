"""`--why-not tp=4`: the best plan with a pin that the recommendation has not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel.options import Pins, layout_options
from planner.analysis.explain import loss, worse
from planner.problem import Asked, Candidate, Problem, Solution, short_candidate_words
from profiles.commandline import from_keywords
from profiles.errors import InvalidSpec, MeshwrightError
from profiles.units import format_bytes

_FLAGS = {"on": True, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The best layout with a *pin* as it was written, or the *reason* there is none;
    `slower` is the share by which its value is larger, `because` where that comes from.
    """

    pin: str
    candidate: Candidate | None = None
    slower: float = 0.0
    because: str = ""
    reason: str = ""

    def words(self, global_batch: int) -> str:
        if self.candidate is None:
            return self.reason
        layout = short_candidate_words(self.candidate, global_batch)
        needed = format_bytes(self.candidate.estimate.peak_memory_bytes)
        if not self.slower:
            return f"{layout}: as good"
        return f"{layout}: {self.slower:.1%} worse ({self.because}), {needed}"

    def document(self) -> dict[str, Any]:
        found = self.candidate and self.candidate.estimate
        return {
            "pin": self.pin,
            "layout": found.layout.to_dict() if found else None,
            "estimate": found.document() if found else None,
            "slower": self.slower if found else None,
            "because": self.because if found else self.reason,
        }


def alternatives(
    pins: Sequence[str],
    asked: Asked,
    problem: Problem,
    best: Candidate,
    solve: Callable[[Problem], Solution],
) -> Iterator[Alternative]:
    """The best plan with each of *pins*, as they are written: `tp=4`, or `tp=4,pp=2`.

    Raises what `parse_pins` raises.
    """
    wanted = [(text, parse_pins(text, asked.pins)) for text in pins]
    for text, held in wanted:
        try:
            posed = replace(asked, pins=held).pose(gpus=problem.gpus)
            other = solve(posed.problem).best
        except MeshwrightError as error:
            yield Alternative(pin=text, reason=str(error))
            continue
        if other is None:
            yield Alternative(pin=text, reason="no layout with it fits")
            continue
        yield Alternative(
            pin=text,
            candidate=other,
            slower=max(worse(problem, best, other), 0.0),
            because=loss(problem, best, other),
        )


def parse_pins(text: str, pins: Pins) -> Pins:
    """*pins* with those that *text* fixes: options with their values, commas between.

    Raises InvalidSpec and UnknownName.
    """
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InvalidSpec(
                f"--why-not {part!r}: write OPTION=VALUE, such as tp=4 or tp=4,pp=2"
            )
        values[name.removeprefix("--").replace("-", "_")] = _FLAGS.get(value, value)
    (fixed,) = from_keywords(values, {Pins: layout_options})
    return replace(pins, **{name: getattr(fixed, name) for name in values})
