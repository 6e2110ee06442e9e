"""`costmodel.machine.collectives`: seconds that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from costmodel.machine import collectives
from costmodel.machine.collectives import (
    SLICE_BYTES,
    Collective,
    LinkRate,
    LinkRates,
    collective_s,
    link_rates,
    send_s,
    unknown_kinds,
)
from costmodel.machine.rates import Residual
from profiles.errors import InvalidFile, UnknownName
from profiles.hardware.catalog import cluster, cluster_names
from profiles.hardware.clusters import Island, Level
from tests.support.toy import figure, toy_device

GB = 1e9
IDEAL = LinkRate(
    name="ideal",
    fraction=1.0,
    send_fraction=0.5,
    exchange_fraction=1.0,
    half_bytes=0.0,
    launch_s=0.0,
    hop_s=0.0,
    training=0.5,
    source="unit test",
    training_source="unit test",
    residual=Residual(median=0.0, p90=0.0, points=0),
)
# Nodes of 8; 100 GB/s inside, 10 GB/s out of the node for each rank.
RATES = LinkRates(
    inner=IDEAL,
    outer=IDEAL,
    inner_bytes_per_s=100 * GB,
    outer_bytes_per_s=10 * GB,
    domain=8,
)
KINDS = list(Collective)


def alone(
    kind: str, size: float, ranks: float, r: float, rates: LinkRates = RATES
) -> float:
    return float(
        collective_s(kind, size, ranks=ranks, ranks_per_node=r, rates=rates, alone=True)
    )


def test_a_ring_inside_a_node() -> None:
    # 2 (k - 1)/k N: 8 ranks send 1.75 bytes for each byte of the tensor.
    assert alone("all_reduce", 8 * GB, 8, 8) == pytest.approx(0.14)
    assert alone("all_gather", 8 * GB, 8, 8) == pytest.approx(0.07)
    assert alone("reduce_scatter", 8 * GB, 8, 8) == pytest.approx(0.07)


def test_a_ring_over_nodes_has_a_share_of_the_nics_for_each_member() -> None:
    # 16 ranks on 2 nodes: 8 shares of 10 GB/s carry 15/16 of the tensor.
    assert alone("all_gather", 16 * GB, 16, 8) == pytest.approx(15 / 80)
    assert alone("all_gather", 16 * GB, 2, 1) == pytest.approx(8 / 10)


def test_the_fast_link_caps_the_shares() -> None:
    slow = replace(RATES, inner_bytes_per_s=40 * GB)
    assert alone("all_gather", 16 * GB, 16, 8, slow) == pytest.approx(15 / 40)
    assert alone("all_gather", 16 * GB, 2, 1, slow) == pytest.approx(8 / 10), (
        "no near peer"
    )


def test_an_exchange_splits_near_and_far() -> None:
    # Of 16 GB, 7/16 stay in the node (100 GB/s) and 8/16 leave it (10 GB/s).
    assert alone("all_to_all", 16 * GB, 16, 8) == pytest.approx(0.07 + 0.8)
    assert alone("all_to_all", 8 * GB, 8, 8) == pytest.approx(0.07)


def test_a_broadcast_streams_the_whole_tensor() -> None:
    assert alone("broadcast", 8 * GB, 8, 8) == pytest.approx(0.08)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_is_free(kind: str) -> None:
    assert alone(kind, 8 * GB, 1, 1) == 0


def test_latency_is_hops_inside_and_a_tree_across() -> None:
    inner = replace(IDEAL, launch_s=10.0, hop_s=1.0)
    outer = replace(IDEAL, launch_s=100.0, hop_s=20.0)
    late = replace(RATES, inner=inner, outer=outer)
    assert alone("all_gather", 0, 8, 8, late) == pytest.approx(10 + 7)
    assert alone("broadcast", 0, 64, 8, late) == pytest.approx(10 + 7 + 100 + 3 * 20)
    assert alone("broadcast", 0, 8, 1, late) == pytest.approx(100 + 3 * 20)
    assert alone("all_reduce", 0, 64, 8, late) == pytest.approx(2 * 177)


def test_what_gathers_goes_round_a_ring() -> None:
    """Seven further domains, in each of which seven links are passed."""
    inner = replace(IDEAL, hop_s=1.0, ring_hop_s=3.0)
    late = replace(RATES, inner=inner, outer=replace(IDEAL, ring_hop_s=20.0))
    ring = 7 * (20 + 7 * 3)
    for kind in ("all_gather", "reduce_scatter"):
        assert alone(kind, 0, 64, 8, late) == pytest.approx(7 + ring)
    assert alone("all_reduce", 0, 64, 8, late) == pytest.approx(2 * 7)
    assert alone("all_gather", 0, 8, 8, late) == pytest.approx(7)


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_each_message_goes_round_the_ring(pieces: int) -> None:
    late = replace(RATES, outer=replace(IDEAL, ring_hop_s=20.0))
    found = collective_s(
        "all_gather", 0, ranks=8, ranks_per_node=1, rates=late, pieces=pieces
    )
    assert float(found) == pytest.approx(pieces * 7 * 20)


def test_long_steps_of_a_ring_hide_its_hops() -> None:
    late = replace(RATES, outer=replace(IDEAL, ring_hop_s=1e-5))
    short, long = 8 * SLICE_BYTES, 8000 * SLICE_BYTES
    without = [alone("all_gather", size, 8, 1) for size in (short, long)]
    found = [alone("all_gather", size, 8, 1, late) for size in (short, long)]
    assert found[0] == pytest.approx(without[0] + 7e-5)
    assert found[1] == pytest.approx(without[1])


def test_half_of_the_bandwidth_at_half_bytes() -> None:
    filling = replace(RATES, inner=replace(IDEAL, half_bytes=1e6))
    wire = 1e6
    size = wire * 8 / 7
    assert alone("all_gather", size, 8, 8, filling) == pytest.approx(
        2 * alone("all_gather", size, 8, 8)
    )


def test_direct_links_only_reach_their_peers() -> None:
    mesh = replace(RATES, inner=replace(IDEAL, direct=1.0))
    # One of seven links between a pair; all seven among eight.
    assert alone("all_gather", 2 * GB, 2, 2, mesh) == pytest.approx(7 * 0.01)
    assert alone("all_gather", 8 * GB, 8, 8, mesh) == pytest.approx(0.07)


def test_training_is_slower_than_alone() -> None:
    busy = collective_s("all_gather", 8 * GB, ranks=8, ranks_per_node=8, rates=RATES)
    assert float(busy) == pytest.approx(2 * alone("all_gather", 8 * GB, 8, 8))


def test_few_that_speak_have_larger_shares() -> None:
    send = partial(send_s, GB, same_node=False, alone=True)
    assert send(rates=RATES, shares=4.0) == pytest.approx(1 / 20)
    pair = partial(collective_s, "all_reduce", GB, ranks=2, ranks_per_node=1)
    apart, together = (
        float(pair(rates=RATES, alone=True, shares=n)) for n in (2.0, 1.0)
    )
    assert apart == pytest.approx(together / 2)


def test_a_flow_has_its_own_limit() -> None:
    flows = replace(RATES, outer=replace(IDEAL, flow_bytes_per_s=10 * GB))
    send = partial(send_s, GB, same_node=False, alone=True)
    assert send(rates=flows, shares=8.0) == pytest.approx(1 / 5)
    slow = replace(RATES, outer=replace(IDEAL, flow_bytes_per_s=GB))
    assert send(rates=slow, shares=8.0) == send(rates=RATES), "less than a share"


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_who_sends_through_one_port_fills_it_together(devices: int) -> None:
    rate = replace(IDEAL, half_bytes=GB)
    port = replace(
        RATES,
        outer=rate,
        outer_bytes_per_s=10 * GB / devices,
        devices_per_port=float(devices),
    )
    alone = send_s(GB, same_node=False, rates=replace(RATES, outer=rate), alone=True)
    each = send_s(GB / devices, same_node=False, rates=port, alone=True)
    most = 1.0 if devices == 1 else 2.0  # two flows of half the port's speed fill it
    assert each == pytest.approx(float(alone) / most)
    few = send_s(GB, same_node=False, rates=port, alone=True, shares=float(devices))
    assert few == pytest.approx(float(alone)), "one that sends while others do not"


def test_flows_with_limits_do_not_help_each_other() -> None:
    limited = replace(IDEAL, flow_bytes_per_s=GB)
    crowd = replace(RATES, outer=limited, devices_per_port=8.0)
    own = replace(RATES, outer=limited)
    send = partial(send_s, GB, same_node=False, alone=True)
    assert send(rates=crowd) == send(rates=own)


def test_sends_use_one_share() -> None:
    found = send_s(GB, same_node=[True, False], rates=RATES, alone=True)
    assert found == pytest.approx([1 / 50, 1 / 5])
    assert send_s(GB, same_node=True, rates=RATES) == pytest.approx(1 / 25)


def test_arrays_broadcast_like_scalars() -> None:
    sizes, ranks = np.array([[1e6], [1e9]]), np.array([2.0, 8.0, 64.0])
    found = collective_s(
        "all_to_all",
        sizes,
        ranks=ranks,
        ranks_per_node=np.minimum(ranks, 8),
        rates=RATES,
        alone=True,
    )
    each = [[alone("all_to_all", s, k, min(k, 8)) for k in ranks] for s in sizes[:, 0]]
    assert found == pytest.approx(np.array(each))


def test_unknown_collectives_are_refused() -> None:
    with pytest.raises(UnknownName, match="all_reduce"):
        alone("all_reduced", 1, 2, 2)


def island(inner: str, outer: str, architecture: str = "ampere") -> Island:
    device = toy_device(architecture=architecture)
    near = Level(
        name="node",
        kind=inner,
        devices=8,
        bandwidth=figure(300, "GB/s"),
        latency=figure(3, "us"),
    )
    far = Level(
        name="fabric",
        kind=outer,
        devices=None,
        bandwidth=figure(200, "Gbit/s"),
        latency=figure(5, "us"),
    )
    return Island(device=device, devices_per_node=8, nodes=None, levels=(near, far))


@pytest.mark.parametrize(
    ("inner", "outer", "architecture", "names"),
    [
        ("nvswitch", "infiniband", "ampere", ("nvlink3", "infiniband")),
        ("NVSwitch", "RoCE", "Hopper", ("nvlink4", "infiniband")),
        ("nvlink", "efa", "volta", ("nvlink2", "efa")),
        ("nvswitch", "omni-path", "volta", ("nvlink3", "omni-path")),
        ("nvswitch", "ethernet", "blackwell ultra", ("nvlink5", "ethernet")),
        ("nvlink", "carrier pigeon", "rubin", ("nvlink4-mesh", "ethernet")),
        ("nvlink", "ethernet", "ampere", ("nvlink3-mesh", "ethernet")),
        ("xgmi", "slingshot", "cdna3", ("xgmi", "slingshot")),
        ("pcie", "ethernet", "ada", ("pcie", "ethernet")),
    ],
)
def test_links_have_the_rates_of_their_kind(
    inner: str, outer: str, architecture: str, names: tuple[str, str]
) -> None:
    found = link_rates(island(inner, outer, architecture))
    assert (found.inner.name, found.outer.name) == names
    assert (found.inner_bytes_per_s, found.outer_bytes_per_s) == (300 * GB, 25 * GB)
    assert found.domain == 8


def test_a_level_slower_than_the_fit_keeps_its_latency() -> None:
    here = island("nvswitch", "infiniband")
    near, far = here.levels
    wide = replace(far, latency=figure(0.01, "s"))
    found = link_rates(replace(here, levels=(near, wide)))
    assert found.outer.launch_s == found.outer.hop_s == pytest.approx(0.01)
    assert found.inner == link_rates(here).inner
    assert link_rates(here).outer.hop_s > far.latency_s, "the fit is slower"


def test_a_kind_of_link_without_rates_is_told() -> None:
    known = island("nvlink", "ethernet")
    typed = island("nvlnik", "Ethernet")
    assert list(unknown_kinds(known.levels)) == []
    (said,) = unknown_kinds(typed.levels)
    assert "level 'node'" in said
    assert "'nvlnik'" in said
    assert "priced like ethernet; known: " in said


def test_the_catalogue_has_rates_for_its_links() -> None:
    for name in cluster_names():
        assert list(unknown_kinds(cluster(name).levels)) == []


def test_every_link_is_sound() -> None:
    for link in collectives.link_file().rates.values():
        assert 0 < link.fraction <= 1
        assert 0 < link.training <= 1
        assert 0 < link.send_fraction <= 1
        assert 0 < link.exchange_fraction <= 1
        assert link.source
        assert link.training_source


def test_a_damaged_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "RATES", tmp_path)
    (tmp_path / "links.json").write_text("{}")
    with pytest.raises(InvalidFile, match=r"links\.json"):
        collectives.link_file.__wrapped__()
