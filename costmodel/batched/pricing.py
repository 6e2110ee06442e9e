"""Columns of candidates priced at once, from a few hundred atoms.

Each row gathers the atoms of its (tp, cp, micro-batch, sequence parallel, retention)
and is priced by the very functions that price a finished layout: what comes out is a
closed form, a lower bound of the simulated step.

At least what a candidate's fullest node has of what is offloaded, as columns.

mean     states of all stages, over the nodes                    → _mean_bytes
ends     where a pipeline rank fills whole nodes, those of the fuller of its two
         ends with what is in flight there                       → _end_bytes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from costmodel.batched.makespan import Runs, makespan_s
from costmodel.batched.row_bytes import needed_bytes
from costmodel.batched.rows import Rows
from costmodel.layout import SCHEDULES, Columns
from costmodel.machine import Machine, always_crosses
from costmodel.stages import (
    AtomBook,
    Sender,
    StagePrice,
    boundary,
    most_hidden_s,
    sends,
    states_bytes,
    tied_sync,
)
from costmodel.timeline import reduce_tail_s
from profiles.arrays import Array
from profiles.models import Job


def least_node_bytes(rows: Rows) -> Array:
    """At least the bytes of the fullest node of each row."""
    on_node, pp = rows.on.island.devices_per_node, rows.columns.pp
    nodes = -(-rows.columns.gpus // on_node)
    mean = _states(rows, partial(_of_all, rows)) * rows.stride / nodes
    whole = (rows.stride % on_node == 0) | (pp == 1)
    ends = _end_bytes(rows) * np.minimum(rows.stride, on_node)
    return np.asarray(np.maximum(mean, np.where(whole, ends, 0.0)))


def _end_bytes(rows: Rows) -> Array:
    """Of a rank at the fuller end of the pipeline."""
    first, last = rows.held[0], rows.held[-1]
    saved, ended = (rows.contents[at].total.away_bytes for at in (0, -1))
    zero, several = np.zeros_like(rows.columns.pp), rows.columns.virtual_stages > 1
    alone = ~(several | rows.columns.in_pairs)  # else chunks save unequal bytes
    leading = _states(rows, partial(rows.held_by, first))
    trailing = _states(rows, partial(rows.held_by, last))
    leading = leading + alone * saved * rows.in_flight(zero)
    trailing = trailing + alone * ended * rows.in_flight(rows.columns.pp - 1)
    there = rows.counts[-1] > 0  # a pipeline of one stage has the first end alone
    return np.maximum(leading, np.where(there, trailing, 0.0))


def _states(rows: Rows, held: Callable[[str], Array]) -> Array:
    return states_bytes(
        held("parameters"),
        held("expert_parameters"),
        held("frozen_parameters"),
        rows.parallel,
        rows.policy,
        rows.job.moments,
        rows.columns.offload,
        shards_are_masters=rows.on.framework.fully_shard,
    )


def _of_all(rows: Rows, name: str) -> Array:
    """The sum over all virtual stages."""
    stages = zip(rows.counts, rows.held, strict=True)
    return np.asarray(sum(count * getattr(stage, name) for count, stage in stages))


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
    columns, runs = rows.columns, pipeline_runs(rows)
    makespan = makespan_s(
        runs,
        schedule=columns.schedule,
        virtual_stages=columns.virtual_stages,
        micro_batches=rows.micro_batches,
        turns=rows.on.turns,
        pp=columns.pp,
    )
    flushed = np.maximum(makespan, _crossing_s(rows)) + after_passes_s(rows)
    if not columns.stale.any():
        return flushed
    return np.where(columns.stale, np.maximum(makespan, _own_s(rows, runs)), flushed)


def _own_s(rows: Rows, runs: Runs) -> Array:
    """At least what a rank does from one update to the next, where none waits for all:
    its passes, of which those that share cores may be faster than priced, and then its
    own reduction and update."""
    faster = np.minimum(rows.on.turns, rows.columns.pp)
    found = np.zeros(len(rows.columns))
    passes = zip(runs.both_s, rows.priced, rows.counts, strict=True)
    for both_s, one, count in passes:
        own = rows.micro_batches * both_s / faster + rows.on.step_s
        own = own + _behind(rows, one, one.reduce_s, one.backward_s)
        own = own + one.step_s + one.gather_s
        found = np.where(count > 0, np.maximum(found, own), found)
    return found


def pipeline_runs(rows: Rows) -> Runs:
    """The passes of each row's stages, and its transfers."""
    far = always_crosses(rows.stride, rows.on.island)
    sent = sends(transfer_s(rows, far), rows.on)
    in_v = rows.columns.in_v  # where some boundaries are not crossed
    in_passes_s = np.where(in_v, 0.0, sent.in_passes_s)
    onward = (*(1.0 for _ in rows.priced[:-1]), 0.0)  # the last sends nothing forward
    return Runs(
        forward_s=tuple(
            item.forward_s + share * in_passes_s
            for item, share in zip(rows.priced, onward, strict=True)
        ),
        backward_s=tuple(
            item.backward_s + share * in_passes_s
            for item, share in zip(rows.priced, onward[::-1], strict=True)
        ),
        weight_s=tuple(item.weight_s for item in rows.priced),
        hidden_s=tuple(
            most_hidden_s(item.expert_comm_s, item.backward_s, rows.on)
            for item in rows.priced
        ),
        counts=rows.counts,
        transfer_s=sent.beside_s,
    )


