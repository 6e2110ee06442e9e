"""From what was asked to a `Problem`: defaults are resolved here, once, and named.

`Asked`: a command line's question, of which one number may be asked anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from costmodel.layout import AS_IT_IS, NOTHING, Offload
from costmodel.machine import (
    DEFAULT,
    Calibration,
    Machine,
    Profile,
    load_framework,
)
from costmodel.options import Pins
from costmodel.simulation import (
    default_precision,
    flash_default,
    offload_of,
    quality_remarks,
    remarks_on,
    resolve_job,
    resolve_machine,
    unbalanced,
)
from costmodel.support import is_described, is_local
from planner.problem.pin_checks import require_consistent, require_possible
from planner.problem.problem import Objective, Problem, asked_of, usual_probability
from planner.problem.space import Space
from planner.problem.table import length, take
from profiles.commandline import JobOptions
from profiles.errors import Contradiction, InvalidQuestion, Unsupported
from profiles.hardware import Cluster
from profiles.models import DecoderSpec, Job, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """A complete problem, and what was assumed to complete it."""

    problem: Problem
    assumed: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is best, and among which layouts.

    *executable* leaves out what `execute` does not carry out; by default on this
    machine, the cluster `local`, and where `--framework` names ours. Where it names
    another, what that does not have is left out, unless *executable* is False. What is
    found fits with at least *probability*, by default 0.95, or 0.5 where memory is the
    objective. With *any_stage* stages may differ in mesh; *allow_async* lets schedules
    in that do not flush.
    """

    objective: Objective = Objective.THROUGHPUT
    executable: bool | None = None
    probability: float | None = None
    any_stage: bool = False
    allow_async: bool = False


ANY_FASTEST = Goal()


def pose(
    model: Model,
    cluster: Cluster,
    wish: JobOptions,
    pins: Pins,
    goal: Goal = ANY_FASTEST,
    profile: Profile | None = None,
    calibration: Calibration | None = None,
) -> Posed:
    """Complete a question about the best layout; a *profile*'s samples are prices, as a
    *calibration* changes them.

    Raises Contradiction for pins that exclude each other, the GPUs, the model or the
    batch; UnknownName, InvalidSpec, Unsupported, and StaleProfile for samples of
    another device.
    """
    assumed: dict[str, Any] = {}
    gpus = _gpus(cluster, wish, pins, assumed)
    where = resolve_machine(cluster, wish, pins, profile, assumed)
    job, _ = resolve_job(model, wish, gpus, pins.dp or 1, pins, {})
    where = unbalanced(where, job, pins.imbalance, assumed)
    precision = wish.precision or default_precision(where.cluster)
    where = where.calibrated(calibration, job, precision)
    objective, probability = goal.objective, goal.probability
    problem = _problem(job, where, gpus, wish, pins, assumed, objective)
    if probability is None:
        probability = assumed["probability"] = usual_probability(objective)
    problem = replace(
        problem,
        executable=_executable(cluster, wish, goal.executable, assumed),
        runs_on=_framework(wish, goal.executable),
        probability=probability,
        any_stage=goal.any_stage,
        allow_async=goal.allow_async,
        machine=asked_of(problem.machine, objective, probability),
    )
    dp = 1 if wish.global_batch is not None else dp_to_split(problem)
    job, warnings = resolve_job(model, wish, gpus, dp, pins, assumed)
    problem = replace(problem, job=job)
    require_consistent(problem)
    require_possible(problem)
    remarks = (*remarks_on(profile, where), *problem.machine.remarks())
    remarks += quality_remarks(pins.compress_activations)
    return Posed(problem=problem, assumed=assumed, warnings=(*warnings, *remarks))


def _gpus(
    cluster: Cluster, wish: JobOptions, pins: Pins, assumed: dict[str, Any]
) -> int:
    """As asked; else the cluster's, where it has a number of them."""
    if wish.gpus is not None:
        return wish.gpus
    if cluster.gpus is None:
        raise InvalidQuestion(
            f"--gpus is missing and {cluster.name} has no fixed number of them; give "
            "it, such as --gpus 64"
        )
    assumed["gpus"] = cluster.gpus
    return cluster.gpus


def _framework(wish: JobOptions, executable: bool | None) -> str | None:
    """The framework that was named, unless everything that is priced is asked for."""
    if wish.framework is None or executable is False:
        return None
    name = load_framework(wish.framework).name
    return name if is_described(name) else None


