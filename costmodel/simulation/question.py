"""From what was asked to what is meant: defaults are resolved here, once, and named.

`Pins` is a request: a field left out is None. `resolve` completes it into a job, a
uniform layout and a machine; everything it filled in is listed in `assumed`.

The machine that a question is about: cluster, software, measured samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log2, sqrt
from typing import Any, Final

from costmodel.layout import (
    AS_IT_IS,
    Offload,
    Uniform,
    ZeroPlus,
    asked_layers,
    parse_offload,
)
from costmodel.machine import (
    DEFAULT,
    Calibration,
    Framework,
    Machine,
    Profile,
    framework_on,
    load_framework,
    machine,
    shares_cores,
    with_buckets,
    with_overlap,
)
from costmodel.operators import GradientCompression
from costmodel.options import OVERLAPS, Pins, cuts_products
from costmodel.schedule import SCHEDULES, schedule_called
from costmodel.stages import placed
from costmodel.support import (
    default_precisions,
    framework_warnings,
    fuses_attention,
    local_warnings,
    require_legal,
)
from profiles.commandline import JobOptions
from profiles.errors import Contradiction, InvalidSpec, Unsupported
from profiles.hardware import Cluster, Device
from profiles.hardware import precision as precision_called
from profiles.models import DecoderSpec, Job, Model, ModuleSpec
from profiles.units import MB, format_count

NO_OVERLAP: Final = "none (ranks communicate with the cores that compute)"
NO_CUT: Final = (
    "--overlap tp cuts products with the gathers and scatters of sequence parallelism, "
    "which --no-sequence-parallel does without; leave one of the two out"
)
OURS: Final = (DEFAULT, "fsdp2")  # whose operators are those that are measured


def resolve_machine(
    cluster: Cluster,
    wish: JobOptions,
    pins: Pins,
    profile: Profile | None,
    assumed: dict[str, Any],
) -> Machine:
    """The cluster under the software that was asked for, with measured samples.

    Raises StaleProfile for samples of another device.
    """
    framework = framework_of(wish, pins, cluster.islands[0].device, assumed)
    if profile is None:
        return machine(cluster, framework)
    assumed["profile"] = profile.words
    return machine(cluster, framework, samples=profile.samples)


def remarks_on(profile: Profile | None, on: Machine) -> tuple[str, ...]:
    """What should be known of measured samples before a price made of them is read."""
    if profile is None:
        return ()
    found = list(profile.warnings)
    if on.framework.name not in OURS:
        found.append(
            f"the samples are of PyTorch's own operators; {on.framework.name} may run "
            "others"
        )
    return tuple(found)


def framework_of(
    wish: JobOptions, pins: Pins, device: Device, assumed: dict[str, Any]
) -> Framework:
    """The software that is priced, with the overlap that was asked for."""
    base = load_framework(wish.framework or DEFAULT)
    if wish.framework is None:
        assumed["framework"] = base.name
    if wish.grad_dtype is not None:
        base = replace(base, footprint=base.footprint.as_asked())
    if pins.bucket_mb is not None:
        base = with_buckets(base, pins.bucket_mb * MB)
    if pins.overlap is None:
        there = framework_on(base, device)
        assumed["overlap"] = ",".join(sorted(there.overlap.hidden)) or "none"
        if shares_cores(device):
            assumed["overlap"] = NO_OVERLAP
        return there
    asked = [part for part in pins.overlap.split(",") if part and part != "none"]
    for part in asked:
        if part not in OVERLAPS:
            raise Contradiction(
                f"--overlap {part!r} is not one of {', '.join(OVERLAPS)}, none"
            )
    return with_overlap(base, frozenset(asked))


# [assumed] of a device in a step: what takes an A100 five minutes at 8 B parameters.
# Published batches are those of hundreds of devices, and would take one of them hours.
MOST_TOKENS: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class Question:
    """A complete question: the job, the layout asked about, and where it runs."""

    job: Job
    choice: Uniform
    machine: Machine
    assumed: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def offload_of(pins: Pins, assumed: dict[str, Any]) -> Offload:
    """What leaves the device, and in how many bits activations stay; raises
    Contradiction for a place with nothing in it."""
    found = parse_offload(pins.offload, pins.offload_to, pins.compress_activations)
    if found.anything and pins.offload_to is None:
        assumed["offload_to"] = found.tier
    if pins.offload_to is not None and not found.anything:
        raise Contradiction(
            f"--offload-to {pins.offload_to} has no effect without --offload; add "
            "--offload optimizer, parameters or activations=RATIO"
        )
    return found


def with_compressed_gradients(
    where: Machine, job: Job, choice: Uniform, text: str | None
) -> Machine:
    """*where*, all-reducing gradients as *text* says.

    Raises Contradiction where they are not, InvalidSpec for another word.
    """
    how = GradientCompression.parse(text)
    if how.kind == AS_IT_IS:
        return where
    copies = schedule_called(choice.schedule).copies
    how.require(job, zero=choice.zero, away=choice.offload.states, copies=copies)
    rules = precision_called(choice.precision, gradient=choice.gradient_format)
    share = how.share(job.graph, choice.tp, rules)
    own = replace(where.framework.gradients, compressed=share)
    return replace(where, framework=replace(where.framework, gradients=own))


def quality_remarks(*compressed: str | None) -> tuple[str, ...]:
    """What a price does not say of what compressions do to training, of activations
    and gradients."""
    noise = "gradients have noise that no price holds; compare the losses of a few"
    return tuple(
        f"{what.format(how)}: {noise} hundred steps with and without"
        for what, how in zip(
            ("activations in {} bits", "gradients by {}"), compressed, strict=False
        )
        if how not in (None, AS_IT_IS)
    )


def zero_plus_of(pins: Pins) -> ZeroPlus:
    """What of ZeRO++ is asked for."""
    return ZeroPlus(
        quantized_weights=bool(pins.zero_quantized_weights),
        hpz_partition_size=pins.zero_hpz_partition_size or 1,
        quantized_gradients=bool(pins.zero_quantized_gradients),
    )


def flash_default(cluster: Cluster) -> bool:
    """Flash attention wherever the device has it (Ampere and newer)."""
    return fuses_attention(cluster)


def default_precision(cluster: Cluster) -> str:
    """bf16 where the device has it, else fp16, else fp32; on a CPU fp32, if it was
    measured in that."""
    devices = [island.device for island in cluster.islands]
    cpu = shares_cores(devices[0])
    first = ("fp32",) if cpu else ()
    for name in first + default_precisions(cluster):
        if all(name in device.peak for device in devices):
            return name
    called = " and ".join(device.name for device in devices)
    raise Unsupported(f"{called} has no peak for bf16, fp16, fp32 or tf32")


def resolve(
    model: Model,
    cluster: Cluster,
    wish: JobOptions,
    pins: Pins,
    profile: Profile | None = None,
    calibration: Calibration | None = None,
) -> Question:
    """Complete a question about one layout; a *profile*'s samples are prices, as a
    *calibration* changes them.

    Raises Contradiction (with every violation), UnknownName, InvalidSpec, Unsupported,
    and StaleProfile for samples of another device.
    """
    assumed: dict[str, Any] = {}
    where = resolve_machine(cluster, wish, pins, profile, assumed)
    choice = degrees_asked(wish, pins, assumed)
    job, warnings = resolve_job(model, wish, choice.gpus, choice.dp, pins, assumed)
    choice = replace(choice, micro_batch=_micro_batch(job, choice, pins, assumed))
    choice = _rest(choice, job, wish, pins, where, assumed)
    choice = spread(choice, job, pins.ep, pins.etp, assumed)
    choice = replace(choice, layers_per_stage=cut_asked(choice, job, pins))
    where = unbalanced(where, job, pins.imbalance, assumed)
    where = with_compressed_gradients(where, job, choice, pins.compress_gradients)
    _require_cut(choice, pins)
    require_legal(choice, job, cluster)
    where = where.calibrated(calibration, job, choice.precision)
    if len(cluster.islands) > 1:
        assumed["placement"] = placed(cluster, choice.gpus)
    warnings += (
        *quality_remarks(pins.compress_activations, pins.compress_gradients),
        *local_warnings(choice, job, cluster),
    )
    warnings += framework_warnings(wish.framework, choice, job)
    return Question(
        job=job,
        choice=choice,
        machine=where,
        assumed=assumed,
        warnings=(*warnings, *remarks_on(profile, where)),
    )


def resolve_job(
    model: Model,
    wish: JobOptions,
    gpus: int,
    dp: int,
    pins: Pins,
    assumed: dict[str, Any],
) -> tuple[Job, tuple[str, ...]]:
    """The job, with the batch that suits its sequences and *gpus* (`usual_batch`),
    raised to what *dp* can split."""
    warnings = [f"{model.name}: assumed {what}" for what in model.assumed]
    seq_len = _take(wish.seq_len, model.seq_len, "seq_len", assumed)
    batch = wish.global_batch
    if batch is None:
        batch = usual_batch(model, seq_len, gpus)
        if batch != model.global_batch:
            warnings.append(
                f"global batch {batch:,} of sequences of {seq_len:,}, not "
                f"{model.global_batch:,} of {model.seq_len:,}: "
                f"{format_count(batch * seq_len)} tokens a step; pass --global-batch "
                "to fix it"
            )
        unit = dp * (pins.micro_batch or 1) * (pins.micro_batches or 1)
        if batch % unit:
            raised = -(-batch // unit) * unit
            warnings.append(
                f"global batch raised from {batch} to {raised}, the next multiple of "
                f"{unit} that these GPUs can split; pass --global-batch to fix it"
            )
            batch = raised
        assumed["global_batch"] = batch
    spec = model.spec
    if isinstance(spec, ModuleSpec):
        warnings += spec.remarks
    if (
        isinstance(spec, DecoderSpec)
        and spec.position == "learned"
        and seq_len > spec.max_positions
    ):
        assumed["max_positions"] = seq_len
        spec = replace(spec, max_positions=seq_len)
    optimizer = _take(wish.optimizer, "adamw", "optimizer", assumed)
    job = Job(
        model=model.name,
        spec=spec,
        seq_len=seq_len,
        global_batch=batch,
        optimizer=optimizer,
    )
    return job, tuple(warnings)


def cut_asked(choice: Uniform, job: Job, pins: Pins) -> tuple[int, ...] | None:
    """The layers of each stage of *choice* that the pins give, None where they do not.

    Raises Contradiction.
    """
    try:
        return asked_layers(
            job.graph.body,
            choice.pp * choice.virtual_stages,
            job.graph.tail,
            every=pins.stage_layers,
            first=pins.first_stage_layers,
            last=pins.last_stage_layers,
        )
    except InvalidSpec as error:
        raise Contradiction(str(error)) from None


def usual_batch(model: Model, seq_len: int, gpus: int) -> int:
    """Sequences of *seq_len* tokens in a step, where nobody says how many.

    As many tokens as the catalogue's batch has at its own length, `MOST_TOKENS` for
    each of *gpus* at most: its sequences doubled or halved, so that as many degrees of
    data parallelism split them.
    """
    batch = model.global_batch
    wanted = batch * model.seq_len
    if seq_len < model.seq_len:
        batch *= 2 ** round(log2(model.seq_len / seq_len))
    most = max(min(wanted * sqrt(2), gpus * MOST_TOKENS), seq_len)
    while batch % 2 == 0 and batch * seq_len > most:
        batch //= 2
    return batch


def spread(
    choice: Uniform,
    job: Job,
    ep: int | None,
    etp: int | None,
    assumed: dict[str, Any],
) -> Uniform:
    """*choice* with its experts over *ep* ranks, each cut in width over *etp*.

    Left out, ep is 1; and etp is 1 where experts are spread, else tp: as an MLP is.
    """
    if not has_experts(job):
        return replace(choice, ep=ep or 1, etp=etp or 1)
    spread_over = _take(ep, 1, "ep", assumed)
    width = _take(etp, width_over(choice.tp, spread_over), "etp", assumed)
    return replace(choice, ep=spread_over, etp=width)


def width_over(tp: int, ep: int) -> int:
    """Over how many ranks each expert is cut where nobody says (`--etp`)."""
    return tp if ep == 1 else 1


def has_experts(job: Job) -> bool:
    """Whether any layer of the job's model has experts."""
    return job.has_experts


