"""`ComparedProcesses`: a layout's replicas in one process, and in one each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from costmodel.estimate import Estimate, estimate
from costmodel.layout import Layout
from costmodel.machine import Machine
from costmodel.single_process import SingleProcess, single_process
from costmodel.software import DEFAULT
from costmodel.zero_plus import PLAIN
from profiles.errors import Contradiction, Unsupported

OPTION: Final = "--compare-data-parallel"
NO_GPUS: Final = ("cpu", "tpu")  # on a CPU it runs the module as it is


@dataclass(frozen=True, kw_only=True)
class ComparedProcesses:
    """The same step by `nn.DataParallel` and by `DistributedDataParallel`."""

    single: SingleProcess
    distributed: Estimate

    @property
    def slowdown(self) -> float:
        return self.single.step_time_s / self.distributed.step_time_s

    @property
    def fits(self) -> bool:
        """Whether GPU 0 has room for what it needs at once."""
        return float(self.single.first.needed) <= self.distributed.capacity_bytes

    def document(self) -> dict[str, Any]:
        """The member `data_parallel` of `simulate --json`."""
        single, distributed = self.single, self.distributed
        last = distributed.layout.gpus - 1
        several = "1" if last == 1 else f"1-{last}"
        return {
            "nn.DataParallel": {
                "step_time_s": single.step_time_s,
                "breakdown_s": single.breakdown_s,
                "memory": [
                    {"gpus": "0", **single.first.document()},
                    {"gpus": several, **single.others.document()},
                ],
                "fits": self.fits,
            },
            "DistributedDataParallel": {
                "step_time_s": distributed.step_time_s,
                "memory": [
                    {"gpus": f"0-{last}", **distributed.memory[0].document()},
                ],
                "fits": distributed.fits,
            },
            "slowdown": self.slowdown,
        }


def compare_data_parallel(found: Estimate, on: Machine) -> ComparedProcesses:
    """What the replicas of *found*'s layout take in one process, and in one each.

    Both sum gradients in the weights' format, and keep all states whole.

    Raises Contradiction for a layout with more than data parallelism, and Unsupported
    for a machine or software that `nn.DataParallel` does not run on.
    """
    layout = found.layout
    _require_replicas(layout)
    _require_node(layout.gpus, on)
    both = _whole(layout)
    distributed = estimate(found.job, on.cluster, both, on=on)
    return ComparedProcesses(
        single=single_process(found.job, both, on), distributed=distributed
    )


def _require_replicas(layout: Layout) -> None:
    """Raise Contradiction unless *layout* is replicas on several GPUs and no more."""
    mesh = layout.stages[0].mesh
    alone = mesh.tp * mesh.cp * mesh.ep * mesh.etp == 1 and len(layout.stages) == 1
    if not alone:
        raise Contradiction(
            f"{OPTION}: nn.DataParallel has whole models on the GPUs of one process; "
            "leave --tp, --pp, --cp and --ep at 1"
        )
    if mesh.dp < 2:
        raise Contradiction(f"{OPTION} compares replicas; give --gpus 2 or more")
    if layout.away.anything or layout.away_share:
        raise Contradiction(
            f"{OPTION}: nn.DataParallel offloads nothing; leave --offload out"
        )


def _require_node(gpus: int, on: Machine) -> None:
    kind = on.device.architecture.lower()
    if kind.startswith(NO_GPUS):
        raise Unsupported(
            f"{OPTION}: nn.DataParallel is for GPUs, and {on.device.name} is none; "
            "name a --cluster of GPUs"
        )
    if len(on.cluster.islands) > 1:
        raise Unsupported(
            f"{OPTION}: one process has the GPUs of one node, and {on.cluster.name!r} "
            f"joins {len(on.cluster.islands)} islands; name one of them"
        )
    most = on.island.devices_per_node
    if gpus > most:
        raise Contradiction(
            f"{OPTION}: one process has the GPUs of one node, and {gpus} are more than "
            f"the {most} of {on.cluster.name}; use DistributedDataParallel, or --gpus "
            f"{most}"
        )
    if on.software.name != DEFAULT:
        raise Unsupported(
            f"{OPTION}: nn.DataParallel is PyTorch's own, and {on.software.name} does "
            "not use it; leave --framework out"
        )


def _whole(layout: Layout) -> Layout:
    """*layout* without ZeRO, its gradients in the weights' format."""
    (stage,) = layout.stages
    mesh = replace(stage.mesh, dp_replicate=stage.mesh.dp, dp_shard=1)
    plans = {plan: replace(plan, zero=0) for plan in stage.plans}
    return replace(
        layout,
        stages=(
            replace(stage, mesh=mesh, plans=tuple(plans[one] for one in stage.plans)),
        ),
        zero_plus=PLAIN,
        gradient_format="bf16",  # of 16-bit weights: theirs; fp32 ones have fp32
    )
