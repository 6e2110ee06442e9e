"""Columns of candidates priced at once, from a few hundred atoms.

Each row gathers the atoms of its (tp, cp, micro-batch, sequence parallel, retention)
and is priced by the very functions that price a finished layout: what comes out is
the closed form of `closed_form`, a lower bound of the simulated step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.atom_book import AtomBook
from costmodel.closed_form import Passes, makespan_s
from costmodel.columns import SCHEDULES, Columns
from costmodel.crossing import crossing_s, partly_crosses
from costmodel.data_parallel import buckets_of
from costmodel.gradient_reduction import reduce_tail_s
from costmodel.in_flight import peak_in_flight
from costmodel.machine import Machine
from costmodel.memory import memory, pipeline_buffers
from costmodel.placement import always_crosses
from costmodel.rows import Rows
from costmodel.software import hides_gradients
from costmodel.stage_bytes import StageBytes
from costmodel.tied import tied_sync
from costmodel.transfers import boundary_s, sends
from profiles.job import Job

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class ColumnPrices:
    """One number a row: seconds of a step and the bytes that the fullest rank needs,
    both lower bounds of what the simulation of that row gives."""

    step_time_s: Array
    needed_bytes: Array


def price(columns: Columns, job: Job, on: Machine) -> ColumnPrices:
    """Price every row of *columns* for *job* on a machine."""
    if on.measured is None:
        return price_from(AtomBook.for_columns(columns, job, on), columns)
    gpus = columns.gpus  # samples depend on how many ranks are at work
    prices = ColumnPrices(
        step_time_s=np.empty(len(columns)), needed_bytes=np.empty(len(columns))
    )
    for count in np.unique(gpus):
        here = gpus == count
        rows, where = columns.take(here), on.running(int(count))
        found = price_from(AtomBook.for_columns(rows, job, where), rows)
        prices.step_time_s[here] = found.step_time_s
        prices.needed_bytes[here] = found.needed_bytes
    return prices


def price_from(book: AtomBook, columns: Columns) -> ColumnPrices:
    """The same from a *book* of the rows' job, machine, precision and offloading."""
    rows = Rows(columns=columns, book=book)
    return ColumnPrices(step_time_s=step_time_s(rows), needed_bytes=needed_bytes(rows))


def step_time_s(rows: Rows) -> Array:
    """At least the seconds of a step of each row."""
    first, *middle, last = rows.priced
    columns = rows.columns
    far = always_crosses(rows.stride, rows.on.island)
    carried = np.where(columns.in_v, 0.0, _transfer_s(rows, far))
    sent = sends(carried, rows.on)
    at_once = columns.runs_at_once
    onward = (*(1.0 for _ in (first, *middle)), 0.0)  # the last sends nothing forward
    makespan = makespan_s(
        Passes(
            forward_s=tuple(
                item.forward_s + share * sent.in_passes_s
                for item, share in zip(rows.priced, onward, strict=True)
            ),
            backward_s=tuple(
                item.backward_s
                + share * sent.in_passes_s
                - at_once * item.expert_comm_s
                for item, share in zip(rows.priced, onward[::-1], strict=True)
            ),
            counts=rows.counts,
        ),
        schedule=columns.schedule,
        virtual_stages=columns.virtual_stages,
        micro_batches=rows.micro_batches,
        transfer_s=sent.beside_s,
        turns=rows.on.turns,
        pp=columns.pp,
    )
    makespan = np.maximum(makespan, _crossing_s(rows))
    # The first rank's last backward is the pipeline's last action, if none is put off.
    overlapped = hides_gradients(rows.on.software, columns.tp)
    behind = np.where(overlapped, first.reduce_s, rows.seconds_of(first, "reduce_s"))
    tail = reduce_tail_s(
        behind,
        first.backward_s,
        buckets=buckets_of(first.trained_parameters, rows.policy, rows.on),
        overlap=overlapped,
    )
    tail = np.where(columns.ends_at_first, tail, 0.0)
    at_first, at_last = (
        rows.seconds_of(end, "step_s") + rows.seconds_of(end, "gather_s")
        for end in (first, last)
    )
    at_last = np.where(rows.counts[-1] > 0, at_last, 0.0)  # one stage has no other
    tied = tied_sync(
        rows.job,
        rows.on,
        rows.policy,
        tp=columns.tp,
        pp=columns.pp,
        stride=rows.stride,
        inside=rows.stride * (columns.pp - 1) < rows.on.island.domain,
    )
    apart = ~columns.in_v  # in a V one rank holds both ends
    end = np.maximum(at_first, at_last) + apart * tied.seconds + rows.on.step_s
    return np.asarray(makespan + tail + end)


def _crossing_s(rows: Rows) -> Array:
    """What boundaries between domains cost where others lie inside one."""
    columns, domain = rows.columns, rows.on.island.domain
    if not np.any(partly_crosses(rows.stride, columns.pp, domain)):
        return np.zeros(len(columns))
    both = [item.forward_s + item.backward_s for item in rows.priced]
    there = [
        np.where(count > 0, one, np.inf)
        for count, one in zip(rows.counts, both, strict=True)
    ]
    return crossing_s(
        columns.schedule,
        stride=rows.stride,
        pp=columns.pp,
        domain=domain,
        virtual_stages=columns.virtual_stages,
        micro_batches=rows.micro_batches,
        least_pass_s=np.minimum.reduce(there),
        far_s=_transfer_s(rows, np.asarray(True)),
    )


