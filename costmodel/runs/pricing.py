"""Prices of a table of runs, one process, equal questions priced once.

    rows    → what each asks, its layout spelled out; hangs on no rate   → `ask_runs`
    asked   → its price on its machine, or on another one's rates        → `price_asked`

Runs are priced some thousand at a time, so that what they share is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from typing import Any, Final

from costmodel.layout import Layout, Ranges, Uniform, interleaves, spell_out
from costmodel.machine import Calibration, Framework, Machine, machine
from costmodel.runs.cells import Cells
from costmodel.runs.cluster import cluster_of
from costmodel.runs.settings import (
    flash_of,
    framework_of,
    layers_again_of,
    layers_by_cost,
    offload_of,
    recompute_of,
)
from costmodel.runs.table import Run
from costmodel.runs.workload import adapters_of, seq_len_of, spec_of
from costmodel.simulation import (
    Answer,
    Question,
    answers,
    default_precision,
    has_experts,
    spread,
)
from costmodel.stages import Memory
from costmodel.support import require_legal
from profiles.errors import Contradiction, InvalidSpec, MeshwrightError
from profiles.hardware import PRECISIONS, Cluster, Island
from profiles.models import DecoderSpec, Job

# A schedule of two directions → the one of those priced that it is nearest to.
NEAREST: Final = {"dualpipe": "1f1b"}
TASKS: Final = ("pretrain", "sft", "lora")
CLUSTER: Final = (
    *("cluster", "device", "gpus", "gpus_per_node"),
    *("intra_node_gb_per_s", "inter_node_gbit_per_s"),
)
LAYOUT: Final = ("tp", "pp", "dp", "cp", "micro_batch", "virtual_stages")
MOST_GPUS: Final = 10_000_000
# Layers of a chunk in NVIDIA's recipes of dense models where a table leaves it out: the
# median of its rows that say it (NeMo, MLPerf: 1 to 4; GPT-3 175 B at pp 8: 6 chunks).
RECIPE_LAYERS: Final = 2
MOST_PASSES: Final = 2_000_000  # micro-batches × virtual stages that are simulated


@dataclass(kw_only=True)
class Questions:
    """Turns rows into questions; equal machines and jobs are made once."""

    calibration: Calibration | None = None
    _machines: dict[object, Machine] = field(default_factory=dict)
    _calibrated: dict[object, Machine] = field(default_factory=dict)
    _clusters: dict[object, tuple[Cluster, dict[str, Any]]] = field(
        default_factory=dict
    )
    _jobs: dict[Job, Job] = field(default_factory=dict)

    def question(self, cells: Cells) -> Question:
        """The question that *cells* ask.

        Raises the errors of an invalid question, naming the cell that is missing or
        wrong, or what is not priced yet.
        """
        cells.choice("task", TASKS)
        framework, warnings = framework_of(cells)
        choice, idle = _busy(cells, _degrees(cells))
        gpus = choice.gpus + wider_stages(cells, choice) * choice.gpus // choice.pp
        where = self._machine(cells, gpus, framework)
        choice = _layout(cells, choice, where)
        job, choice = self._job(cells, choice, framework)
        choice, remark = _spread(cells, choice, job)
        choice = _schedule(cells, choice, job, framework)
        _require_finite(choice, job)
        _require_legal(cells, choice, job, where)
        where = self._told(where, job, choice.precision)
        return Question(
            job=job,
            choice=choice,
            machine=where,
            assumed=cells.assumed,
            warnings=(*warnings, *idle, *remark, *_remarks(cells)),
        )

    def _machine(self, cells: Cells, gpus: int, framework: Framework) -> Machine:
        where = self._cluster(cells, gpus)
        key = (_key(where), framework)
        if key not in self._machines:
            self._machines[key] = machine(where, framework)
        return self._machines[key]

    def _told(self, where: Machine, job: Job, precision: str) -> Machine:
        """*where* as runs of the user's own have it."""
        if self.calibration is None:
            return where
        key = (id(where), job.spec, precision)
        if key not in self._calibrated:
            found = where.calibrated(self.calibration, job, precision)
            self._calibrated[key] = found
        return self._calibrated[key]

    def _cluster(self, cells: Cells, gpus: int) -> Cluster:
        """The row's cluster; what was taken for granted of it is noted each time."""
        key = (gpus, *(cells.word(column) for column in CLUSTER))
        if key not in self._clusters:
            fresh = Cells(text=cells.text)
            self._clusters[key] = (cluster_of(fresh, gpus), fresh.assumed)
        where, assumed = self._clusters[key]
        cells.assumed.update(assumed)
        return where

    def _job(
        self, cells: Cells, choice: Uniform, framework: Framework
    ) -> tuple[Job, Uniform]:
        seq_len = seq_len_of(cells)
        spec = spec_of(cells, seq_len=seq_len, dropout=framework.recipe.dropout)
        pads = framework.recipe.pads_alone or choice.tp > 1
        unit = framework.recipe.pads_vocab * choice.tp if pads else 1
        if isinstance(spec, DecoderSpec):
            spec = replace(spec, vocab=-(-spec.vocab // unit) * unit)
        micro_batch, batch = _batch(cells, choice, framework)
        job = Job(
            model=cells.word("model") or "decoder",
            spec=spec,
            seq_len=seq_len,
            global_batch=batch,
            adapters=adapters_of(cells),
        )
        cells.assumed["optimizer"] = job.optimizer
        return self._jobs.setdefault(job, job), replace(choice, micro_batch=micro_batch)


ALPA: Final = "alpa"  # whose stages may be of unlike meshes


def wider_stages(cells: Cells, choice: Uniform) -> int:
    """How many stages, the last ones, have twice the replicas of the others, so that
    all GPUs of the row are some stage's."""
    gpus = cells.whole("gpus", most=MOST_GPUS) or choice.gpus
    return max(gpus - choice.gpus, 0) * choice.pp // choice.gpus


def widened(layout: Layout, wider: int) -> Layout:
    """*layout* with twice as many replicas in its last *wider* stages."""
    first, stages = 0, []
    for number, stage in enumerate(layout.stages):
        double = number >= len(layout.stages) - wider
        size = stage.mesh.size * (2 if double else 1)
        mesh = replace(
            stage.mesh,
            ranks=Ranges(((first, first + size - 1),)),
            dp_replicate=stage.mesh.dp_replicate * (2 if double else 1),
        )
        stages.append(replace(stage, mesh=mesh))
        first += size
    return replace(layout, stages=tuple(stages))


def _unlike_stages(cells: Cells, gpus: int, inner: int) -> int:
    """Replicas of the narrower stages where GPUs fall into stages of d and of 2·d
    replicas, d a power of two, as Alpa's meshes within a node are (Zheng et al., OSDI
    2022, section 5.2); 0 where they do not."""
    fewest = 1 << max((gpus // inner).bit_length() - 1, 0)
    left = gpus - inner * fewest
    fits = gpus > inner and left % (inner * fewest // cells.needed("pp")) == 0
    return fewest if fits else 0


def _degrees(cells: Cells) -> Uniform:
    tp, pp, cp = (
        cells.given(name, cells.whole(name, most=MOST_GPUS), 1)
        for name in ("tp", "pp", "cp")
    )
    inner = tp * pp * cp
    gpus, dp = cells.whole("gpus", most=MOST_GPUS), cells.whole("dp", most=MOST_GPUS)
    if gpus is None and dp is None:
        raise cells.missing("gpus", "fill in gpus, or dp")
    if dp is None:
        assert gpus is not None
        if gpus % inner and pp > 1 and ALPA in (cells.word("framework") or "").lower():
            dp = _unlike_stages(cells, gpus, inner)
        elif gpus % inner:
            dp = 0
        else:
            dp = gpus // inner
        if not dp:
            raise Contradiction(
                f"tp {tp} × pp {pp} × cp {cp} = {inner} does not divide gpus={gpus}"
            )
        dp = cells.given("dp", None, dp)
    elif gpus not in (None, inner * dp):
        raise Contradiction(
            f"tp {tp} × pp {pp} × dp {dp} × cp {cp} = {inner * dp}, not gpus={gpus}"
        )
    elif gpus is None:
        cells.assumed["gpus"] = inner * dp
    if inner * dp > MOST_GPUS:
        raise InvalidSpec(f"{inner * dp} GPUs are more than {MOST_GPUS:,}")
    return Uniform(tp=tp, pp=pp, cp=cp, dp=dp)


def _busy(cells: Cells, choice: Uniform) -> tuple[Uniform, tuple[str, ...]]:
    """*choice*, with as much context parallelism that each replica has a sequence.

    A row that states tp, pp and cp and leaves more replicas than it has sequences
    contradicts itself; of its numbers cp is the one that others make up for.
    """
    batch, dp, cp = cells.whole("global_batch"), choice.dp, choice.cp
    stated = all(cells.word(name) for name in ("tp", "pp", "cp"))
    if batch is None or cells.word("dp") or not stated or cp == 1:
        return choice, ()
    if dp <= batch or dp % batch:
        return choice, ()
    cells.assumed.update(cp=cp * dp // batch, dp=batch)
    remark = f"cp {cp} leaves {dp} replicas {batch} sequences: cp {cp * dp // batch}"
    return replace(choice, cp=cp * dp // batch, dp=batch), (remark,)


def _batch(cells: Cells, choice: Uniform, framework: Framework) -> tuple[int, int]:
    """(micro-batch, global batch): a batch left out is one without accumulation."""
    micro_batch, batch = cells.whole("micro_batch"), cells.whole("global_batch")
    if batch is None:
        if micro_batch is None:
            raise cells.missing("global_batch", "fill in global_batch, or micro_batch")
        return micro_batch, cells.given("global_batch", None, micro_batch * choice.dp)
    share = 1
    if choice.pp == 1 and not framework.recipe.accumulates:
        share = max(batch // choice.dp, 1)
    elif choice.pp > 1 and framework.fully_shard and not framework.recipe.accumulates:
        # torchtitan of 2024 makes as many micro-batches as the pipeline has ranks.
        share = max(batch // (choice.dp * choice.pp), 1)
    return cells.given("micro_batch", micro_batch, share), batch


def _layout(cells: Cells, choice: Uniform, where: Machine) -> Uniform:
    """Everything that hangs on neither the model nor the batch."""
    framework = where.framework
    zero = cells.given(
        "zero", cells.whole("zero", least=0, most=3), framework.recipe.zero
    )
    if zero > 1 and choice.pp > 1 and framework.recipe.shards_once:
        # Beside a pipeline these reduce gradients once a step and keep them whole.
        zero = cells.assumed["zero"] = 1
    group = cells.whole("zero_group")
    if group is not None and group > 1 and zero == 0:
        raise Contradiction(f"zero_group={group} needs zero 1, 2 or 3, got zero=0")
    if zero and group is None:
        group = cells.given("zero_group", None, choice.dp)
    by_default = choice.tp > 1 and framework.recipe.sequence_parallel
    sequence_parallel = cells.given(
        "sequence_parallel", cells.flag("sequence_parallel"), by_default
    )
    if choice.cp > 1:
        kind = "all-gather" if framework.fully_shard else "ring"
        choice = replace(choice, cp_kind=cells.given("cp_kind", None, kind))
    precision = cells.given(
        "precision",
        cells.choice("precision", PRECISIONS),
        lambda: default_precision(where.cluster),
    )
    if precision == "fp32" and framework.kernels.tf32 and _has_tf32(where):
        precision = cells.assumed["precision"] = "tf32"
    cells.assumed["grad_dtype"] = framework.gradient_formats(precision)
    return replace(
        choice,
        zero=zero,
        zero_group=group if zero and group else 1,
        # Megatron-LM switches it off where there is nothing to split over.
        sequence_parallel=sequence_parallel and choice.tp > 1,
        recompute=recompute_of(cells),
        flash_attention=flash_of(cells, where.cluster, precision),
        precision=precision,
        gradient_format=framework.gradients.format,
        offload=offload_of(cells),
    )


def _has_tf32(where: Machine) -> bool:
    return all("tf32" in island.device.peak for island in where.cluster.islands)


def _spread(cells: Cells, choice: Uniform, job: Job) -> tuple[Uniform, tuple[str, ...]]:
    """Experts over as many ranks as the row says, and as a stage has."""
    ep = cells.whole("ep", most=MOST_GPUS)
    remark: tuple[str, ...] = ()
    ranks = choice.tp * choice.cp * choice.dp
    if ep is not None and has_experts(job) and ep > ranks and ep % ranks == 0:
        remark = (f"ep={ep} is more than the {ranks} ranks of a stage: ep {ranks}",)
        ep = cells.assumed["ep"] = ranks
    return spread(choice, job, ep, None, cells.assumed), remark


def _schedule(cells: Cells, choice: Uniform, job: Job, framework: Framework) -> Uniform:
    """1f1b, or interleaved where virtual stages say so; and how many those are."""
    named, virtual = cells.word("schedule"), cells.whole("virtual_stages")
    if virtual is None:
        layers, recipe = job.graph.body, framework.recipe.interleaves and choice.pp > 1
        several = named == "interleaved" or (named is None and recipe)
        most = RECIPE_LAYERS if recipe else layers
        chunks = _chunks_of(most, layers, choice.pp)
        virtual = cells.given("virtual_stages", None, chunks if several else 1)
    schedule = cells.given("schedule", named, "interleaved" if virtual > 1 else "1f1b")
    if schedule in NEAREST:
        schedule = cells.assumed["schedule"] = NEAREST[schedule]
    stages, wider = choice.pp * virtual, wider_stages(cells, choice)
    spec, cut = job.spec, None
    if wider:
        return _in_proportion(choice, job, wider)
    if framework.recipe.cuts_by_cost and stages > 1 and isinstance(spec, DecoderSpec):
        cut = layers_by_cost(spec, stages)
    return replace(
        choice,
        schedule=schedule,
        virtual_stages=virtual,
        layers_per_stage=cut,
        recompute_layers=layers_again_of(cells, job.graph.body // stages),
    )


def _in_proportion(choice: Uniform, job: Job, wider: int) -> Uniform:
    """Layers by the GPUs of a stage, and a sequence for each replica of the widest."""
    shares = [1] * (choice.pp - wider) + [2] * wider
    ends = [job.graph.body * done // sum(shares) for done in accumulate(shares)]
    cut = tuple(end - start for start, end in pairwise([0, *ends]))
    size = choice.micro_batch + choice.micro_batch % 2
    return replace(choice, layers_per_stage=cut, micro_batch=size)


def _chunks_of(most: int, layers: int, pp: int) -> int:
    """The least virtual stages, from 2, that cut the layers into equal parts of at most
    so many."""
    counts = range(max(2, -(-layers // (pp * most))), layers // pp + 1)
    return next((count for count in counts if interleaves(layers, pp * count)), 2)


def _require_legal(cells: Cells, choice: Uniform, job: Job, where: Machine) -> None:
    """Raise Contradiction; where defaults are to blame, name the missing cells."""
    try:
        require_legal(choice, job, where.cluster)
    except Contradiction as error:
        filled = {k: v for k, v in cells.assumed.items() if k in LAYOUT}
        if filled.get("virtual_stages") == 1:
            del filled["virtual_stages"]
        if not filled:
            raise
        defaults = ", ".join(f"{name} {value}" for name, value in filled.items())
        raise Contradiction(
            f"{', '.join(filled)} missing, and the defaults {defaults} do not do: "
            f"{error}"
        ) from error


def _require_finite(choice: Uniform, job: Job) -> None:
    """Refuse what no machine runs and this one could not simulate."""
    passes = choice.pp * choice.virtual_stages
    passes *= -(-job.global_batch // (choice.micro_batch * choice.dp))
    if passes > MOST_PASSES:
        raise InvalidSpec(
            f"{passes:,} passes a step (virtual stages × micro-batches) are more than "
            f"{MOST_PASSES:,}; raise micro_batch or lower global_batch"
        )


def _remarks(cells: Cells) -> tuple[str, ...]:
    named = cells.word("schedule")
    if named in NEAREST:
        return (f"schedule={named} is priced as {NEAREST[named]}: the nearest that is",)
    if cells.word("task") == "sft":
        return ("task=sft is priced as pretraining: no token is padding",)
    return ()


def _key(where: Cluster) -> tuple[object, ...]:
    """What tells clusters apart: names, sizes and link speeds."""
    islands = tuple(
        (island.device.name, island.devices_per_node, island.nodes, *_links(island))
        for island in where.islands
    )
    return where.name, *islands


def _links(island: Island) -> tuple[object, ...]:
    return tuple(
        (item.kind, item.devices, item.bytes_per_s, item.latency_s)
        for item in island.levels
    )


TOGETHER: Final = 4096  # runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What is kept of an estimate; bytes by how runs count them."""

    write: Callable[[], Mapping[str, Any]] = field(compare=False)
    step_time_s: float
    interval_s: tuple[float, float]  # p10 and p90 of the step
    fits: bool
    probability_fits: float
    spread_bytes: float  # standard deviation of the largest peak
    peak_bytes: Mapping[str, float]  # device, reserved, allocated

    @property
    def document(self) -> Mapping[str, Any]:
        """What `simulate --json` prints, written when it is asked for."""
        return self.write()


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A run and its price, or why it has none."""

    run: Run
    question: Question | None = None
    price: Price | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A run and the question that it asks; equal ones share a layout."""

    run: Run
    question: Question | None = None
    layout: Layout | None = None
    error: str | None = None


@dataclass(kw_only=True)
class Asking:
    """Turns runs into questions with their layouts; equal ones are made once."""

    _questions: Questions = field(default_factory=Questions)
    _layouts: dict[tuple[Job, Uniform], Layout] = field(default_factory=dict)

    def ask(self, run: Run) -> Asked:
        """The question of *run*, or why it asks none."""
        if run.fault is not None:
            return Asked(run=run, error=run.fault)
        try:
            question = self._questions.question(Cells(text=run.asked))
            layout = self._layout(question.job, question.choice)
            wider = wider_stages(Cells(text=run.asked), question.choice)
            layout = widened(layout, wider) if wider else layout
        except MeshwrightError as error:
            return Asked(run=run, error=str(error))
        return Asked(run=run, question=question, layout=layout)

    def _layout(self, job: Job, choice: Uniform) -> Layout:
        key = (job, choice)
        if key not in self._layouts:
            self._layouts[key] = spell_out(choice, job.graph, job.global_batch)
        return self._layouts[key]


def ask_runs(
    runs: Iterable[Run], calibration: Calibration | None = None
) -> list[Asked]:
    """What each run asks: all of a price that hangs on no rate."""
    asking = Asking(_questions=Questions(calibration=calibration))
    return [asking.ask(run) for run in runs]


def price_runs(
    runs: Iterable[Run], calibration: Calibration | None = None
) -> Iterator[Priced]:
    """Price each run in turn; an error of one stops no other."""
    left = iter(runs)
    while some := list(islice(left, TOGETHER)):
        yield from price_asked(ask_runs(some, calibration))


def price_asked(
    asked: Sequence[Asked], on: Callable[[Machine], Machine] | None = None
) -> Iterator[Priced]:
    """Price each question in turn, each machine put in place by *on* if given."""
    machines: dict[int, Machine] = {}
    questions: dict[tuple[int, int], tuple[Job, Layout, Machine]] = {}
    keys: list[tuple[int, int] | None] = []
    for item in asked:
        if item.question is None or item.layout is None:
            keys.append(None)
            continue
        own = item.question.machine
        if id(own) not in machines:
            machines[id(own)] = own if on is None else on(own)
        key = (id(item.layout), id(own))
        questions[key] = (item.question.job, item.layout, machines[id(own)])
        keys.append(key)
    found = dict(zip(questions, map(_kept, answers(questions.values())), strict=True))
    for item, known in zip(asked, keys, strict=True):
        yield _priced(item, found[known] if known else item.error or "")


def _kept(found: Answer | MeshwrightError) -> Price | str:
    if isinstance(found, MeshwrightError):
        return str(found)
    return Price(
        write=found.document,
        step_time_s=found.step_time_s,
        interval_s=found.interval_s,
        fits=found.fits,
        probability_fits=found.probability_fits,
        spread_bytes=float(max(found.memory, key=_total).spread),
        peak_bytes={
            "device": found.peak_memory_bytes,
            "reserved": found.peak_reserved_bytes,
            "allocated": found.peak_allocated_bytes,
        },
    )


def _priced(asked: Asked, found: Price | str) -> Priced:
    if isinstance(found, str) or asked.question is None:
        return Priced(run=asked.run, error=str(found))
    price = _own(found, asked.question)
    return Priced(run=asked.run, question=asked.question, price=price)


def _own(found: Price, question: Question) -> Price:
    """*found*, priced for an equal question, with what this one took for granted."""

    def write() -> Mapping[str, Any]:
        return {
            **found.document,
            "assumed": question.assumed,
            "warnings": list(question.warnings),
        }

    return replace(found, write=write)


def _total(memory: Memory) -> float:
    return float(memory.total)