def unbalanced(
    where: Machine, job: Job, imbalance: float | None, assumed: dict[str, Any]
) -> Machine:
    """*where* with the busiest expert at *imbalance* times the mean; 1 is balanced.

    Raises Contradiction for a model without experts, or more than all tokens.
    """
    moe = job.moe
    if moe is None:
        if imbalance not in (None, 1.0):
            raise Contradiction(
                f"--imbalance {imbalance} is about experts, which {job.model} does not "
                "have; leave it out"
            )
        return where
    most = moe.experts / moe.experts_per_token
    found = _take(imbalance, 1.0, "imbalance", assumed)
    if found > most:
        raise Contradiction(
            f"--imbalance {found:g} is more than {most:g}: with {moe.experts} experts, "
            f"{moe.experts_per_token} a token, the busiest then has every token"
        )
    return replace(where, imbalance=found)


def _require_cut(choice: Uniform, pins: Pins) -> None:
    """Raise Contradiction for hiding a sum behind the product that it waits for."""
    if cuts_products(pins) and choice.tp > 1 and not choice.sequence_parallel:
        raise Contradiction(NO_CUT)


def degrees_asked(wish: JobOptions, pins: Pins, assumed: dict[str, Any]) -> Uniform:
    """tp, pp and cp are 1 where left out; dp fills the GPUs up."""
    tp, pp, cp = (pins.tp or 1, pins.pp or 1, pins.cp or 1)
    for name in ("tp", "pp", "cp"):
        if getattr(pins, name) is None:
            assumed[name] = 1
    inner = tp * pp * cp
    gpus = wish.gpus
    if gpus is None:
        dp = _take(pins.dp, 1, "dp", assumed)
        assumed["gpus"] = inner * dp
    elif pins.dp is None:
        if gpus % inner:
            raise Contradiction(
                f"tp {tp} × pp {pp} × cp {cp} = {inner} does not divide "
                f"{gpus} GPUs; choose degrees whose product does"
            )
        dp = gpus // inner
        assumed["dp"] = dp
    else:
        dp = pins.dp
        if inner * dp != gpus:
            raise Contradiction(
                f"tp {tp} × pp {pp} × dp {dp} × cp {cp} = {inner * dp}, not "
                f"{gpus} GPUs; leave --dp out to fill up, or change a degree"
            )
    return Uniform(tp=tp, pp=pp, cp=cp, dp=dp)


