"""How far off the ratio of two estimates of one job is: what both share cancels.

A step is made of parts whose prices hang on few fitted numbers: products and bubbles
on the device's rate, exchanges on the link that they cross. Each number may be off by
the standard error of its fit (`costmodel.machine.coefficients`; where nobody fitted
it, by what such numbers vary: the spread of their priors). A number that is off moves
both layouts, each by the share of its step that hangs on it, and only the difference
of the shares is left in the ratio:

    σ² = Σ (share_a − share_b)² σ_number²        half = √(least² + (1.28 σ)²)

`half` is half of the 80 % interval of log(ratio). `least` is what golden tables leave
of ratios within one family, about as much as two runs of one layout differ; measured
samples leave as much as a step varies from run to run.

Over which links the parts of a step speak.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, hypot, sqrt
from typing import Final

from costmodel.machine import Coefficients, Machine, device_owners
from costmodel.simulation import P90, STEP_NOISE
from planner.problem import Candidate, Problem, Staged
from profiles.hardware import Island, Level


def level_of(part: str, candidate: Candidate, island: Island) -> Level | None:
    """The slowest level that a part of the step crosses; None for no exchange."""
    layout = candidate.estimate.layout
    meshes = [stage.mesh for stage in layout.stages]
    spans = {
        "tensor_comm": max(mesh.tp for mesh in meshes),
        "context_comm": max(mesh.tp * mesh.cp for mesh in meshes),
        "expert_comm": max(mesh.ep * mesh.etp for mesh in meshes),
        "data_comm": max(len(mesh.ranks) for mesh in meshes),
        "pipeline_comm": layout.gpus,
    }
    if part not in spans:
        return None
    for level in island.levels:
        if level.devices is None or spans[part] <= level.devices:
            return level
    return island.levels[-1]


def spans_far(part: str, candidate: Candidate, island: Island) -> bool:
    """Whether a part of the step leaves the innermost domain of devices."""
    level = level_of(part, candidate, island)
    return level is not None and level is not island.levels[0]


DEVICE: Final = "the device's rate"
NEAR: Final = "the link inside a node"
FAR: Final = "the link between nodes"
HOST: Final = "the link to the host"
# What golden tables leave of ratios within one family, about as much as two runs of
# one layout differ.
INDISTINGUISHABLE: Final = 0.015
UNFITTED: Final = 0.2  # [assumed] of a number without a prior of its own
_OF_PART: Final = {
    "compute": DEVICE,
    "recompute": DEVICE,
    "bubble": DEVICE,
    "optimizer": DEVICE,
    "offload": HOST,
}


def ratio_half(problem: Problem, a: Candidate, b: Candidate) -> float:
    """Half of the 80 % interval of log of the ratio of two layouts' step times."""
    if problem.machine.measured is not None:
        return STEP_NOISE
    mine, other = shares(problem, a), shares(problem, b)
    apart = {name: mine[name] - other[name] for name in mine}
    return hypot(INDISTINGUISHABLE, P90 * _sigma(problem.machine, apart))


def bad_case_s(problem: Problem, candidate: Candidate) -> float:
    """What the step takes in its worst tenth, by the errors that layouts differ in."""
    found = candidate.estimate
    if problem.machine.measured is not None:
        return found.interval_s[1]
    sigma = _sigma(problem.machine, shares(problem, candidate))
    return found.step_time_s * exp(P90 * sigma)


def shares(problem: Problem, candidate: Candidate) -> dict[str, float]:
    """What part of the step hangs on each number."""
    total = candidate.estimate.step_time_s
    found = dict.fromkeys((DEVICE, NEAR, FAR, HOST), 0.0)
    for part, seconds in candidate.estimate.breakdown_s.items():
        number = _OF_PART.get(part)
        if number is None:
            number = FAR if _far(part, candidate, problem.machine) else NEAR
        found[number] += seconds / total
    return found


def _far(part: str, candidate: Candidate, on: Machine) -> bool:
    """Whether a part crosses nodes; of unlike stages or islands, as if it did."""
    if isinstance(candidate, Staged) or len(on.cluster.islands) > 1:
        return True
    return spans_far(part, candidate, on.island)


def _sigma(on: Machine, apart: Mapping[str, float]) -> float:
    """Standard deviation of a sum of *apart* shares, each off with its number."""
    errors = errors_of(on)
    return sqrt(sum((share * errors[name]) ** 2 for name, share in apart.items()))


def errors_of(on: Machine) -> dict[str, float]:
    """The standard error of each number's logarithm on a machine."""
    owners, fitted = device_owners(on.device), on.fitted
    architecture = on.device.architecture.lower()

    def link(name: str) -> float:
        return error_of(fitted, "link", f"{name}/{architecture}", name)

    return {
        DEVICE: error_of(fitted, "product", *owners),
        NEAR: link(on.links.inner.name),
        FAR: link(on.links.outer.name),
        HOST: UNFITTED,
    }


def error_of(fitted: Coefficients, quantity: str, *owners: str) -> float:
    """The standard error of the coefficient that the first of *owners* has; else how
    far such coefficients are assumed to spread."""
    errors = {item.name: item.error for item in fitted.entries}
    for owner in owners:
        if f"{quantity}/{owner}" in errors:
            return errors[f"{quantity}/{owner}"]
    alike = [
        item.spread
        for item in fitted.entries
        if item.name.partition("/")[0] == quantity
    ]
    return max(alike, default=UNFITTED)
