"""Unlike islands: stages inside them, pipelines across, within the bound."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from costmodel.layout.layout import Ranges, parse_layers
from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.options.pins import Pins
from costmodel.simulation.estimator import estimate
from costmodel.stages.islands import places_of
from costmodel.stages.pipeline_p2p import layout_tied_sync
from planner.analysis.infeasibility import diagnose
from planner.analysis.largest import fits_somehow
from planner.api import sharded, solve
from planner.heterogeneous.candidate_set import menus
from planner.heterogeneous.candidates import STEP
from planner.heterogeneous.homogenized import (
    as_if_alike,
    as_if_near,
    by_other_schedules,
    over_islands,
)
from planner.heterogeneous.search import any_fits
from planner.problem.problem import Problem, Staged
from planner.problem.regions import orders
from planner.problem.solution import EXACT, Solution
from planner.report.tables import places_table
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from planner.search.verify import check
from profiles.errors import Unsupported
from profiles.hardware.catalog import cluster
from tests.support.islands import asked, joined

Ask = Callable[..., tuple[int, str, str]]
LIMITS = Limits(runners_up=3)
KINDS = ("dgx-a100-80gb", "p3.16xlarge", "dgx-h100")


@pytest.mark.parametrize("batch", [7, 14])
def test_no_more_is_simulated_than_looked_at(batch: int) -> None:
    """Partitions whose cuts were moved count, too."""
    posed = asked(joined("dgx-h100", "dgx-a100-80gb"), batch=batch)
    counters = solve(posed, BranchAndBound(), LIMITS).counters
    assert 0 < counters.simulated <= counters.considered
    assert counters.considered == counters.simulated + counters.pruned


def test_stages_lie_inside_islands_and_the_faster_one_has_more_layers() -> None:
    """Yang et al., ICPP 2024: layers in proportion to the speed of the island."""
    posed = asked(joined("p3.16xlarge", "dgx-a100-80gb"), "gpt-1.3b", 64)
    posed = replace(posed, pins=Pins(micro_batches=8, cp=1))
    found = solve(posed, BranchAndBound(), LIMITS)
    check(posed, found)
    assert isinstance(found.best, Staged)
    assert found.space == "any-stage"
    layers = [0, 0]
    for stage in found.best.estimate.layout.stages:
        (span,) = stage.mesh.ranks.spans
        island = span[0] // 8
        assert span[1] // 8 == island
        layers[island] += stage.body
    assert layers[1] > 2 * layers[0] > 0
    assert 0 < found.gap < 0.1
    first, *middle, last = found.best.estimate.layout.stages
    assert min(first.mesh.tp, last.mesh.tp) > 1, "slices of the tied table are summed"
    assert any(stage.mesh.tp == 1 for stage in middle)
    # Each block on the devices and links of its island.
    proven = sharded(posed, found, LIMITS)
    assert proven.operators is not None
    assert {one.tp for one in proven.operators.proofs} >= {first.mesh.tp}
    assert proven.value <= found.value


def test_each_stage_says_which_layers_run_on_which_devices() -> None:
    where = joined("dgx-a100-80gb", "dgx-h100")
    posed = asked(where)
    layout = spell_out(Uniform(tp=8, pp=2), posed.job.graph, 8)
    places = places_of(layout, where)
    assert [asdict(one) for one in places] == [
        {
            "stage": 0,
            "layers": "embedding,0-1",
            "ranks": "0-7",
            "devices": ("A100-SXM-80GB",),
        },
        {
            "stage": 1,
            "layers": "2-3,final_norm,head",
            "ranks": "8-15",
            "devices": ("H100-SXM-80GB",),
        },
    ]
    across = spell_out(Uniform(tp=8, dp=2), posed.job.graph, 8)
    (place,) = places_of(across, where)
    assert place.devices == ("A100-SXM-80GB", "H100-SXM-80GB")
    assert places_of(layout, cluster("dgx-h100")) == ()
    screen = Console(file=io.StringIO(), width=80)
    screen.print(places_table(places, layout))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "8 × A100-SXM-80GB" in shown
    assert "2-3, final_norm, head" in shown


@pytest.mark.slow
def test_a_plan_over_islands_says_so_too(asking: Ask, tmp_path: Path) -> None:
    """Every layer and every rank once, with the device of the rank's own island."""
    own = tmp_path / "joined.json"
    where = joined("dgx-a100-80gb", "dgx-h100")
    few = tuple(replace(island, devices_per_node=2) for island in where.islands)
    own.write_text(json.dumps(asdict(replace(where, islands=few))))
    question = ("--model", "gpt-tiny", "--gpus", "4", "--global-batch", "4")
    code, out, _ = asking(*question, "--cluster", str(own), "--json")
    assert code == 0
    names = ("A100-SXM-80GB", "H100-SXM-80GB")
    held: list[int] = []
    layers: list[str] = []
    for place in json.loads(out)["placement"]:
        ranks = list(Ranges.parse(place["ranks"]))
        assert set(place["devices"]) == {names[rank // 2] for rank in ranks}
        held += ranks
        layers += parse_layers(place["layers"])
    assert sorted(held) == list(range(4))
    assert layers == ["embedding", *map(str, range(4)), "final_norm", "head"]
    assert "placement" not in json.loads(asking(*question, "--json")[1])


@settings(max_examples=6, deadline=None)
@given(names=st.lists(st.sampled_from(KINDS), min_size=2, max_size=2), data=st.data())
def test_no_partition_is_simulated_below_its_menus_bound(
    names: list[str], data: st.DataObject
) -> None:
    """Of those whose ends cost what the menu says, or more; others have a menu of their
    own. Whatever ZeRO, and where the optimizer is away, and a middle stage's update may
    be longer than an end's."""
    model = data.draw(st.sampled_from(["gpt-tiny", "gpt-125m"]))
    away = data.draw(st.sampled_from([None, "cpu", "nvme"]))
    zero = data.draw(st.sampled_from([None, 0, 2, 3]))
    posed = replace(asked(joined(*names), model), pins=Pins(zero=zero))
    if away is not None:
        posed = replace(posed, offload=Offload(optimizer=True, tier=away))
    menu = data.draw(st.sampled_from(list(menus(posed))))
    found = menu.best()
    assert found
    for partition in found[:4]:
        layout = menu.layout(partition)
        run = estimate(posed.job, posed.machine.cluster, layout, on=posed.machine)
        assert layout.gpus == posed.gpus
        tied = layout_tied_sync(layout, posed.job, posed.machine)
        tied_s = float(tied.seconds.max())
        end_s = tied_s + posed.machine.step_s
        if end_s < menu.end_s * (1 - EXACT):
            continue
        assert run.step_time_s >= menu.lower_s * (1 - EXACT)
        bound_s, _ = menu.bound_s(2 * run.step_time_s)
        assert run.step_time_s >= bound_s * (1 - EXACT)


def test_a_middle_stages_update_is_beside_the_tied_gradients_sum() -> None:
    """Only the two ends sum that: where another updates for longer the bound was more
    than the simulation said."""
    posed = asked(joined("p3.16xlarge", "p3.16xlarge"), "gpt-1.3b", 8)
    menu = next(one for one in menus(posed) if one.micro_batches == 2)
    longer = 0
    for partition in menu.best()[:8]:
        layout = menu.layout(partition)
        run = estimate(posed.job, posed.machine.cluster, layout, on=posed.machine)
        assert menu.bound_s(2 * run.step_time_s)[0] <= run.step_time_s * (1 + EXACT)
        updates = [
            menu.options[part.option].least_s[STEP, part.first : part.last + 1].sum()
            for part in partition.parts
        ]
        longer += max(updates[1:-1], default=0.0) > max(updates[0], updates[-1])
    assert longer


def test_context_parallelism_is_the_same_in_every_stage() -> None:
    posed = asked(joined("dgx-a100-80gb", "dgx-h100"), batch=4)
    posed = replace(posed, pins=Pins(cp=2, pp=2, micro_batches=2))
    found = solve(posed, BranchAndBound(), LIMITS)
    assert found.best is not None
    assert {one.mesh.cp for one in found.best.estimate.layout.stages} == {2}


def test_islands_are_gone_through_in_every_order_that_differs() -> None:
    unlike = asked(joined("p3.16xlarge", "dgx-a100-80gb"))
    ways = [[place.first_rank for place in way] for way in orders(unlike)]
    assert ways == [[0, 8], [8, 0]]
    (alike,) = orders(asked(joined("dgx-a100-80gb", "dgx-a100-80gb")))
    assert [place.span for place in alike] == [(0, 8), (8, 16)]
    (part,) = orders(replace(unlike, gpus=4))
    assert [place.devices for place in part] == [4]


def test_each_rank_is_held_to_its_own_device() -> None:
    """What fits on the first island's devices need not on the second's, where these
    hold the larger share of what they have."""
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), "gpt-1.3b", 16)
    posed = replace(posed, pins=Pins(micro_batches=8))
    layouts = (menu.layout(one) for menu in menus(posed) for one in menu.best())
    runs = (
        estimate(posed.job, posed.machine.cluster, layout, on=posed.machine)
        for layout in layouts
    )
    first = posed.machine.device.capacity_bytes
    fullest, run = next(
        (share, run)
        for run in runs
        for capacity, memory in zip(run.capacities_bytes, run.memory, strict=True)
        if capacity < first
        and (share := float(memory.needed) / capacity) * 0.98
        > run.peak_needed_bytes / first
    )
    candidate = Staged(choice=Uniform(precision="fp16"), estimate=run)
    squeezed = replace(posed, memory_limit_bytes=0.99 * fullest * first)
    assert replace(posed, memory_limit_bytes=1.01 * fullest * first).fits(candidate)
    assert run.peak_needed_bytes < squeezed.memory_limit_bytes
    assert not squeezed.fits(candidate)


