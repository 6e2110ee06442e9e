"""Which layouts are legal, and which of two is better, as papers say."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.layout.sharding_spec import Placement
from costmodel.layout.strategy import Uniform
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import (
    ON_TP,
    Collective,
    elements,
    forward_collectives,
    natural,
)
from costmodel.support.legality import violations
from planner.api import solve
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.graph import Block, Kind, Operator, Tensor
from tests.golden.priced import A100, job_of, machine_of, priced
from tests.support.problems import problem
from tests.support.rows import Obtained

TP, CP, S = 4, 2, 2048
MODELS = ["gpt-13b", "llama3-8b"]


def degrees(*, sp: bool, tp: int = TP, cp: int = CP) -> Degrees:
    return Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(cp),
        micro_batch=np.asarray(2),
        seq_len=S,
        sequence_parallel=sp,
    )


def blocks_of(name: str) -> list[Block]:
    return list(job_of(name, 8).graph.distinct())


def tensors_of(block: Block) -> list[Tensor]:
    found = [(*item.inputs, item.output, *item.saves) for item in block.operators]
    return [tensor for several in found for tensor in several]


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_no_two_dimensions_of_a_tensor_lie_on_one_axis(name: str, sp: bool) -> None:
    """Shazeer et al. (NeurIPS 2018), section 3: a width or the sequence is on tp, not
    both, so that a rank has 1/tp of a split tensor, never 1/tp²."""
    for block in blocks_of(name):
        for tensor in tensors_of(block):
            placed = natural(tensor, sequence_parallel=sp)
            widths = sum(dim in ON_TP for dim in tensor.dims)
            assert widths + (placed is Placement.SEQUENCE) <= 1, tensor.name
            whole = float(elements(tensor, block, degrees(sp=sp, tp=1, cp=1)))
            local = float(elements(tensor, block, degrees(sp=sp)))
            split = TP if placed is not Placement.WHOLE else 1
            assert local * CP * split == whole, tensor.name


def summing(operator: Operator, block: Block, *, sp: bool) -> list[Collective]:
    """What adds up an operator's partial sums, forward."""
    found = forward_collectives(operator, block, degrees(sp=sp), precision("bf16"))
    return [item for item in found if item.kind in ("all_reduce", "reduce_scatter")]


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_contracted_over_an_axis_is_summed_over_it(name: str, sp: bool) -> None:
    """The einsum rule of Mesh-TensorFlow: local product, then a reduction over the mesh
    axes of the contracted dimensions, and none else."""
    for block in blocks_of(name):
        for operator in block.operators:
            if operator.kind is Kind.CROSS_ENTROPY:
                continue
            contracts = operator.has_weight and operator.contracted in ON_TP
            assert bool(summing(operator, block, sp=sp)) == contracts, operator.name


@pytest.mark.parametrize(
    ("name", "choice", "said"),
    [
        ("gpt-13b", Uniform(tp=16), "tp=16 does not divide the 40 heads"),
        ("llama3-8b", Uniform(tp=3), "key-value heads"),
        ("llama3-8b", Uniform(tp=3), "ffn_hidden=14336"),
        ("gpt-13b", Uniform(pp=43), "more than the 40 layers"),
        ("gpt-13b", Uniform(dp=3, micro_batch=3), "not a multiple of micro-batch"),
        ("gpt-13b", Uniform(dp=4, zero_group=3), "zero_group=3 does not divide dp=4"),
        ("gpt-13b", Uniform(cp=3, cp_kind="ulysses"), "not a multiple of cp"),
        ("gpt-13b", Uniform(cp=2, cp_kind="rsa"), "needs --no-flash-attention"),
    ],
)
def test_what_does_not_go_is_refused(name: str, choice: Uniform, said: str) -> None:
    """Shoeybi et al. (2019), section 3; scores that are stored and are not (Li et al.,
    2023); every violation is named."""
    found = list(violations(choice, job_of(name, 64), cluster(A100)))
    assert any(said in sentence for sentence in found), found


