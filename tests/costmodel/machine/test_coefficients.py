"""Coefficients: names, owners, their file, and what they may not be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.machine.assembly import machine
from costmodel.machine.coefficients import (
    Coefficient,
    Coefficients,
    device_owners,
    load_coefficients,
)
from costmodel.machine.kernels import matmul_s
from profiles.errors import UnknownName
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import Format

MOST = 60  # that may be fitted in all


def one(name: str, value: float) -> Coefficient:
    return Coefficient(
        name=name,
        meaning="",
        prior=1.0,
        spread=0.1,
        source="",
        value=value,
        error=0.1,
    )


def test_the_narrowest_owner_decides() -> None:
    found = Coefficients(
        entries=(one("product/hopper", 1.1), one("product/h100", 1.2), one("gap", 3.0))
    )
    assert found.of("product", "h100", "hopper") == 1.2
    assert found.of("product", "h200", "hopper") == 1.1
    assert found.of("product", "volta") == 1.0
    assert found.of("gap", "anybody") == 3.0


def test_there_are_few_and_each_says_what_it_is() -> None:
    entries = load_coefficients().entries
    assert 0 < len(entries) <= MOST
    assert len({item.name for item in entries}) == len(entries)
    for item in entries:
        assert item.meaning, item.name
        assert item.source, item.name
        assert min(item.value, item.prior) > 0, item.name
        # A fit never knows less than its prior.
        assert 0 < item.error <= item.spread * 1.001, item.name


def test_none_belongs_to_a_model_or_a_source() -> None:
    models = ("gpt", "llama", "mpt", "bloom", "opt-", "mixtral", "deepseek-v")
    for item in load_coefficients().entries:
        assert not any(model in item.name for model in models), item.name


def test_changing_an_unknown_one_names_those_there_are() -> None:
    with pytest.raises(UnknownName, match="product/hoper"):
        load_coefficients().changed({"product/hoper": 1.0})


def test_products_are_slowed_in_every_format_of_tensor_cores() -> None:
    """Also in those whose rate is that of the format that was measured."""
    where = cluster("dgx-a100-80gb")
    slow = machine(where, fitted=Coefficients(entries=(one("product/ampere", 1.5),)))
    even = machine(where, fitted=Coefficients(entries=()))
    for number in (Format.BF16, Format.FP16, Format.TF32):
        alone = even.rates.matmul.sustained_of(number)
        assert slow.rates.matmul.sustained_of(number) == pytest.approx(alone / 1.5)


def test_no_link_is_faster_in_training_than_alone() -> None:
    where = cluster("dgx-a100-80gb")
    quick = machine(where, fitted=Coefficients(entries=(one("link/nvlink3", 0.01),)))
    assert quick.links.inner.training <= 1.0


@pytest.mark.parametrize("name", ["dgx-a100-80gb", "dgx-h100", "dgx-b200"])
def test_slower_products_make_slower_rates(name: str) -> None:
    where = cluster(name)
    plain = machine(where, fitted=Coefficients(entries=()))
    owner = device_owners(where.device)[-1]
    slow = machine(where, fitted=Coefficients(entries=(one(f"product/{owner}", 2.0),)))
    number = next(iter(plain.rates.matmul.sustained))
    ratio = plain.rates.matmul.sustained[number] / slow.rates.matmul.sustained[number]
    assert ratio == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["dgx-a100-80gb", "dgx-h100"])
def test_a_partly_filled_wave_costs_between_its_share_and_a_whole_one(
    name: str,
) -> None:
    """109 tiles on 108 multiprocessors: from 1.01 waves to 2, whatever was fitted."""
    where = cluster(name)
    tiles = where.device.multiprocessors + 1.0
    seconds = []
    for value in (1e-6, 0.5, 1.0, 100.0):
        rates = machine(where, fitted=Coefficients(entries=(one("wave", value),))).rates
        rates = replace(rates, matmul=replace(rates.matmul, overhead_s=0.0))
        seconds.append(
            float(
                matmul_s(
                    *(256 * tiles, 128, 65536),
                    device=where.device,
                    rates=rates,
                    number=Format.BF16,
                )
            )
        )
    assert seconds == sorted(seconds)
    assert seconds[-1] < 2.01 * seconds[0]
    assert seconds[0] < seconds[1] < seconds[2]


def test_hosts_of_newer_cards_issue_faster() -> None:
    """What frameworks take to issue an operator was measured on an A100's hosts."""
    quick = Coefficients(entries=(one("processor", 0.5),))
    for name, share in (("dgx-a100-80gb", 1.0), ("dgx-h100", 0.5), ("dgx-b200", 0.5)):
        where = cluster(name)
        found, plain = (
            machine(where, fitted=fitted).framework.host
            for fitted in (quick, Coefficients(entries=()))
        )
        assert found.forward_us == pytest.approx(share * plain.forward_us)
        assert found.backward_us == pytest.approx(share * plain.backward_us)


def test_kernels_of_attention_share_a_card_unless_one_has_its_own() -> None:
    where = cluster("dgx-h100")
    slow = Coefficients(
        entries=(one("attention/hopper", 1.4), one("attention/flash-1/hopper", 2.0))
    )
    found, plain = (
        machine(where, fitted=fitted).rates.attention
        for fitted in (slow, Coefficients(entries=()))
    )
    for kernel, times in (("flash-1", 2.0), ("flash-2", 1.4), ("flash-3", 1.4)):
        assert found[kernel].forward == pytest.approx(plain[kernel].forward / times)


def test_a_machine_can_be_fitted_anew() -> None:
    first = machine(cluster("dgx-a100-80gb"))
    doubled = load_coefficients().changed(
        {
            "link/infiniband/ampere": 2
            * load_coefficients().values["link/infiniband/ampere"]
        }
    )
    again = first.fitted_as(doubled)
    assert again.links.outer.training < 0.6 * first.links.outer.training
    assert again.framework == first.framework
    assert again.fitted_as(load_coefficients()) == first
