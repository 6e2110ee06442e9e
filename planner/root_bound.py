"""What no layout goes below, known before anything is priced: the matrix products.

A product of so many FLOPs takes no less than they take at the sustained rate
(`costmodel.compute`: tiles are whole, traffic and launches come on top), however it is
cut. Spread over all devices as is best,

    T ≥ Σ over products of  min over devices of  w · FLOPs / rate

for any weights w of the devices that sum to 1: each as fast as it is.
"""

from __future__ import annotations

import numpy as np

from costmodel.flops import operator_flops
from costmodel.machine import Machine
from planner.problem import Problem
from planner.stage_kinds import Array
from planner.stage_places import orders
from profiles.measurable import number_of
from profiles.operators import PRODUCTS
from profiles.precision import Format, precision


def root_bound_s(problem: Problem) -> float:
    """Seconds that no layout takes less than; next to nothing where samples price
    products, which know no sustained rate."""
    places = next(orders(problem))
    step_s = problem.machine.step_s
    if problem.machine.measured is not None:
        return step_s
    works = [_seconds(problem, place.machine) for place in places]
    rate = sum(
        place.devices / float(work.sum())
        for place, work in zip(places, works, strict=True)
    )
    shares = [work / work.sum() for work in works]
    return float(np.min(shares, axis=0).sum()) / rate + step_s


def _seconds(problem: Problem, on: Machine) -> Array:
    """Device-seconds of each product of the model in a step, forward and backward."""
    job, number = problem.job, precision(problem.precision)
    return np.array(
        [
            count
            * (2 if item.frozen else 3)
            * operator_flops(item, block, job)
            / _rate(on, number_of(item, number))
            for block, count in job.graph.blocks
            for item in block.operators
            if item.kind in PRODUCTS
        ]
    )


def _rate(on: Machine, number: Format) -> float:
    """FLOPs a second of the largest products in that format."""
    sustained = on.rates.matmul.sustained_of(number)
    return sustained * on.device.peak_flops_per_s(number)