def test_whether_anything_fits_is_what_a_plan_says_too() -> None:
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), batch=4)
    assert fits_somehow(posed)
    pinned = replace(posed, pins=Pins(pp=2, micro_batches=4))
    found = solve(pinned, BranchAndBound(), LIMITS)
    assert found.best is not None
    assert found.best.estimate.layout.pp == 2
    large = asked(joined("dgx-a100-80gb", "p3.16xlarge"), "gpt-175b", 16)
    assert not fits_somehow(replace(large, pins=Pins(micro_batches=16)))


def test_there_is_an_answer_whenever_time_ends() -> None:
    posed = asked(joined("p3.16xlarge", "dgx-a100-80gb"), "gpt-125m")
    whole = solve(posed, BranchAndBound(), LIMITS)
    for limit_s in (0.0, 0.3):
        found = solve(posed, BranchAndBound(), replace(LIMITS, time_limit_s=limit_s))
        check(posed, found)
        assert found.best is not None
        assert not found.complete
        assert 0 < found.lower < found.value
        assert found.lower <= whole.value <= found.value


def test_many_micro_batches_are_nearly_proven() -> None:
    posed = asked(joined("p3.16xlarge", "dgx-a100-80gb"), "gpt-1.3b", 1536)
    posed = replace(posed, pins=Pins(micro_batches=128, cp=1))
    found = solve(posed, BranchAndBound(), LIMITS)
    assert found.best is not None
    assert found.gap < 0.1


