"""From the operator graph alone: Megatron's split, data parallelism, 2-D layouts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from costmodel.machine.topology import MeshAxis, mesh_axes
from planner.sharding.choice_graph import Status
from planner.sharding.costs import SentBytes
from planner.sharding.elimination import eliminate
from planner.sharding.ilp import solve_choice
from planner.sharding.intra_op import BlockSharding, described, pose, solve
from planner.sharding.problem import DIMENSIONS, ENTRY, BlockProblem, entry_choices
from profiles.errors import Infeasible, InvalidSpec, Unsupported
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.spec import DecoderSpec
from tests.support.blocks import block_of, block_problem, mlp
from tests.support.rows import Obtained

TP = mesh_axes(tp=8)
WHOLE_SEQUENCES = DIMENSIONS - {"sequence"}
MEGATRON = {
    "qkv": "heads",
    "attention": "heads",
    "projection": "heads",
    "mlp_up": "ffn",
    "activation": "ffn",
    "mlp_down": "ffn",
}


def kinds(found: BlockSharding, way: str, axis: str = "tp") -> Counter[str]:
    """How many collectives of each kind a pass has on *axis*."""
    every = [step for one in found.traffic.values() for step in getattr(one, way)]
    return Counter(step.kind for step in every if axis in step.axis.name)


@pytest.mark.parametrize("name", ["gpt-13b", "gpt-175b", "llama3-8b", "llama3-70b"])
def test_megatrons_column_and_row_split_comes_out(name: str) -> None:
    problem = block_problem(block_of(name), TP, splits=WHOLE_SEQUENCES)
    found = solve(problem)
    assert found.status is Status.OPTIMAL
    for operator, loop in MEGATRON.items():
        assert found.loops[operator] == (loop,)
    assert found.loops["input_norm"] == found.loops["mlp_norm"] == ("whole",)
    assert kinds(found, "forward") == kinds(found, "backward") == {"all_reduce": 2}
    assert kinds(found, "step") == {}


@pytest.mark.parametrize("name", ["gpt-13b", "llama3-70b"])
def test_along_the_sequence_its_all_reduces_are_halved(name: str) -> None:
    found = solve(block_problem(block_of(name), TP))
    for operator, loop in MEGATRON.items():
        assert found.loops[operator] == (loop,)
    assert found.loops["input_norm"] == found.loops["mlp_residual"] == ("sequence",)
    halves = {"all_gather": 2, "reduce_scatter": 2}
    assert kinds(found, "forward") == kinds(found, "backward") == halves


def test_its_shardings_are_megatrons_modules() -> None:
    found = solve(block_problem(block_of("gpt-13b"), TP))
    by_name = {one.module: one for one in found.shardings}
    up, down = by_name["layer.mlp_up"], by_name["layer.mlp_down"]
    assert up.parameters["weight"].placed == up.parameters["bias"].placed == ("ffn",)
    assert (up.inputs[0].given, up.inputs[0].wanted) == (("sequence",), ("whole",))
    assert down.parameters["weight"].placed == ("ffn",)
    assert down.parameters["bias"].placed == ("whole",)
    assert (down.output.made, down.output.handed) == (("partial",), ("sequence",))
    core = by_name["layer.attention"]
    assert core.local
    assert core.output.handed == ("query",)
    assert core.inputs[0].given == core.inputs[0].wanted == ("query+key_value",)


def test_small_weights_and_many_sequences_are_data_parallel() -> None:
    found = solve(block_problem(block_of("gpt-125m"), TP, sequences=64, seq_len=2048))
    assert set(found.loops.values()) == {("batch",)}
    assert kinds(found, "forward") == kinds(found, "backward") == {}
    assert kinds(found, "step")["all_reduce"] == 6  # weights and the norms' vectors


def test_two_axes_are_data_and_tensor_parallel() -> None:
    mesh = mesh_axes(dp=2, tp=8)
    splits = frozenset({"batch", "heads", "ffn"})
    problem = block_problem(
        block_of("gpt-175b"), mesh, sequences=2, seq_len=2048, splits=splits
    )
    found = solve(replace(problem, micro_batches=64))
    for operator, loop in MEGATRON.items():
        assert found.loops[operator] == ("batch", loop)
    assert kinds(found, "forward") == kinds(found, "backward") == {"all_reduce": 2}
    assert kinds(found, "step", "dp")["all_reduce"] == 6
    assert kinds(found, "forward", "dp") == kinds(found, "backward", "dp") == {}


def test_free_to_split_anything_two_axes_still_share_the_work() -> None:
    mesh = mesh_axes(dp=4, tp=8)
    problem = block_problem(block_of("gpt-175b"), mesh, sequences=4, seq_len=2048)
    found = solve(replace(problem, micro_batches=16))
    assert {loops[0] for loops in found.loops.values()} == {"batch"}
    for operator in ("qkv", "attention", "mlp_up", "mlp_down"):
        assert found.loops[operator][1] == MEGATRON[operator]


def test_memory_takes_the_weights_apart() -> None:
    """Where room for a whole layer's state is missing, it is split, and slower."""
    roomy = block_problem(
        block_of("gpt-13b"), TP, sequences=8, micro_batches=64, memory_bytes=1e12
    )
    free = solve(roomy)
    assert set(free.loops.values()) == {("batch",)}
    tight = solve(replace(roomy, memory_bytes=free.peak_bytes / 2))
    assert tight.value > free.value
    assert tight.peak_bytes <= free.peak_bytes / 2
    assert tight.status is Status.OPTIMAL