def _executable(
    cluster: Cluster, wish: JobOptions, asked: bool | None, assumed: dict[str, Any]
) -> bool:
    """As asked; else on this machine, which is then named, and where the framework
    that was named is ours."""
    if asked is not None:
        return asked
    if wish.framework is not None and load_framework(wish.framework).name == DEFAULT:
        return True
    if is_local(cluster):
        assumed["executable"] = True
    return is_local(cluster)


def _problem(
    job: Job,
    where: Machine,
    gpus: int,
    wish: JobOptions,
    pins: Pins,
    assumed: dict[str, Any],
    objective: Objective,
) -> Problem:
    precision, flash = wish.precision, pins.flash_attention
    away = pins.free_tier
    if precision is None:
        precision = assumed["precision"] = default_precision(where.cluster)
    gradient = wish.grad_dtype or where.framework.gradients.format
    if wish.grad_dtype is None and precision not in ("fp32", "tf32"):
        assumed["grad_dtype"] = where.framework.gradient_formats(precision)
    if flash is None:
        flash = assumed["flash_attention"] = flash_default(where.cluster)
    return Problem(
        job=job,
        machine=where,
        gpus=gpus,
        pins=pins,
        precision=precision,
        gradient_format=gradient,
        flash_attention=flash,
        memory_limit_bytes=where.device.capacity_bytes,
        offload=kept_of(pins, assumed),
        offloads_to=away,
        free_bits=pins.free_bits,
        objective=objective,
    )


def kept_of(pins: Pins, assumed: dict[str, Any]) -> Offload:
    """What is offloaded and compressed in all layouts: what is not left to the search.

    Raises Contradiction where both are.
    """
    if pins.free_tier is not None and pins.compress_activations not in (None, AS_IT_IS):
        raise Contradiction(
            f"--offload auto and --compress-activations {pins.compress_activations} "
            "are not searched at once; leave one out"
        )
    if pins.free_tier is not None:
        return NOTHING
    bits = None if pins.free_bits else pins.compress_activations
    return offload_of(replace(pins, compress_activations=bits), assumed)


def dp_to_split(problem: Problem) -> int:
    """The data-parallel degree that a batch nobody gave is made to suit.

    The smallest raise that lets some layout with equal pipeline stages split the
    batch; none, if one does as it is. Unequal stages alone (7 stages of 40 layers,
    because 7 GPUs do not divide the batch) would be a poor reason to keep it.
    """
    pins, batch = problem.pins, problem.job.global_batch
    shapes = Space(problem=problem).shapes
    if not length(shapes):
        return pins.dp or 1
    even = problem.job.graph.body % shapes["pp"] == 0
    if even.any():
        shapes = take(shapes, even)
    unit = shapes["dp"] * (pins.micro_batch or 1) * (pins.micro_batches or 1)
    raised = -(-batch // unit) * unit
    return int(shapes["dp"][np.argmin(raised)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Everything that was said; *where* is the cluster's name."""

    model: Model
    cluster: Cluster
    where: str
    job: JobOptions
    pins: Pins
    goal: Goal = ANY_FASTEST
    profile: Profile | None = None
    calibration: Calibration | None = None

    def pose(
        self,
        *,
        gpus: int | None = None,
        seq_len: int | None = None,
        global_batch: int | None = None,
        layers: int | None = None,
    ) -> Posed:
        """The complete question, with the numbers given here in place of what was said.

        Raises as `question.pose`, and Unsupported for the layers of another family.
        """
        job = self.job
        job = replace(
            job,
            gpus=job.gpus if gpus is None else gpus,
            seq_len=job.seq_len if seq_len is None else seq_len,
            global_batch=job.global_batch if global_batch is None else global_batch,
        )
        posed = pose(
            self.model if layers is None else with_layers(self.model, layers),
            self.cluster,
            job,
            self.pins,
            self.goal,
            self.profile,
            self.calibration,
        )
        if self.job.cluster is None:
            assumed = {"cluster": self.where, **posed.assumed}
            posed = replace(posed, assumed=assumed)
        return posed


def with_layers(model: Model, layers: int) -> Model:
    """*model* with another number of layers, and a name that says so.

    Raises Unsupported for what is no decoder, InvalidSpec for too few layers.
    """
    spec = model.spec
    if not isinstance(spec, DecoderSpec):
        raise Unsupported(
            f"{model.name} is of family {spec.family!r}; layers are added to decoders"
        )
    if layers == spec.layers:
        return model
    deeper = replace(spec, layers=layers)
    return replace(model, name=f"{model.name}-{layers}-layers", spec=deeper)