def _micro_batch(job: Job, choice: Uniform, pins: Pins, assumed: dict[str, Any]) -> int:
    if pins.micro_batches is None:
        return int(_take(pins.micro_batch, 1, "micro_batch", assumed))
    size, rest = divmod(job.global_batch, pins.micro_batches * choice.dp)
    if rest or not size:
        raise Contradiction(
            f"global batch {job.global_batch} does not split into "
            f"{pins.micro_batches} micro-batches × dp {choice.dp}"
        )
    if pins.micro_batch not in (None, size):
        raise Contradiction(
            f"--micro-batches {pins.micro_batches} gives micro-batches of {size} "
            f"sequences, not --micro-batch {pins.micro_batch}; pass one of the two"
        )
    return size


def _rest(
    choice: Uniform,
    job: Job,
    wish: JobOptions,
    pins: Pins,
    where: Machine,
    assumed: dict[str, Any],
) -> Uniform:
    known = SCHEDULES.get(pins.schedule or "1f1b")
    chunks = (known and known.chunks) or 1  # some have two, and no other number
    virtual = _take(pins.virtual_stages, chunks, "virtual_stages", assumed)
    schedule = "interleaved" if virtual > 1 else "1f1b"
    zero = _take(pins.zero, 1, "zero", assumed)
    if zero == 0 and (pins.zero_group or 1) > 1:
        raise Contradiction("--zero-group needs --zero 1, 2 or 3")
    if pins.recompute is None and pins.recompute_layers:
        raise Contradiction(
            f"--recompute-layers {pins.recompute_layers} says in how many layers of a "
            "stage, and nothing is recomputed; add --recompute full, or another"
        )
    precision = _take(
        wish.precision, default_precision(where.cluster), "precision", assumed
    )
    gradient = wish.grad_dtype or where.framework.gradients.format
    if wish.grad_dtype is None and precision not in ("fp32", "tf32"):
        assumed["grad_dtype"] = where.framework.gradient_formats(precision)
    return replace(
        choice,
        schedule=_take(pins.schedule, schedule, "schedule", assumed),
        virtual_stages=virtual,
        zero=zero,
        zero_group=(
            _take(pins.zero_group, choice.dp, "zero_group", assumed) if zero else 1
        ),
        sequence_parallel=_take(
            pins.sequence_parallel,
            choice.tp > 1 and job.graph.splits is None,
            "sequence_parallel",
            assumed,
        ),
        cp_kind=_take(pins.cp_kind, "ring", "cp_kind", assumed),
        recompute=_take(pins.recompute, "none", "recompute", assumed),
        recompute_layers=pins.recompute_layers,
        flash_attention=_take(
            pins.flash_attention,
            flash_default(where.cluster),
            "flash_attention",
            assumed,
        ),
        precision=precision,
        gradient_format=gradient,
        offload=offload_of(pins, assumed),
        zero_plus=zero_plus_of(pins),
    )


def _take(given: Any, default: Any, name: str, assumed: dict[str, Any]) -> Any:
    """*given*, or *default* noted as assumed."""
    if given is None:
        assumed[name] = default
        return default
    return given
