"""Ways back after a failure, as far as a layout has them (Zhong et al., "Swift").

* `checkpoint`: every rank goes back to the last one, and all since is done again.
* `replica`: what a failed node held is held elsewhere too; a step is lost. Only where
  each shard has copies on several nodes, and while one of them fails, another does not.
* `log`: senders keep what passes between groups of pipeline ranks; a failed group goes
  back to the last checkpoint and runs its part again, fed by the logs: without the
  bubble, and split with the spare machines. The log has to fit into host memory: groups
  are made wider (less is logged, more runs again), or checkpoints more frequent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import expm1, inf
from typing import Any, Final

from costmodel.layout import Layout
from costmodel.options import RECOVERIES
from costmodel.simulation import Answer
from costmodel.stages import Reliability
from costmodel.training_run.goodput import FailureModel
from costmodel.training_run.spares import Pool

LOG_SHARE: Final = 0.5  # [assumed] of a host's memory, beside the job's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One way back: what a failure costs, and the seconds between checkpoints that are
    best, or that the log leaves; `impossible` says why a layout does not have it."""

    name: str
    job: FailureModel | None = None
    impossible: str | None = None
    most_interval_s: float = inf
    log: dict[str, Any] | None = None

    def interval_s(self, longest_s: float, given_s: float | None) -> float:
        """Between checkpoints, with one; as *given*, else the best up to *longest*."""
        assert self.job is not None
        most = self.job.checkpoint_s + min(longest_s, self.most_interval_s)
        return min(most, self.job.best_interval_s if given_s is None else given_s)


def recoveries(found: Answer, job: FailureModel, pool: Pool) -> Iterator[Recovery]:
    """Every way back; *job* is that by checkpoints, its restart without reading one."""
    reading = replace(job, restart_s=job.restart_s + job.checkpoint_s)
    yield Recovery(name=RECOVERIES[0], job=reading)
    yield _replica(found, job, pool)
    yield _log(found, reading, pool)


def copies(layout: Layout, devices_per_node: int) -> int:
    """On how many nodes each shard of the states is: of the stage with fewest."""
    fewest = layout.gpus
    for stage in layout.stages:
        mesh = stage.mesh
        sharded = max(plan.zero for plan in stage.plans) > 0
        block = mesh.tp * max(mesh.shards if sharded else 1, mesh.ep)
        copied = max(1, mesh.size // block)
        beside = max(1, devices_per_node // block)  # on one node
        fewest = min(fewest, -(-copied // beside))
    return fewest


def _replica(found: Answer, job: FailureModel, pool: Pool) -> Recovery:
    """A failure while the last other copy's node is away costs a checkpoint."""
    nodes = copies(found.layout, _reliability(found).devices_per_node)
    if nodes < 2:
        return Recovery(
            name="replica",
            impossible="no state has copies on two nodes (--zero 0, or --zero-group)",
        )
    another = -expm1(-job.restart_s / pool.mtbf_s)
    return Recovery(name="replica", job=replace(job, replay=another ** (nodes - 1)))


def group_width(layout: Layout, devices_per_node: int) -> int:
    """The fewest pipeline ranks whose devices fill nodes: a log outlives what fails."""
    return max(1, -(-devices_per_node // layout.stages[0].mesh.size))


def replayed(found: Answer, width: int) -> float:
    """The share of a step that *width* pipeline ranks take alone: the bubble is that of
    as many, and so the same on a pipeline of any length."""
    pp = found.layout.pp
    bubble = found.breakdown_s["bubble"] / found.step_time_s
    return 1 - bubble * (pp - width) / max(1, pp - 1)


def log_bytes(found: Answer, width: int, devices_per_node: int) -> float:
    """What a node keeps of one step: activations onward, gradients back, at the ends
    of its group, of every virtual stage."""
    layout, job = found.layout, found.job
    elements = job.tokens * max(job.graph.handed_on)
    sent = 2 * elements * layout.precision.activation.bytes * layout.virtual_stages
    nodes = max(1.0, width * layout.stages[0].mesh.size / devices_per_node)
    return sent / nodes


def _log(found: Answer, job: FailureModel, pool: Pool) -> Recovery:
    layout, known = found.layout, _reliability(found)
    width = group_width(layout, known.devices_per_node)
    if width >= layout.pp:
        return Recovery(
            name="log",
            impossible="the pipeline lies on one node" if layout.pp > 1 else "pp is 1",
        )
    return max(
        (_grouped(found, job, pool, w) for w in _widths(width, layout.pp)),
        key=_value,
    )


def _widths(least: int, pp: int) -> Iterator[int]:
    width = least
    while width < pp:
        yield width
        width *= 2


def _value(one: Recovery) -> float:
    assert one.job is not None
    return one.job.goodput(one.interval_s(inf, None))


def _grouped(found: Answer, job: FailureModel, pool: Pool, width: int) -> Recovery:
    known, layout = _reliability(found), found.layout
    each = log_bytes(found, width, known.devices_per_node)
    ranks = width * layout.stages[0].mesh.size
    helpers = 1 + pool.spares // max(1, ranks // known.devices_per_node)
    most_s = inf
    if known.host_bytes is not None:
        most_s = LOG_SHARE * known.host_bytes / each * found.step_time_s
    own = replace(job, replay=replayed(found, width) / helpers)
    interval_s = min(own.best_interval_s - own.checkpoint_s, most_s)
    return Recovery(
        name="log",
        job=own,
        most_interval_s=most_s,
        log={
            "pipeline_ranks_per_group": width,
            "groups": -(-layout.pp // width),
            "bytes_per_node_and_step": each,
            "bytes_per_node": each * interval_s / found.step_time_s,
            "host_bytes": known.host_bytes,
            "helpers": helpers,
        },
    )


def _reliability(found: Answer) -> Reliability:
    assert found.reliability is not None
    return found.reliability