def test_more_ranks_than_key_value_heads_replicate_them() -> None:
    choice = Uniform(tp=16)  # eight key-value heads
    assert not list(violations(choice, job_of("llama3-8b", 64), cluster(A100)))


# Narayanan et al. (SC 2021), Table 1: t, p, GPUs, batch, micro-batch, virtual stages.
TABLE_1 = {
    "gpt-1.7b": (1, 1, 32, 512, 16, 1),
    "gpt-3.6b": (2, 1, 64, 512, 16, 1),
    "gpt-7.5b": (4, 1, 128, 512, 16, 1),
    "gpt-18.4b": (8, 1, 256, 1024, 8, 1),
    "gpt-39.1b": (8, 2, 512, 1536, 4, 1),
    "gpt-76.1b": (8, 4, 1024, 1792, 2, 3),
    "gpt-145.6b": (8, 8, 1536, 2304, 2, 2),
    "gpt-310.1b": (8, 16, 1920, 2160, 1, 2),
    "gpt-529.6b": (8, 35, 2520, 2520, 1, 3),
    "gpt-1t": (8, 64, 3072, 3072, 1, 2),
}


@pytest.mark.parametrize("name", TABLE_1)
def test_the_layouts_of_megatron_table_1_are_legal_and_fit(name: str) -> None:
    tp, pp, gpus, batch, micro_batch, virtual = TABLE_1[name]
    choice = Uniform(
        tp=tp,
        pp=pp,
        dp=gpus // (tp * pp),
        micro_batch=micro_batch,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        recompute="full",
        flash_attention=False,
        zero=0,
    )
    job = job_of(name, batch)
    assert not list(violations(choice, job, cluster(A100)))
    names = ("tp", "pp", "dp", "micro_batch", "virtual_stages", "schedule")
    shape = {key: getattr(choice, key) for key in names}
    assert priced(job, recompute="full", flash_attention=False, **shape).fits


@pytest.mark.parametrize("pp", [17, 21, 35])
def test_tensor_parallelism_stays_inside_the_node(pp: int) -> None:
    """Smith et al. (2022): t = 8, p = 35 for 530 B on DGX A100s. GPU-seconds of a step
    grow by a fifth and more where t = 16 leaves the node."""
    job = job_of("mt-nlg-530b", 280)
    inside = priced(job, tp=8, pp=35, recompute="full")
    across = priced(job, tp=16, pp=pp, recompute="full")
    inside_s, across_s = (
        item.step_time_s * item.layout.gpus for item in (inside, across)
    )
    assert across_s > 1.2 * inside_s


@pytest.mark.row("F0", "t and p of the plan of 530 B on 280 A100", expected="8 and 35")
def test_a_plan_of_530_billion_parameters_has_eight_ways_and_35_stages(
    obtained: Obtained,
) -> None:
    """Smith et al. (2022), section 3: a replica is t = 8, p = 35 on 280 A100s."""
    posed = problem("mt-nlg-530b", 280, global_batch=240)  # of 1920 over 8 replicas
    best = solve(posed, BranchAndBound(), Limits(runners_up=0)).best
    assert best is not None
    choice = best.choice
    obtained(f"{choice.tp} and {choice.pp}")
    assert (choice.tp, choice.pp, choice.dp, choice.micro_batch) == (8, 35, 1, 1)


@pytest.mark.parametrize("name", ["gpt-13b", "llama3-70b"])
def test_fp8_products_gain_less_than_twice(name: str) -> None:
    """Wang et al. (NeurIPS 2018): 8-bit products at twice the peak; attention, norms
    and transfers stay in 16 bits."""
    job, where = job_of(name, 8), machine_of("megatron-core", on="dgx-h100")
    wide, narrow = (
        priced(job, where, tp=8, sequence_parallel=True, precision=number)
        for number in ("bf16", "fp8")
    )
    assert 1 < wide.step_time_s / narrow.step_time_s < 2
    assert narrow.peak_flops_per_s == pytest.approx(2 * wide.peak_flops_per_s, rel=1e-3)
