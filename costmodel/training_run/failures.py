"""What failures of nodes add to a run: the ways back compared, the best one taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from costmodel.options import RunOptions
from costmodel.simulation import Answer
from costmodel.training_run.goodput import FailureModel
from costmodel.training_run.monte_carlo import drawn, monte_carlo_document
from costmodel.training_run.recovery import Recovery, recoveries
from costmodel.training_run.spares import Pool
from profiles.errors import Contradiction, Unsupported
from profiles.models import parameters
from profiles.units import DAY_S, GB, HOUR_S

STATE_BYTES: Final = 4  # of a parameter's master, and of each of its moments
RESTART_S: Final = 600.0  # [assumed] from a failure to the first step after it
WRITE_BYTES_PER_S: Final = 0.25e9  # [assumed] a device's share of shared storage
REPAIR_S: Final = 24 * HOUR_S  # [assumed] until a failed node is back
OF_FAILURES: Final = (  # options about them
    "recovery",
    "spare_nodes",
    "monte_carlo",
    "save_interval",
    "storage_bandwidth",
)
MOST_MISSING: Final = 4  # nodes without which a job still goes on


def failures(found: Answer, seconds: float, run: RunOptions) -> dict[str, Any] | None:
    """What failures of nodes add to *seconds* of training, by the best way back, or
    the one that is asked for; None where nobody says how often nodes fail.

    Raises Contradiction for a way back that the layout does not have.
    """
    pool = _pool(found, run)
    if pool is None:
        return None
    job, assumed = _job(found, pool, run)
    given_s = None
    if run.save_interval is not None:
        given_s = run.save_interval * found.step_time_s + job.checkpoint_s
    ways = list(recoveries(found, job, pool))
    rows = [_row(way, pool, seconds, given_s) for way in ways]
    best = _chosen(rows, run.recovery)
    way = ways[rows.index(best)]
    assert way.job is not None
    whole = {
        "mtbf_h": pool.mtbf_s / pool.nodes / HOUR_S,
        "nodes": pool.nodes,
        "checkpoint_bytes": _state_bytes(found),
        "checkpoint_s": job.checkpoint_s,
        "young_interval_s": job.young_interval_s,
        "daly_interval_s": job.daly_interval_s,
        "recovery": best["recovery"],
        **{name: best[name] for name in ("interval_s", "goodput", "days")},
        "expected": _expected(best, pool),
        "spares": _spares(pool, run),
        "recoveries": rows,
        "monte_carlo": None,
        "assumed": {**assumed, **_assumed_of_spares(run)},
    }
    if run.monte_carlo is not None and best["goodput"]:
        one = drawn(way.job, pool, best["interval_s"], seconds, run.monte_carlo)
        whole["monte_carlo"] = monte_carlo_document(one, seconds)
    return whole


def _pool(found: Answer, run: RunOptions) -> Pool | None:
    """The nodes; without --spare-nodes one is always there to take a place."""
    known = found.reliability
    if known is None or (run.mtbf is None and known.failures_per_s is None):
        _require_not_asked(run)
        return None
    mtbf_s = (
        run.mtbf * HOUR_S
        if run.mtbf is not None
        else known.nodes / (known.failures_per_s or 1.0)
    )
    if run.spare_nodes is None:
        return Pool(nodes=known.nodes, spares=0, mtbf_s=mtbf_s, repair_s=0.0)
    repair_s = REPAIR_S if run.repair_time is None else run.repair_time * HOUR_S
    waiting = Pool(
        nodes=known.nodes, spares=run.spare_nodes, mtbf_s=mtbf_s, repair_s=repair_s
    )
    speeds = fewer_speeds(found, known.nodes, known.devices_per_node)
    shrinking = replace(waiting, fewer=tuple(speeds))
    plain = FailureModel(mtbf_s=mtbf_s, checkpoint_s=0, restart_s=RESTART_S)
    step_s = found.step_time_s
    return max(waiting, shrinking, key=lambda one: one.goodput(plain, step_s))


def _require_not_asked(run: RunOptions) -> None:
    """Raise Unsupported for what is about failures, where none are known."""
    for name in OF_FAILURES:
        if getattr(run, name) is not None:
            raise Unsupported(
                f"--{name.replace('_', '-')}: nobody says how often nodes fail; give "
                "--mtbf HOURS, or `mtbf` in a cluster file"
            )


def fewer_speeds(found: Answer, nodes: int, devices_per_node: int) -> list[float]:
    """Speeds with one node fewer, two fewer …: as many replicas as are left and divide
    the batch have more micro-batches each; the bubble stays."""
    layout, job = found.layout, found.job
    replica = layout.stages[0].mesh
    dp, each = replica.dp, layout.gpus // replica.dp
    sequences = job.global_batch // (layout.micro_batches * dp)
    bubble_s = found.breakdown_s["bubble"]
    speeds = list[float]()
    for missing in range(1, min(MOST_MISSING, nodes - 1) + 1):
        room = (layout.gpus - missing * devices_per_node) // each
        left = next(
            (n for n in range(room, 0, -1) if job.global_batch % (n * sequences) == 0),
            None,
        )
        if left is None:
            break
        slower_s = (found.step_time_s - bubble_s) * dp / left + bubble_s
        speeds.append(found.step_time_s / slower_s)
    return speeds


def _job(
    found: Answer, pool: Pool, run: RunOptions
) -> tuple[FailureModel, dict[str, Any]]:
    """The job, and what is assumed of it."""
    known, assumed = found.reliability, dict[str, Any]()
    assert known is not None
    bytes_per_s = known.drives_bytes_per_s
    if run.storage_bandwidth is not None:
        bytes_per_s = run.storage_bandwidth * GB
    if bytes_per_s is None:
        bytes_per_s = found.layout.gpus * WRITE_BYTES_PER_S
        assumed["write_bytes_per_s_per_device"] = WRITE_BYTES_PER_S
    restart_s = run.restart_time
    if restart_s is None:
        restart_s = assumed["restart_s"] = RESTART_S
    job = FailureModel(
        mtbf_s=pool.mtbf_s / pool.nodes,
        checkpoint_s=_state_bytes(found) / bytes_per_s,
        restart_s=restart_s,
        step_s=found.step_time_s,
    )
    return job, assumed


def _state_bytes(found: Answer) -> float:
    return parameters(found.job.spec).trained * STATE_BYTES * (1 + found.job.moments)


def _row(
    way: Recovery, pool: Pool, seconds: float, given_s: float | None
) -> dict[str, Any]:
    """A way back, as a document."""
    if way.job is None:
        return {"recovery": way.name, "impossible": way.impossible, "goodput": None}
    interval_s = way.interval_s(seconds, given_s)
    goodput = pool.goodput(way.job, interval_s)
    return {
        "recovery": way.name,
        "impossible": None,
        "restart_s": way.job.restart_s,
        "replayed": way.job.replay,
        "interval_s": interval_s,
        "goodput": goodput,
        "days": seconds / goodput / DAY_S if goodput else None,
        "log": way.log,
    }


def _chosen(rows: list[dict[str, Any]], asked: str | None) -> dict[str, Any]:
    for row in rows:
        if row["recovery"] == asked and row["impossible"] is not None:
            raise Contradiction(f"--recovery {asked}: {row['impossible']}")
    open_to = [row for row in rows if asked in (None, row["recovery"])]
    return max(open_to, key=lambda row: row["goodput"] or 0.0)


def _expected(best: dict[str, Any], pool: Pool) -> float | None:
    """Failures in the whole run."""
    if best["days"] is None:
        return None
    return float(best["days"]) * DAY_S * pool.running * pool.nodes / pool.mtbf_s


def _spares(pool: Pool, run: RunOptions) -> dict[str, Any] | None:
    if run.spare_nodes is None:
        return None
    return {
        "nodes": pool.spares,
        "repair_h": pool.repair_s / HOUR_S,
        "without_a_spare": "re-plan" if pool.fewer else "wait",
        "speeds_on_fewer_nodes": list(pool.fewer),
        "whole_share": sum(pool.shares[: pool.spares + 1]) * pool.running,
        "waiting_share": 1 - pool.running,
    }


def _assumed_of_spares(run: RunOptions) -> dict[str, Any]:
    if run.spare_nodes is None or run.repair_time is not None:
        return {}
    return {"repair_h": REPAIR_S / HOUR_S}
