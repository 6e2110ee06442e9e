"""Errors, ranks, regret and verdicts, checked on tables small enough to work out."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.runs.comparison import NUMBERS, Compared
from costmodel.runs.pricing import Price, Priced
from costmodel.runs.table import MEASURED, NAMES, Run
from costmodel.runs.validate import (
    compare,
    compare_file,
    errors,
    grouped,
    kendall_tau,
    regret,
    summary,
)
from profiles.models.graph import ModelGraph
from profiles.units import GiB

GPT = {
    "model": "gpt-13b",
    "cluster": "dgx-a100-80gb",
    "gpus": "16",
    "tp": "8",
    "pp": "1",
    "global_batch": "32",
    "recompute": "full",
    "framework": "Megatron-LM",
}


COMPLETE = {
    **dict.fromkeys(("tp", "pp"), "1"),
    **dict.fromkeys(("gpus", "global_batch"), "8"),
    "model": "gpt-13b",
    "cluster": "dgx-a100-80gb",
}


def price(step_time_s: float, *, fits: bool = True, peak_gib: float = 10.0) -> Price:
    peak = {"device": 3.0, "reserved": 2.0, "allocated": 1.0}
    return Price(
        write=lambda: {"step_time_s": step_time_s},
        step_time_s=step_time_s,
        interval_s=(step_time_s * 0.9, step_time_s * 1.1),
        fits=fits,
        probability_fits=0.9 if fits else 0.1,
        peak_bytes={kind: peak_gib * share * GiB for kind, share in peak.items()},
        spread_bytes=0.1 * peak_gib * GiB,
    )


def compared(
    found: Price | None,
    measured: Mapping[str, Any],
    asked: Mapping[str, str] | None = None,
    kept: Mapping[str, str] | None = None,
) -> Compared:
    base = {**COMPLETE, "recompute": "none", **(asked or {})}
    cells = {name: text for name, text in base.items() if text}
    run = Run(row=0, asked=cells, measured={}, kept=kept or {})
    return Compared(
        run=run, priced=Priced(run=run, price=found), measured=measured, error=None
    )


def test_errors_and_bias() -> None:
    items = [
        compared(price(1.1), {"step_time_s": 1.0}),
        compared(price(0.7), {"step_time_s": 1.0}),
        compared(price(1.0), {"step_time_s": 1.0}),
        compared(None, {"step_time_s": 1.0}),
        compared(price(5.0), {}),
    ]
    found = summary(items)
    assert (found["rows"], found["priced"], found["compared"]) == (5, 4, 3)
    assert found["step_time_mape"] == pytest.approx(0.4 / 3)
    assert found["step_time_median_ape"] == pytest.approx(0.1)
    assert found["step_time_bias"] == pytest.approx(-0.2 / 3)


def test_a_figure_that_nothing_tells_is_none() -> None:
    found = summary([])
    assert found["step_time_mape"] is None
    assert found["step_time_median_ape"] is None
    assert found["kendall_tau"] is found["regret"] is found["peak_memory_mape"] is None
    assert found["oom"] == {
        "true_positive": 0,
        "false_positive": 0,
        "true_negative": 0,
        "false_negative": 0,
    }
    assert errors([]) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"task": "lora"},
        {"kind": "hybrid"},
        {"offload": "activations"},
        {"tp": ""},
        {"pp": ""},
        {"global_batch": ""},
        {"gpus": ""},
        {"model": "nobody's"},
        {"device": "", "cluster": ""},
        {"recompute": "", "recompute_detail": "our own way"},
    ],
)
def test_some_runs_are_priced_but_do_not_count(asked: dict[str, str]) -> None:
    measured = {"step_time_s": 1.0, "peak_memory_gib": 9.0, "oom": "n"}
    item = compared(price(2.0), measured, asked)
    assert (item.times, item.peaks, item.verdict) == (None, None, None)
    assert summary([item])["priced"] == 1


def test_times_inverted_from_a_rounded_rate_do_not_count() -> None:
    measured = {"step_time_s": 1.0, "step_time_origin": "derived_from_tflops"}
    assert compared(price(2.0), measured).times is None
    measured["step_time_origin"] = "derived_from_tokens"
    assert compared(price(2.0), measured).times == (2.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "expected_gib"),
    [(None, 30.0), ("device", 30.0), ("reserved", 20.0), ("allocated", 10.0)],
)
def test_memory_is_compared_like_with_like(
    kind: str | None, expected_gib: float
) -> None:
    measured: dict[str, Any] = {"peak_memory_gib": 40.0}
    if kind:
        measured["peak_memory_kind"] = kind
    assert compared(price(1.0), measured).peaks == (expected_gib * GiB, 40.0 * GiB)


@pytest.mark.parametrize(
    ("framework", "kind"), [("nanotron", "reserved"), ("Megatron-LM", "device")]
)
def test_memory_without_a_kind_is_what_its_framework_logs(
    framework: str, kind: str
) -> None:
    asked = {**COMPLETE, "framework": framework, "recompute": "none"}
    asked = {name: text for name, text in asked.items() if text}
    run = Run(row=0, asked=asked, measured={"peak_memory_gib": "40"}, kept={})
    (item,) = compare([run])
    assert item.priced.price is not None
    assert item.peaks == (item.priced.price.peak_bytes[kind], 40 * GiB)


@pytest.mark.parametrize(
    ("oom", "fits", "verdict"),
    [
        ("y", False, "true_positive"),
        ("n", False, "false_positive"),
        ("n", True, "true_negative"),
        ("y", True, "false_negative"),
    ],
)
def test_verdicts_on_memory(oom: str, fits: bool, verdict: str) -> None:
    item = compared(price(1.0, fits=fits), {"oom": oom})
    assert item.verdict == verdict
    assert summary([item])["oom"][verdict] == 1
    unknown = compared(price(1.0, fits=fits), {"oom": oom}, {"recompute": ""})
    assert unknown.verdict is None


def test_tau_counts_pairs_by_hand() -> None:
    assert kendall_tau([(1, 1), (2, 2), (3, 3), (4, 4)]) == 1.0
    assert kendall_tau([(4, 1), (3, 2), (2, 3), (1, 4)]) == -1.0
    # Of six pairs five agree: (2, 3) and (3, 2) do not.
    assert kendall_tau([(1, 1), (2, 3), (3, 2), (4, 4)]) == pytest.approx(4 / 6)


def test_tau_skips_what_measurements_do_not_tell_apart() -> None:
    assert kendall_tau([(9, 1.0), (1, 1.009), (10, 2.0)]) == 1.0
    assert kendall_tau([(9, 1.0), (1, 1.009)]) is None


def test_equal_estimates_of_unlike_runs_count_for_neither() -> None:
    assert kendall_tau([(1, 1), (1, 2), (2, 3)]) == pytest.approx(2 / 3)


def test_regret_is_what_the_choice_loses() -> None:
    assert regret([(1.0, 3.0), (2.0, 2.0), (3.0, 4.0)]) == pytest.approx(0.5)
    assert regret([(1.0, 2.0), (2.0, 3.0)]) == 0.0


def test_regret_does_not_hang_on_the_order_of_rows() -> None:
    pairs = [(1.0, 3.0), (1.0, 2.0), (1.0, 4.0), (2.0, 5.0)]
    assert regret(pairs) == regret(pairs[::-1]) == pytest.approx(0.5)


def test_groups_are_alike_and_sources_weigh_the_same() -> None:
    def group(
        source: str, family: str, estimates: list[float], gpus: str = "8"
    ) -> list[Compared]:
        return [
            compared(
                price(estimate),
                {"step_time_s": float(measured)},
                {"gpus": gpus, "micro_batch": str(measured)},
                {"source": source, "family": family},
            )
            for measured, estimate in enumerate(estimates, start=1)
        ]

    rising, falling = [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]
    items = [
        *group("a", "one", rising),
        *group("a", "two", rising),
        *group("a", "three", falling),
        *group("b", "four", falling),
        *group("b", "five", rising[:3]),  # too few to rank
        *group("b", "six", rising[:2]),
        *group("b", "six", rising[:2], gpus="16"),  # unlike the two before
    ]
    found = summary(items)
    assert found["kendall_tau"] == pytest.approx(((1 + 1 - 1) / 3 - 1) / 2)
    assert found["regret"] == pytest.approx(((0 + 0 + 3) / 3 + 3) / 2)
    by_source = grouped(items, "source")
    assert by_source["a"]["kendall_tau"] == pytest.approx(1 / 3)
    assert by_source["b"]["kendall_tau"] == -1.0


def test_repeats_of_one_layout_are_no_group() -> None:
    repeats = [
        compared(price(1.0), {"step_time_s": measured}, {"gpus": "8"}, {"source": "a"})
        for measured in (1.0, 1.1, 1.2, 1.3)
    ]
    found = summary(repeats)
    assert (found["kendall_tau"], found["regret"], found["groups"]) == (None, None, 0)
    other = compared(
        price(2.0), {"step_time_s": 2.0}, {"gpus": "8", "tp": "2"}, {"source": "a"}
    )
    assert summary([*repeats, other])["groups"] == 1


def written(tmp_path: Path, rows: list[dict[str, str]]) -> Path:
    header = list(dict.fromkeys(name for row in rows for name in row))
    path = tmp_path / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_document_of_a_file(tmp_path: Path) -> None:
    measured = {"step_time_s": "10", "step_time_origin": "measured", "oom": "n"}
    rows = [
        {"id": "x", **GPT, "micro_batch": "1", **measured},
        {**GPT, "micro_batch": "two", **measured},
        {**GPT, "micro_batch": "1", "step_time_s": "soon"},
    ]
    found = compare_file(written(tmp_path, rows))
    assert set(found) == {"runs", "summary"}
    first, second, third = found["runs"]
    assert [run["row"] for run in found["runs"]] == [0, 1, 2]
    assert first["error"] is None
    assert first["kept"] == {"id": "x"}
    assert first["measured"] == {
        "step_time_s": 10.0,
        "step_time_origin": "measured",
        "oom": "n",
    }
    assert first["estimate"]["step_time_s"] > 0
    assert first["estimate"]["assumed"]["dp"] == 2
    assert second["estimate"] is None
    assert "micro_batch='two'" in second["error"]
    # A measurement that cannot be read is said, and the estimate stands.
    assert third["estimate"]["step_time_s"] == first["estimate"]["step_time_s"]
    assert "step_time_s='soon'" in third["error"]
    assert third["measured"] == {"step_time_s": None}
    counted = {name: found["summary"][name] for name in ("rows", "priced", "compared")}
    assert counted == {"rows": 3, "priced": 2, "compared": 1}


@pytest.mark.parametrize("column", NUMBERS)
def test_a_measurement_that_no_run_has_is_said_and_not_compared(
    column: str, tmp_path: Path
) -> None:
    """1e-308 GiB: the error beside it would be infinite, which JSON cannot say."""
    said = {**GPT, "micro_batch": "1"}
    rows = [{**said, column: text} for text in ("1e-308", "0", "-1", "1e308", "nan")]
    found = compare_file(written(tmp_path, rows))
    for row, run in zip(rows, found["runs"], strict=True):
        assert run["measured"] == {column: None}
        assert f"{column}='{row[column]}'" in run["error"]
        assert run["estimate"]["step_time_s"] > 0
    assert found["summary"]["compared"] == 0
    json.dumps(found, allow_nan=False)


def test_equal_questions_are_priced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled_out = []

    def counting(choice: Uniform, graph: ModelGraph, global_batch: int) -> Layout:
        spelled_out.append(choice)
        return spell_out(choice, graph, global_batch)

    monkeypatch.setattr("costmodel.runs.pricing.spell_out", counting)
    said = {**GPT, "micro_batch": "1"}
    rows = [said, said, {**said, "virtual_stages": "1"}, {**said, "micro_batch": "2"}]
    found = compare_file(written(tmp_path, rows))
    assert len(spelled_out) == 2
    assert "virtual_stages" in found["runs"][0]["estimate"]["assumed"]
    assert "virtual_stages" not in found["runs"][2]["estimate"]["assumed"]


@pytest.fixture(scope="module")
def published() -> list[dict[str, str]]:
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        pytest.skip("MESHWRIGHT_DATA does not name the folder of measurements")
    with (Path(folder) / "runs.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_blanked_names_and_measurements_change_no_estimate(
    published: list[dict[str, str]], tmp_path: Path
) -> None:
    some = published[::60]
    blank = dict.fromkeys((*NAMES, *MEASURED), "")
    whole = compare_file(written(tmp_path, some))["runs"]
    bare = compare_file(written(tmp_path, [{**row, **blank} for row in some]))["runs"]
    assert [run["estimate"] for run in whole] == [run["estimate"] for run in bare]
    assert sum(run["estimate"] is not None for run in whole) > len(some) / 2