def test_what_fits_nowhere_is_said() -> None:
    problem = block_problem(mlp(), TP, memory_bytes=1e6)
    with pytest.raises(Infeasible, match="no sharding fits in 977 KiB") as error:
        solve(problem)
    assert error.value.constraint == "memory"


def test_the_program_and_elimination_agree() -> None:
    posed = pose(block_problem(block_of("llama3-8b"), mesh_axes(dp=2, tp=2)))
    assert solve(posed.problem).value == pytest.approx(eliminate(posed.graph).value)


def test_what_is_described_costs_what_was_chosen() -> None:
    """Traffic, gathered from the description, adds up to the objective."""
    problem = block_problem(block_of("llama3-8b"), TP, micro_batches=4)
    measure = SentBytes()
    posed = pose(problem, measure)
    found = described(posed, solve_choice(posed.graph))
    sent = sum(
        sum(map(measure.exchange, one.forward + one.backward))
        + sum(map(measure.exchange, one.step)) / problem.micro_batches
        for one in found.traffic.values()
    )
    assert sent == pytest.approx(found.value)


@pytest.mark.parametrize("block", ["embedding", "final_norm", "head"])
def test_the_ends_are_sharded_too(block: str) -> None:
    found = solve(block_problem(block_of("gpt-13b", block), TP))
    assert found.status is Status.OPTIMAL


def test_a_shared_weight_lies_in_one_way() -> None:
    """Logits of one more token predicted use the head's own weight (alias pairs)."""
    spec = model("gpt-1.3b").spec
    assert isinstance(spec, DecoderSpec)
    head = decoder_graph(replace(spec, multi_token_heads=1)).block("head")
    problem = block_problem(head, mesh_axes(tp=4))
    posed = pose(problem)
    assert posed.graph.apart
    found = solve(problem)
    weights = {
        one.parameters["weight"].placed
        for one in found.shardings
        if one.module.endswith("logits")
    }
    assert weights == {("vocab",)}
    split = next(
        one
        for one in posed.graph.apart
        if posed.options["logits"][one.first[1]].choice.loops == ("vocab",)
    )
    options = dict.fromkeys(posed.graph.nodes, 0) | dict([split.first, split.second])
    assert posed.graph.breaks(options)


def test_latent_attention_is_sharded() -> None:
    found = solve(block_problem(block_of("deepseek-v2"), TP))
    assert found.loops["attention"] == ("heads",)