def _transfer_s(rows: Rows, far: Array) -> Array:
    columns = rows.columns
    seconds = boundary_s(
        rows.job,
        rows.on,
        rows.policy,
        tp=columns.tp,
        cp=columns.cp,
        micro_batch=columns.micro_batch,
        sequence_parallel=columns.sequence_parallel > 0,
        far=far,
        stride=rows.stride,
    )
    return np.where(columns.pp > 1, seconds, 0.0)


def needed_bytes(rows: Rows) -> Array:
    """At least what the fullest rank of each row needs."""
    most: Array = np.maximum.reduce(_by_rank(rows))
    return most


def leanest_bytes(columns: Columns, book: AtomBook) -> Array:
    """The same whatever each stage makes again (`--recompute auto`).

    Layers are joined into segments where a rank has one stage, of one kind of layer;
    each rank has the length that it needs least with.
    """
    alone = (columns.virtual_stages == 1) & ~columns.in_pairs
    longest = -(-(book.job.graph.body + 2) // columns.pp) * alone
    least = _by_rank(Rows(columns=columns, book=book, segments=(1, 1)))
    for lengths in _lengths(int(longest.max(initial=1))):
        joins = np.flatnonzero(lengths[0] <= longest)
        some = columns.take(joins)
        here = _by_rank(Rows(columns=some, book=book, segments=lengths))
        for one, other in zip(least, here, strict=True):
            one[joins] = np.minimum(one[joins], other)
    return np.asarray(np.maximum.reduce(least))


def _lengths(longest: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover 2 … *longest*, each number alone up to 8, and then within an
    eighth."""
    fewest = 2
    while fewest <= longest:
        most = max(fewest, fewest * 9 // 8)
        yield fewest, most
        fewest = most + 1


def _by_rank(rows: Rows) -> list[Array]:
    """At least what each of the ranks that can be the fullest needs, 0 where it is not
    there: the first, the first of each run of middle ones, and the last."""
    first, *middle, last = rows.held
    before, *counts, at_end = rows.counts
    pp, several = rows.columns.pp, rows.columns.virtual_stages > 1
    alone = ~rows.columns.in_pairs
    zero = np.zeros_like(pp)
    ranks = [(first, zero, before > 0)]
    start = zero + 1
    for stage, count in zip(middle, counts, strict=True):
        ranks.append((stage, start, (count > 0) & ~several & alone))
        start = start + count
    ranks.append((rows.lightest, zero + 1, several & (pp > 2) & alone))
    ranks.append((last, pp - 1, (at_end > 0) & alone))
    found = [np.zeros(len(rows.columns))]
    for stage, rank, present in ranks:
        here = np.zeros(len(rows.columns))
        if present.any():
            every = _rank_bytes(rows, stage, rank, is_last=stage is last)
            here = np.where(present, every, 0)
        found.append(here)
    return found


def _rank_bytes(rows: Rows, end: StageBytes, rank: Array, *, is_last: bool) -> Array:
    """A rank that holds the chunk *end* and, if interleaved, middle chunks."""
    columns, m = rows.columns, rows.micro_batches
    alive = np.zeros_like(columns.pp)
    for code in np.unique(columns.schedule):
        name = SCHEDULES[code]
        count = peak_in_flight(name, rank, columns.pp, columns.virtual_stages, m)
        alive = np.where(columns.schedule == code, count, alive)
    own = _own_chunk(alive, columns, is_last=is_last)
    activations = own * end.saved_bytes + (alive - own) * rows.lightest.saved_bytes
    working = np.maximum(end.forward_working_bytes, end.backward_working_bytes)
    gathered = end.gathered_bytes
    if columns.in_pairs.any():
        last, pairs = rows.held[-1], columns.in_pairs
        entered = _entered(columns, m) * rows.held[0].saved_bytes + last.saved_bytes
        turned = np.maximum(last.forward_working_bytes, last.backward_working_bytes)
        activations = np.where(pairs, entered, activations)
        working = np.where(pairs, turned, working)
        gathered = np.where(pairs, np.maximum(gathered, last.gathered_bytes), gathered)
    pieces = memory(
        parameters=rows.held_by(end, "parameters"),
        gathered_bytes=gathered,
        activation_bytes=activations * pipeline_buffers(rows.on, columns.pp),
        transient_bytes=working,
        parallel=rows.parallel,
        offload=columns.offload,
        precision=rows.policy,
        moments=rows.job.moments,
        device=rows.on.device,
        ranks=columns.gpus,
        fully_shard=rows.on.software.fully_shard,
        micro_batches=m,
        footprint=rows.on.software.footprint,
        frozen_parameters=rows.held_by(end, "frozen_parameters"),
        expert_parameters=rows.held_by(end, "expert_parameters"),
    )
    return pieces.needed


def _entered(columns: Columns, micro_batches: Array) -> Array:
    """Micro-batches of the first stage on a first rank that meets its last stage."""
    both_ways = np.minimum(columns.pp, micro_batches) // 2
    in_v = np.minimum(2 * columns.pp - 1, micro_batches)
    return np.where(columns.in_v, in_v, both_ways)


def _own_chunk(alive: Array, columns: Columns, *, is_last: bool) -> Array:
    """Of the pairs alive on a rank, those of its first (or last) chunk."""
    pp, v = columns.pp, columns.virtual_stages
    rounds, rest = np.divmod(alive, pp * v)
    chunk = v - 1 if is_last else 0
    own = rounds * pp + np.clip(rest - chunk * pp, 0, pp)
    return np.where(v > 1, own, alive)
