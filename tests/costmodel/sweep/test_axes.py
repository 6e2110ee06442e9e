"""What a sweep goes over: every option, and the cluster's devices and links."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.options.pins import Pins
from costmodel.sweep.axes import AXES, parse_axis, point_words, points
from costmodel.sweep.clusters import CLUSTER_AXES, changed, parse_figure
from profiles.commandline.options import JobOptions
from profiles.errors import Contradiction, InvalidSpec, MeshwrightError, UnknownName
from profiles.hardware.catalog import cluster
from profiles.units import GB


def test_every_option_of_the_question_and_the_layout_is_an_axis() -> None:
    names = {one.name for into in (JobOptions, Pins) for one in fields(into)}
    known = {name.replace("-", "_") for name in AXES}
    assert known == names - {"profile"} | set(CLUSTER_AXES)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("tp=1,2", (1, 2)),
        ("zero_group=8", (8,)),
        ("sequence-parallel=on,off", (True, False)),
        ("imbalance=1,2.5", (1.0, 2.5)),
        ("recompute=none,full", ("none", "full")),
        ("recompute=qkv,mlp_up;none", ("qkv,mlp_up", "none")),
        ("stage-layers=8,9,9,6;4x8", None),
        ("device=h100-sxm,b200-sxm", ("H100-SXM-80GB", "B200-SXM-180GB")),
        ("cluster=dgx-h100", ("dgx-h100",)),
        ("inter-node-bandwidth=12.5,400Gbit/s", (12.5, "400Gbit/s")),
        ("model=gpt-13b,llama3-8b", ("gpt-13b", "llama3-8b")),
    ],
)
def test_values_are_read_as_their_option_is(
    text: str, values: tuple[Any, ...] | None
) -> None:
    _, found = parse_axis(text)
    if values is not None:
        assert found == values
    assert len(found) == text.count(";") + 1 if ";" in text else found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp", "AXIS=V1,V2"),
        ("tp=", "AXIS=V1,V2"),
        ("tp=0", "tp='0'"),
        ("tp=1,,2", "tp=''"),
        ("sequence-parallel=yes", "write on or off"),
        ("precision=fp7", "fp7"),
        ("inter-node-bandwidth=fast", "GB/s"),
        ("inter-node-bandwidth=0", "more than 0"),
        ("inter-node-bandwidth=5W", "GB/s, Gbit/s, TB/s"),
        ("inter-node-latency=5ms", "us"),
        ("profile=x", "sweep axis"),
    ],
)
def test_a_wrong_axis_says_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises((InvalidSpec, UnknownName), match=said):
        parse_axis(text)


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownName, match="h100"):
        parse_axis("device=h10")


@given(st.text(max_size=30))
def test_any_text_is_an_axis_or_is_refused(text: str) -> None:
    try:
        name, values = parse_axis(text)
    except MeshwrightError:
        return
    assert name.replace("_", "-") in AXES
    assert values


def test_points_are_all_combinations_once() -> None:
    found = list(points(["tp=1,2", "zero=0,1,3"]))
    assert len(found) == len({point_words(one) for one in found}) == 6
    with pytest.raises(Contradiction, match="twice"):
        list(points(["tp=1", "tp=2"]))
    with pytest.raises(InvalidSpec, match="combinations"):
        list(points([f"{a}={','.join('1' * 40)}" for a in ("tp", "pp", "cp")]))


def test_a_cluster_changes_by_what_a_point_says_and_nothing_else() -> None:
    where = cluster("dgx-h100")
    assert changed(where, {"tp": 4}) == where
    found = changed(
        where,
        {
            "inter_node_bandwidth": "200Gbit/s",
            "intra_node_bandwidth": 300.0,
            "inter_node_latency": "9",
            "device_price": 3.0,
        },
    ).island
    assert found.levels[-1].bytes_per_s == pytest.approx(25 * GB)
    assert found.levels[0].bytes_per_s == pytest.approx(300 * GB)
    assert found.levels[-1].latency_s == pytest.approx(9e-6)
    assert found.levels[0].latency == where.island.levels[0].latency
    assert found.device_dollars_per_h == 3.0
    other = changed(where, {"device": "B200-SXM-180GB"})
    assert other.device.name == "B200-SXM-180GB"
    assert other.island.levels == where.island.levels


def test_links_that_are_not_there_are_not_changed() -> None:
    whole = cluster("dgx-h100")
    island = replace(whole.island, levels=whole.island.levels[-1:])
    flat = replace(whole, islands=(island,))
    with pytest.raises(Contradiction, match="inside its nodes"):
        changed(flat, {"intra_node_bandwidth": 5.0})


@given(st.floats(0.001, 1e6), st.sampled_from(["GB/s", "Gbit/s", "TB/s"]))
def test_figures_are_read_with_their_unit(value: float, unit: str) -> None:
    found = parse_figure("inter_node_bandwidth", f"{value:.6g}{unit}")
    assert found.unit == unit
    assert found.value == pytest.approx(value, rel=1e-5)