@pytest.fixture(scope="module")
def woven() -> tuple[Problem, Solution]:
    """Two like islands, and the best over them by any schedule."""
    two = asked(joined("dgx-a100-80gb", "dgx-a100-80gb"), "gpt-1.3b", 16)
    two = replace(two, pins=Pins(cp=1))
    return two, solve(two, BranchAndBound(), LIMITS)


def test_alike_stages_are_tried_too(woven: tuple[Problem, Solution]) -> None:
    """Over two like islands a woven pipeline may be faster than any that runs 1F1B; of
    those what is chosen is near the best alone, as few of them are simulated."""
    two, found = woven
    pins = Pins(pp=2, cp=1, micro_batch=1)  # the best has them, and others take long
    alike = over_islands(replace(two, pins=pins), BranchAndBound(), LIMITS)
    check(two, found)
    assert alike.best is not None
    assert alike.value == pytest.approx(found.value, rel=0.01)
    assert found.value <= alike.value * (1 + 2e-4)
    unlike = asked(joined("dgx-a100-80gb", "dgx-h100"))
    slow = as_if_alike(unlike)
    assert slow.machine.device.name == "A100-SXM-80GB"


def test_a_v_with_split_backwards_is_tried_too(
    woven: tuple[Problem, Solution],
) -> None:
    """It fills with W what it waits for over a slow link, and its ends are together."""
    two, found = woven
    tried = by_other_schedules(two, BranchAndBound(), LIMITS)
    assert {one.estimate.layout.schedule for one in tried} == {"zb-v"}
    assert {one.estimate.layout.pp for one in tried} == {2, 4}
    assert found.value <= min(map(two.value, tried))
    near = as_if_near(two)
    assert near.machine.links == machine(cluster("dgx-a100-80gb")).links
    pinned = replace(two, pins=Pins(schedule="1f1b", cp=1))
    kept = solve(pinned, BranchAndBound(), LIMITS).best
    assert kept is not None
    assert kept.estimate.layout.schedule == "1f1b"


def test_a_stage_on_unlike_devices_keeps_its_preset() -> None:
    """Everyone waits for the slowest, and no one device's price is a proof of both."""
    posed = asked(joined("dgx-a100-80gb", "dgx-h100"), "gpt-1.3b", 16)
    posed = replace(posed, pins=Pins(tp=4, pp=1))
    alike = over_islands(posed, BranchAndBound(), LIMITS)
    assert alike.best is not None
    (stage,) = alike.best.estimate.layout.stages
    assert stage.mesh.ranks.spans == ((0, 15),)
    found = sharded(posed, replace(alike, only_unlike=True), LIMITS)
    assert found.operators is None
    assert found.value == alike.value


def test_what_helps_over_islands_is_named_and_helps() -> None:
    """Nodes of V100s are too small for the whole batch at once, not for the model."""
    where = joined("p3.16xlarge", "dgx-v100-16gb")
    pins = Pins(micro_batches=1, recompute="none")
    posed = replace(asked(where, "gpt-6.7b", 64), pins=pins)
    assert any_fits(posed) is None
    said = diagnose(posed)
    first = said.changes[0]
    assert said.nearest is not None
    assert said.nearest.startswith("leave --micro-batches out: tp ")
    assert first["change"] == "leave --micro-batches out"
    found = any_fits(replace(posed, pins=replace(pins, micro_batches=None)))
    assert found is not None


def test_nothing_fits_is_said() -> None:
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), "gpt-175b", 16)
    posed = replace(posed, pins=Pins(micro_batches=16, cp=1))
    found = solve(posed, BranchAndBound(), LIMITS)
    assert found.best is None
    assert diagnose(posed).constraint.startswith("memory: no stages of gpt-175b")
    with pytest.raises(Unsupported, match="execute"):
        solve(replace(posed, executable=True), BranchAndBound(), LIMITS)