def test_one_device_sends_nothing() -> None:
    found = solve(block_problem(block_of("gpt-125m"), mesh_axes(tp=1)))
    for way in ("forward", "backward", "step"):
        assert kinds(found, way) == {}


def test_primes_that_divide_nothing_are_left_whole() -> None:
    found = solve(block_problem(mlp(), mesh_axes(tp=7), seq_len=1024))
    assert set(found.loops.values()) == {("whole",)}


def test_routed_experts_are_refused() -> None:
    with pytest.raises(Unsupported, match="--ep and --etp"):
        block_problem(block_of("mixtral-8x7b", "expert-layer"), TP)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"axes": ()}, "at least one axis"),
        ({"sequences": 0}, "at least 1, got 0"),
        ({"splits": frozenset({"width"})}, "width cannot be split"),
    ],
)
def test_wrong_questions_are_refused(settings: dict[str, Any], says: str) -> None:
    problem = block_problem(mlp())
    with pytest.raises(InvalidSpec, match=says):
        replace(problem, **settings)


# Mesh-TensorFlow's two-layer network (Shazeer et al., NeurIPS 2018, section 3.1)

RANKS = 16
FACTORS = (1, 2, 4, 8, 16)


def network(rows: int, columns: int, sequences: int) -> BlockProblem:
    """A two-layer network, its batch over *rows* and its width over *columns*."""
    axes = (
        MeshAxis(name="rows", size=rows, stride=columns),
        MeshAxis(name="columns", size=columns),
    )
    splits = frozenset({"batch", "ffn"})
    return block_problem(mlp(), axes, sequences=sequences, seq_len=256, splits=splits)


def sent_bytes(problem: BlockProblem, rows: int, columns: int) -> float:
    """By the einsum rule: weights' gradients are summed over rows, the output and the
    input's gradient over columns; of N bytes an all-reduce sends 2 (k − 1)/k."""
    hidden, ffn = (problem.block.extents[name] for name in ("hidden", "ffn"))
    weights = (2 * hidden * ffn + ffn) / columns + hidden  # with biases
    stream = problem.sequences * problem.seq_len * hidden / rows
    over = {k: 2 * (1 - 1 / k) for k in (rows, columns)}
    return over[rows] * weights * 4 + 2 * over[columns] * stream * 2


def placed(problem: BlockProblem) -> float:
    """What the graph says for batch on rows and width on columns."""
    posed = pose(problem, SentBytes())
    loops = tuple(
        word if axis.size > 1 else "whole"
        for word, axis in zip(("batch", "ffn"), problem.axes, strict=True)
    )
    wanted = {}
    for name, mine in posed.options.items():
        whole = (loops[0], "whole") if name == "mlp_down" else loops
        wanted[name] = next(
            i
            for i, one in enumerate(mine)
            if one.choice.loops == loops and one.choice.handed == whole
        )
    assert problem.block.entry is not None
    places = entry_choices(problem.block.entry, problem)
    wanted[ENTRY] = places.index((loops[0], "whole"))
    return posed.graph.value(wanted)


@pytest.mark.parametrize("rows", FACTORS)
def test_communication_is_the_einsum_rules(rows: int) -> None:
    columns = RANKS // rows
    problem = network(rows, columns, sequences=16)
    assert placed(problem) == pytest.approx(sent_bytes(problem, rows, columns))


@pytest.mark.row(
    "E12",
    "ranks for rows, of 16, with 16, 160, 65,536 sequences",
    expected="1; 4; 16",
    evidence="computed",
)
@pytest.mark.parametrize(("sequences", "best"), [(16, 1), (160, 4), (65536, 16)])
def test_two_dimensions_send_least_in_between(
    sequences: int, best: int, obtained: Obtained
) -> None:
    """Few rows: width over all ranks. Many: batch. As much of one as of the other:
    both, which no layout of one dimension reaches."""
    sent = {rows: placed(network(rows, RANKS // rows, sequences)) for rows in FACTORS}
    obtained(min(sent, key=sent.__getitem__))
    assert min(sent, key=sent.__getitem__) == best