def after_passes_s(rows: Rows) -> Array:
    """At least the seconds of each row's step from its last pass on."""
    columns = rows.columns
    at_first, at_last = (
        rows.seconds_of(end, "step_s") + rows.seconds_of(end, "gather_s")
        for end in (rows.priced[0], rows.priced[-1])
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
    return np.asarray(_tail_s(rows) + end)


def _tail_s(rows: Rows) -> Array:
    """What is left to reduce after the last pass, of the first rank where that is its,
    else of any."""
    first, ends_at_first = rows.priced[0], rows.columns.ends_at_first
    overlapped = rows.hides_gradients
    behind = np.where(overlapped, first.reduce_s, rows.seconds_of(first, "reduce_s"))
    tail = _behind(rows, first, behind, first.backward_s)
    if ends_at_first.all():
        return tail
    columns = rows.columns
    puts_off = columns.puts_off & (columns.pp > 1)
    held = np.where(overlapped, 1, columns.virtual_stages * columns.copies)
    least: Array = np.full(len(columns), np.inf)
    for one, count in zip(rows.priced, rows.counts, strict=True):
        last = np.where(puts_off, one.weight_s, one.backward_s)
        own = _behind(rows, one, held * one.reduce_s, last)
        least = np.where(count > 0, np.minimum(least, own), least)
    return np.where(ends_at_first, tail, least)


def _behind(rows: Rows, stage: StagePrice, reduce_s: Array, last_s: Array) -> Array:
    return reduce_tail_s(
        reduce_s,
        last_s,
        buckets=stage.buckets,
        overlap=rows.hides_gradients,
    )


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
        far_s=transfer_s(rows, np.asarray(True)),
    )


def partly_crosses(stride: Array, pp: Array, domain: int) -> Array:
    """Whether a pipeline, *stride* ranks a stage, leaves its domain at times."""
    inside = stride < domain
    return np.asarray(inside & (domain % stride == 0) & (stride * pp > domain))


def crossing_s(
    schedule: Array,
    *,
    stride: Array,
    pp: Array,
    domain: int,
    virtual_stages: Array,
    micro_batches: Array,
    least_pass_s: Array,
    far_s: Array,
) -> Array:
    """At least the seconds that crossing boundaries cost; 0 where none or all cross.

    *least_pass_s* is a forward and backward of the lightest stage, *far_s* one transfer
    between domains, *schedule* an index into `SCHEDULES`. The makespan knows one
    transfer time, here the near one; transfers between domains queue on one link:

        1f1b         a window of the two stages beside the last crossing boundary: a
                     trip there and back for every two micro-batches
        gpipe        all forwards cross before the last stage's first backward
        interleaved  one link carries every chunk's micro-batches
        others       no such path is counted
    """
    m = micro_batches
    last = (pp - 1) * stride // domain * domain // stride  # stage behind the boundary
    fill = np.minimum(pp - 1 - last, m - 1)
    paths = {
        "1f1b": (m - 1 - fill) // 2 * 2 * (least_pass_s + far_s),
        "gpipe": 2 * m * far_s,
        "interleaved": virtual_stages * m * far_s,
    }
    found = np.select(
        [schedule == code for code in range(len(SCHEDULES))],
        [paths.get(name, np.zeros(())) for name in SCHEDULES],
    )
    return np.where(partly_crosses(stride, pp, domain), found, 0.0)


def transfer_s(rows: Rows, far: Array) -> Array:
    columns = rows.columns
    sent = boundary(
        rows.job,
        rows.on,
        rows.policy,
        Sender(
            tp=columns.tp,
            cp=columns.cp,
            ranks=rows.stride,
            micro_batch=columns.micro_batch,
            sequence_parallel=columns.sequence_parallel > 0,
        ),
        far=far,
    )
    return np.where(columns.pp > 1, sent.seconds, 0.0)
