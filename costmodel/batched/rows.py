"""`Rows`: the stages of every row of columns, priced: first, middle and last ones.

How a model's layers fall into the virtual stages of uniform candidates, as arrays.

A pipeline is a few runs of equal stages: the first, middle ones, the last. Where the
leading layers differ from the rest (DeepSeek's dense ones), each run of middle stages
falls into those before the change, the one across it, and those after. Where kinds
take turns, middle stages of whole turns are alike; any others stand each by itself.

What the stages of columns hold: atoms gathered by row and summed over layers.

Rows that differ in data parallelism, schedule or ZeRO alone hold the same: they are
gathered and summed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, cast

import numpy as np

from costmodel.layout import (
    SCHEDULES,
    SQRT,
    Columns,
    Retention,
    counted,
    inner,
    longest,
    replaced,
)
from costmodel.machine import Machine, hides_gradients
from costmodel.schedule import peak_in_flight, schedule_called
from costmodel.stages import (
    ATOM,
    SITE,
    Atom,
    AtomBook,
    Contents,
    DataParallel,
    Part,
    StageBytes,
    StagePrice,
    contents_of,
    stage_bytes,
    stage_price,
    unique_rows,
)
from profiles.arrays import Array
from profiles.errors import Unsupported
from profiles.hardware import Precision
from profiles.models import EVERY_OPERATOR, Job, ModelGraph

Layers = dict[str, Array]  # how many of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """So many virtual stages with the same numbered layers."""

    count: Array
    layers: Layers


def stage_runs(graph: ModelGraph, stages: Array) -> tuple[Run, ...]:
    """The first stage, runs of middle ones and the last, as `uniform.split_layers`
    cuts them; where there is one stage only, it is the first.
    """
    tail = replaced(graph.body, stages, graph.tail)
    base, extra = np.divmod(graph.body + tail, stages)
    middle = np.maximum(stages - 2, 0)
    high = np.minimum(extra, middle)
    first = base + (extra > middle)
    last = np.where(stages > 1, base - tail, 0)
    cut = _Cut(graph)
    low = middle - high
    return (
        Run(count=np.ones_like(stages), layers=cut.between(stages * 0, first)),
        *cut.middle(first, base, low),
        *cut.middle(first + low * base, base + 1, high),
        Run(
            count=(stages > 1).astype(int),
            layers=cut.between(graph.body - last, last),
        ),
    )


class _Cut:
    """Counts of each kind of layer in cuts of a model."""

    def __init__(self, graph: ModelGraph) -> None:
        self.kinds = list(dict.fromkeys(block.name for block, _ in graph.runs))
        order = [block.name for block, count in graph.runs for _ in range(count)]
        self.sums = {
            kind: np.array([0, *accumulate(int(one == kind) for one in order)])
            for kind in self.kinds
        }
        self.leading = graph.runs[0][1] if len(graph.runs) == 2 else 0
        self.turn = graph.turn
        ends = accumulate(count for _, count in graph.runs)
        self.alike = [
            (block.name, end) for (block, _), end in zip(graph.runs, ends, strict=True)
        ]

    def between(self, start: Array, length: Array) -> Layers:
        """In *length* layers from *start*."""
        return {
            kind: sums[start + length] - sums[start] for kind, sums in self.sums.items()
        }

    def middle(self, start: Array, length: Array, count: Array) -> Iterator[Run]:
        """*count* stages of *length* layers each, from layer *start*: runs of stages
        alike, or each by itself where kinds come in no turn."""
        if len(self.kinds) == 1:
            yield Run(count=count, layers={self.kinds[0]: length})
        elif self.leading:
            yield from self._across(start, length, count)
        elif not self.turn and 2 * len(self.alike) <= np.max(count, initial=1):
            yield from self._between_changes(start, length, count)
        elif not self.turn or np.any(length % self.turn):
            for number in range(int(np.max(count, initial=1))):
                there = number < count
                first = np.where(there, start + number * length, 0)
                layers = self.between(first, np.where(there, length, 0))
                yield Run(count=there.astype(int), layers=layers)
        else:
            turns = length // self.turn
            whole = {kind: turns * sums[self.turn] for kind, sums in self.sums.items()}
            yield Run(count=count, layers=whole)

    def _between_changes(
        self, start: Array, length: Array, count: Array
    ) -> Iterator[Run]:
        """Stages between two changes of kinds, which are alike, and those across one or
        several of them."""
        left, each = np.asarray(count), np.maximum(length, 1)
        _, whole = self.alike[-1]
        for kind, end in self.alike:
            room = np.maximum(end - start, 0) // each
            inside = left if end == whole else np.minimum(left, room)
            nothing = dict.fromkeys(self.kinds, 0 * length)
            yield Run(count=inside, layers={**nothing, kind: length})
            start, left = start + inside * length, left - inside
            across = (left > 0) & (start < end)
            first = np.where(across, start, 0)
            layers = self.between(first, np.where(across, length, 0))
            yield Run(count=across.astype(int), layers=layers)
            start, left = start + across * length, left - across

    def _across(self, start: Array, length: Array, count: Array) -> Iterator[Run]:
        """Stages before the change of kinds, the one across it, those after."""
        early, late = self.kinds
        left = np.maximum(self.leading - start, 0)
        each = np.maximum(length, 1)
        before = np.minimum(left // each, count)
        rest = np.where(before < count, left - before * each, 0)
        across = (rest > 0).astype(int)
        yield Run(count=before, layers={early: length, late: 0 * length})
        yield Run(count=across, layers={early: rest, late: length - rest})
        yield Run(
            count=count - before - across, layers={early: 0 * length, late: length}
        )


class _Spread:
    """What *own* kinds of rows hold, of each row: gathered as it is asked for, since
    bytes ask for few of some forty arrays."""

    def __init__(self, own: Contents | Atom, of_row: Array) -> None:
        self._own, self._of_row = own, of_row

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._own, name)
        found = (
            _Spread(value, self._of_row)
            if isinstance(value, Atom)
            else value[self._of_row]
        )
        setattr(self, name, found)
        return found


Segments = tuple[int, int]  # the fewest and the most layers of the longest segment
_ALIKE = (*SITE, "recompute", "pp", "virtual_stages")


@dataclass(kw_only=True)
class Rows:
    """Candidates with what all their prices share, each part made when first asked."""

    columns: Columns
    book: AtomBook
    segments: Segments | None = None  # of all stages; as *columns* say where None

    def __post_init__(self) -> None:
        known = self.book.offload
        assert self.columns.offload == known, "a book of prices with other offloading"

    @property
    def job(self) -> Job:
        return self.book.job

    @property
    def on(self) -> Machine:
        return self.book.on

    @property
    def policy(self) -> Precision:
        return self.book.policy

    @cached_property
    def parallel(self) -> DataParallel:
        columns, copies = self.columns, self.columns.copies
        plus = columns.zero_plus
        names = ("tp", "cp", "ep", "etp", "zero", "zero_group")
        inside = columns.gpus <= self.on.island.domain
        return DataParallel(
            **{name: getattr(columns, name) for name in names},
            dp=columns.dp * copies,
            pp=-(-columns.pp // copies),
            apart=np.where(inside, 1, copies),
            copies=copies,
            **{item.name: getattr(plus, item.name) for item in fields(plus)},
        )

    @cached_property
    def hides_gradients(self) -> Array:
        """Where a reduction lies behind the last backward."""
        columns = self.columns
        return hides_gradients(self.on.framework, columns.tp, columns.zero)

    @cached_property
    def micro_batches(self) -> Array:
        return self.job.global_batch // (self.columns.micro_batch * self.columns.dp)

    def in_flight(self, rank: Array) -> Array:
        """The most micro-batches that a pipeline *rank* holds, of all its chunks."""
        columns, found = self.columns, np.zeros_like(self.columns.pp)
        for code in np.unique(columns.schedule):
            shape = (columns.pp, columns.virtual_stages, self.micro_batches)
            count = peak_in_flight(SCHEDULES[code], rank, *shape)
            found = np.where(columns.schedule == code, count, found)
        return found

    def versions(self, rank: Array) -> Array:
        """Copies of its weights that a pipeline *rank* holds."""
        columns, found = self.columns, np.ones_like(self.columns.pp)
        for code in np.unique(columns.schedule):
            stale = schedule_called(SCHEDULES[code]).stale
            if stale is not None:
                count = stale.versions(rank, columns.pp, self.micro_batches)
                found = np.where(columns.schedule == code, count, found)
        return found

    @cached_property
    def held(self) -> tuple[StageBytes, ...]:
        """Their bytes alone."""
        offload = self.columns.offload.of_states
        return tuple(
            stage_bytes(one, self.parallel, self.policy, self.on, offload)
            for one in self.contents
        )

    @cached_property
    def priced(self) -> tuple[StagePrice, ...]:
        """Their seconds and bytes."""
        offload = self.columns.offload.of_states
        return tuple(
            stage_price(
                one,
                self.parallel,
                self.policy,
                self.on,
                self.job.optimizer,
                offload,
                self.micro_batches // self.columns.copies,
            )
            for one in self.contents
        )

    @cached_property
    def lightest(self) -> StageBytes:
        """The least of the middle stages; where all are alike, any of them."""
        first, *others = self.held[1:-1]
        return first.each(lambda *values: self._least(values), *others)

    def held_by(self, end: StageBytes, name: str) -> Array:
        """Of a rank: its *end* chunk and the middle chunks beside it; of the first
        rank both ends where stages lie in pairs."""
        chunks = self.columns.virtual_stages - 1
        alone = getattr(end, name) + chunks * getattr(self.lightest, name)
        return self._in_pairs(self.held, name, alone)

    def only(self, rows: Array) -> Rows:
        """Those of *rows*, with what is known of their bytes."""
        found = replace(self, columns=self.columns.take(rows))
        vars(found)["_alike"] = (self._alike[0], self._alike[1][rows])
        vars(found)["counts"] = tuple(one[rows] for one in self.counts)
        vars(found)["held"] = tuple(one[rows] for one in self.held)
        return found

    def held_at(self, name: str, stage: Array) -> Array:
        """Of virtual *stage*."""
        values = [getattr(one, name) for one in self.held]
        found, start = values[0], np.zeros_like(stage)
        for one, count in zip(values, self.counts, strict=True):
            found = np.where(stage >= start, one, found)
            start = start + count
        return np.asarray(found)

    def seconds_of(self, end: StagePrice, name: str) -> Array:
        """The same of a rank's seconds."""
        chunks = self.columns.virtual_stages - 1
        alone = getattr(end, name) + chunks * self._middle(self.priced, name)
        return self._in_pairs(self.priced, name, alone)

    def _in_pairs(self, of: Sequence[Any], name: str, alone: Array) -> Array:
        if not self.columns.in_pairs.any():
            return np.asarray(alone)
        both = getattr(of[0], name) + getattr(of[-1], name)
        return np.asarray(np.where(self.columns.in_pairs, both, alone))

    def _middle(self, of: Sequence[Any], name: str) -> Array:
        return self._least([getattr(item, name) for item in of[1:-1]])

    def _least(self, values: Sequence[Array]) -> Array:
        """Of what each run of middle stages has."""
        pairs = zip(self.counts[1:-1], values, strict=True)
        there = [np.where(count > 0, value, np.inf) for count, value in pairs]
        found = np.minimum.reduce(there)
        return np.asarray(np.where(np.isfinite(found), found, values[-1]))

    @property
    def stride(self) -> Array:
        """Ranks of a stage."""
        return np.asarray(self.columns.tp * self.columns.cp * self.columns.dp)

    @cached_property
    def _alike(self) -> tuple[Array, Array]:
        """A row of each distinct kind, and each row's place among them."""
        _, of_row = unique_rows([getattr(self.columns, name) for name in _ALIKE])
        first = np.empty(of_row.max(initial=-1) + 1, dtype=np.int64)
        first[of_row] = np.arange(len(of_row))
        return first, of_row

    @cached_property
    def _own(self) -> dict[str, Array]:
        """One row of each kind."""
        first, _ = self._alike
        return {name: getattr(self.columns, name)[first] for name in _ALIKE}

    @cached_property
    def _sites(self) -> Array:
        return self.book.sites(self._own)

    @cached_property
    def _stages(self) -> Array:
        return np.asarray(self._own["pp"] * self._own["virtual_stages"])

    @cached_property
    def _runs(self) -> tuple[Run, ...]:
        return stage_runs(self.book.job.graph, self._stages)

    @cached_property
    def counts(self) -> tuple[Array, ...]:
        """How many virtual stages each run has."""
        _, of_row = self._alike
        return tuple(run.count[of_row] for run in self._runs)

    @cached_property
    def contents(self) -> tuple[Contents, ...]:
        """What a virtual stage of each run holds: the first, middle ones, the last."""
        _, of_row = self._alike
        whole = (self._stages == 1).astype(int)
        nothing = np.zeros_like(whole)
        first, *middle, last = self._runs
        found = (
            self._stage(first, nothing + 1, whole),
            *(self._stage(run, nothing, nothing) for run in middle),
            self._stage(last, nothing, nothing + 1),
        )
        return tuple(cast(Contents, _Spread(one, of_row)) for one in found)

    def _stage(self, run: Run, first: Array, last: Array) -> Contents:
        """A stage of *run*, which may be the *first* and the *last* of its pipeline."""
        body: list[Part] = [(run.layers[name], one) for name, one in self._body.items()]
        segments: list[list[Part]] = []
        if self.segments is not None:
            body, segments = self._leanest(run, *self.segments)
        elif (self._own["recompute"] == SQRT).any():
            body, segments = self._in_segments(run)
        ends = zip((first, last, last), self._ends, strict=True)
        shared = self._shared(
            run, {"embedding": first, "final_norm": last, "head": last}
        )
        return contents_of([*body, *ends, *shared], self.book.policy, segments)

    def _shared(self, run: Run, ends: Mapping[str, Array]) -> Iterator[Part]:
        """What a stage of *run*, with so many of the *ends*, has less of parameters
        than its layers one by one: those that several of them hold."""
        graph = self.book.job.graph
        for group, (twice, once) in zip(graph.tied, self._tied, strict=True):
            held: Array = np.zeros_like(self._stages)
            for layer, _ in group:
                kind = graph.layer_blocks[layer].name
                held = held + (ends[layer] if layer in ends else run.layers[kind] > 0)
            yield -np.maximum(held - 1, 0), twice
            if once is not None:
                yield ((held > 0) & (held < len(group))).astype(int), once
        for name, size, twice in self._alike_layers:
            count = run.layers[name]
            yield -(count - -(-count // size)), twice

    @cached_property
    def _body(self) -> dict[str, Atom]:
        """Of each kind of numbered layer."""
        graph, chosen = self.book.job.graph, self._own["recompute"]
        return {
            name: self._atoms(name, self.columns.recomputes, chosen)
            for name in graph.kinds
        }

    @cached_property
    def _ends(self) -> tuple[Atom, ...]:
        """Embedding, norm and head."""
        nothing = np.zeros_like(self._stages)
        names = ("embedding", "final_norm", "head")
        return tuple(self._atoms(name, ("none",), nothing) for name in names)

    @cached_property
    def _tied(self) -> tuple[tuple[Atom, Atom | None], ...]:
        """Of each group of tied parameters those that a stage would count twice, and
        what stages sum that are apart; who has nothing away does not ask for that."""
        tied, away = self.book.tied, self.book.offload.optimizer
        return tuple(
            (
                tied(group[-1], self._sites, twice=True),
                tied(group[-1], self._sites, twice=False) if away else None,
            )
            for group in self.book.job.graph.tied
        )

    @cached_property
    def _alike_layers(self) -> tuple[tuple[str, int, Atom], ...]:
        """Kinds of layers of which so many in a row hold the same parameters, and
        those of one."""
        graph = self.book.job.graph
        groups = {graph.layer_blocks[one[0]].name: one for one in graph.shared}
        return tuple(
            (
                name,
                len(group),
                self.book.tied((group[0], EVERY_OPERATOR), self._sites, twice=True),
            )
            for name, group in groups.items()
        )

    def _atoms(
        self, name: str, treatments: tuple[str | Retention, ...], chosen: Array
    ) -> Atom:
        return Atom(self.book.atoms(name, self._sites, treatments, chosen))

    def _in_segments(self, run: Run) -> tuple[list[Part], list[list[Part]]]:
        """The numbered layers of a stage, where some rows make them again in segments:
        the layers that keep their input and those inside, and the longest segment.

        Raises Unsupported where layers are of several kinds: which of them keep their
        input hangs on their order.
        """
        if len(run.layers) > 1:
            raise Unsupported(
                f"recompute sqrt of {self.book.job.model}, whose layers are of several "
                f"kinds ({', '.join(run.layers)}), is not searched; simulate prices it"
            )
        ((name, count),) = run.layers.items()
        redone = self._own["recompute"] == SQRT
        begins = np.where(redone, counted(count), count)
        whole, inside = self._body[name], self._inside[name]
        length = np.where(redone, longest(count), 0)
        return (
            [(begins, whole), (count - begins, inside)],
            [_segment(length, whole, inside)],
        )

    def _leanest(
        self, run: Run, fewest: int, most: int
    ) -> tuple[list[Part], list[list[Part]]]:
        """No more than the numbered layers of a stage keep and need, whatever each
        makes again, where the longest segment has *fewest* to *most* layers.

        Nothing keeps less than an input a segment; layers of several kinds are not
        joined. A layer may keep a little more than its input, and have that less to
        make again.
        """
        body, segments = [], []
        kinds = sum((count > 0).astype(int) for count in run.layers.values())
        for name, count in run.layers.items():
            whole = self._fully[name]
            if most == 1:
                input_bytes = whole.saved_bytes
                whole = whole.replaced(
                    dropped_bytes=whole.dropped_bytes - input_bytes,
                    backward_working_bytes=whole.backward_working_bytes - input_bytes,
                )
                body.append((count, whole))
                continue
            inside = self._inside[name]
            begins = np.where(kinds == 1, -(-count // most), count)
            length = np.minimum(count, fewest) * (kinds == 1)
            body += [(begins, whole), (count - begins, inside)]
            segments.append(_segment(length, whole, inside))
        return body, segments

    @cached_property
    def _fully(self) -> dict[str, Atom]:
        """Of each kind of numbered layer, made again whole."""
        nothing = np.zeros_like(self._stages)
        return {
            name: self._atoms(name, ("full",), nothing)
            for name in self.book.job.graph.kinds
        }

    @cached_property
    def _inside(self) -> dict[str, Atom]:
        """Of layers inside a segment, in the rows that have some; nothing in others."""
        some = self._own["recompute"] == SQRT if self.segments is None else slice(None)
        rows = np.arange(len(self._stages))[some]
        found = {}
        for name, block in self.book.job.graph.kinds.items():
            table = np.zeros((len(ATOM), len(self._stages)))
            table[:, rows] = self.book.atoms(
                name, self._sites[rows], (inner(block),), np.zeros_like(rows)
            )
            found[name] = Atom(table)
        return found


def _segment(length: Array, first: Atom, inside: Atom) -> list[Part]:
    """The *first* layer of a segment of so many, and those *inside*."""
    return [(np.minimum(length, 1), first), (np.maximum(length - 1, 0), inside)]
