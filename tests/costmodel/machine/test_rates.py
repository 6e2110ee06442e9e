"""`costmodel.machine.rates`: whose fit a device gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.machine import rates
from costmodel.machine.rates import RATES, load_rates, rates_of
from profiles.errors import InvalidFile, Unmeasured
from profiles.hardware.clusters import Device
from profiles.hardware.precisions import Format
from tests.support.toy import toy_device


def device(name: str, architecture: str = "none", **fields: object) -> Device:
    return toy_device(name=name, architecture=architecture, **fields)


@pytest.mark.parametrize(
    "path", sorted(RATES.glob("*.json")), ids=lambda path: path.stem
)
def test_every_file_is_sound(path: Path) -> None:
    if path.stem == "links":
        return
    found = load_rates(path.stem)
    assert found.device == path.stem
    shares = [found.matmul.default, *found.matmul.sustained.values()]
    shares += [found.matmul.bandwidth, found.traffic.fraction]
    assert all(0 < share <= 1 for share in shares)
    assert {"flash-1", "fused-softmax", "materialised"} <= set(found.attention)
    assert found.matmul.source
    assert found.traffic.source
    assert found.launch_source
    for rate in found.attention.values():
        assert rate.source
        assert rate.residual.p90 >= rate.residual.median > 0
        assert rate.writes_scores != (rate.forward > 0)


def test_a_device_has_its_own_rates_by_name_or_alias() -> None:
    assert rates_of(device("A100-PCIe-80GB")).kin is None
    alias = rates_of(device("Our GPU", aliases=("a100-pcie-80gb",)))
    assert (alias.device, alias.kin) == ("Our GPU", None)


def test_a_stranger_borrows_from_its_kin_and_says_so() -> None:
    found = rates_of(device("a100-40gb-lookalike", "ampere", kin="v100-sxm-32gb"))
    assert (found.device, found.kin) == ("a100-40gb-lookalike", "v100-sxm-32gb")
    assert found.matmul == load_rates("v100-sxm-32gb").matmul


def test_without_kin_the_architecture_decides_then_generic() -> None:
    assert rates_of(device("a30", "ampere")).kin == "a100-sxm-80gb"
    stranger = rates_of(device("abacus"))
    assert stranger.kin == "generic"
    assert stranger.matmul.residual.p90 >= 0.5, "nothing is known of it"


def test_an_absent_format_has_the_default_share() -> None:
    fit = load_rates("a100-pcie-80gb").matmul
    assert fit.sustained_of(Format.TF32) == fit.default
    assert fit.sustained_of(Format.BF16) == fit.sustained["bf16"]


def test_missing_and_damaged_files_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "RATES", tmp_path)
    with pytest.raises(Unmeasured, match="abacus"):
        rates_of(device("abacus"))
    (tmp_path / "abacus.json").write_text('{"device": "abacus"}')
    with pytest.raises(InvalidFile, match=r"abacus\.json does not hold rates"):
        rates_of(device("abacus"))
