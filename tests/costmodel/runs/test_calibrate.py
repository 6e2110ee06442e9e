"""Prices calibrated by runs of one's own: what they learn, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.machine.coefficients import load_coefficients
from costmodel.runs.calibrate import calibrate
from costmodel.runs.calibration_files import read_calibration, write_calibration
from costmodel.runs.prior import Covariance, load_prior
from costmodel.runs.table import read_runs
from costmodel.runs.validate import compare
from profiles.errors import InvalidFile
from tests.support.own_runs import Row, measured, rows, written

SLOWER = {"product/a100-sxm-80gb": 1.1, "elementwise/megatron": 1.2}


def known(names: dict[str, float]) -> dict[str, float]:
    """Those of *names* that are coefficients still; a refit may rename them."""
    return {k: v for k, v in names.items() if k in load_coefficients().values}


def told(path: Path) -> list[Row]:
    """The rows of a table, as it has them."""
    return [{**row.asked, **row.measured} for row in read_runs(path)]


def errors(path: Path, seen: Path | None = None) -> np.ndarray:
    calibration = None if seen is None else calibrate(seen)
    return np.array(
        [
            item.times[0] / item.times[1] - 1
            for item in compare(read_runs(path), calibration)
            if item.times
        ]
    )


def test_a_few_runs_foretell_the_others(tmp_path: Path) -> None:
    everything = rows(18)
    seen = measured(tmp_path / "seen.csv", everything[::6], known(SLOWER), pace=1.05)
    rest = measured(tmp_path / "rest.csv", everything[1::2], known(SLOWER), pace=1.05)
    before, after = np.abs(errors(rest)), np.abs(errors(rest, seen))
    assert len(before) == len(after) > 4
    assert after.mean() < 0.5 * before.mean()


def test_runs_as_estimated_move_nothing(tmp_path: Path) -> None:
    seen = measured(tmp_path / "seen.csv", rows(4))
    found = calibrate(seen)
    assert len(found.runs) == 4
    assert max(abs(one.change) for one in found.step) < 1e-3
    assert all(one.error <= one.spread * 1.001 for one in found.step)


def test_intervals_narrow_where_runs_are_near(tmp_path: Path) -> None:
    table = rows(9)
    seen = measured(tmp_path / "seen.csv", table[:4])

    def widths(cells: list[Row], calibrated: bool) -> list[float]:
        path = written(tmp_path / "asked.csv", cells)
        by = calibrate(seen) if calibrated else None
        prices = [item.priced.price for item in compare(read_runs(path), by)]
        return [
            float(np.log(one.interval_s[1] / one.interval_s[0]))
            for one in prices
            if one is not None
        ]

    other = {"device": "H100-SXM-80GB", "cluster": "dgx-h100"}
    near = np.divide(widths(table[:4], True), widths(table[:4], False))
    far = rows(4, **other, framework="NeMo")
    apart = np.divide(widths(far, True), widths(far, False))
    assert np.all(near < 0.9)
    assert apart.min() > near.max()


def test_an_estimate_reads_no_name_and_no_measurement_of_its_own(
    tmp_path: Path,
) -> None:
    table = rows(4, id="7", source="somebody", family="some", notes="told")
    seen = measured(tmp_path / "seen.csv", table, pace=1.1)
    blank = measured(tmp_path / "blank.csv", rows(4), pace=1.1)
    one, other = calibrate(seen), calibrate(blank)
    assert one.step == other.step
    assert one.after == other.after


def test_an_absurd_row_is_named_and_left_out(tmp_path: Path) -> None:
    seen = measured(tmp_path / "seen.csv", rows(5), pace=1.03)
    table = told(seen)
    table[2]["step_time_s"] = str(1000 * float(table[2]["step_time_s"]))
    found = calibrate(written(tmp_path / "wrong.csv", table))
    assert [one.row for one in found.left_out] == ["wrong.csv, row 3"]
    assert "1.03e+03 times the estimate" in found.left_out[0].why
    right = calibrate(written(tmp_path / "right.csv", [*table[:2], *table[3:]]))
    assert [one.after for one in found.step] == pytest.approx(
        [one.after for one in right.step], rel=1e-6
    )


def test_the_peak_of_an_absurd_row_is_not_used_either(tmp_path: Path) -> None:
    """A run on other devices than its layout says, say."""
    (row,) = told(measured(tmp_path / "seen.csv", rows(1)))
    row["step_time_s"] = str(1000 * float(row["step_time_s"]))
    row["peak_memory_gib"] = "20"
    with pytest.raises(InvalidFile, match="times the estimate"):
        calibrate(written(tmp_path / "wrong.csv", [row]))


def test_rows_that_contradict_each_other_widen(tmp_path: Path) -> None:
    seen = measured(tmp_path / "seen.csv", rows(1))
    (row,) = told(seen)
    once = float(row["step_time_s"])
    apart = [{**row, "step_time_s": str(once * by)} for by in (0.8, 1.25)]
    agreed = [{**row, "step_time_s": str(once)} for _ in range(2)]
    contradicting = calibrate(written(tmp_path / "apart.csv", apart))
    agreeing = calibrate(written(tmp_path / "agreed.csv", agreed))
    assert contradicting.noise[1] > contradicting.noise[0] > agreeing.noise[1]


def test_a_row_that_no_layout_explains_is_left_out(tmp_path: Path) -> None:
    seen = measured(tmp_path / "seen.csv", rows(2))
    table = told(seen)
    table[1]["tp"] = "3"
    found = calibrate(written(tmp_path / "some.csv", table))
    assert len(found.runs) == 1
    assert found.left_out[0].row == "some.csv, row 2"


def test_peaks_move_memory(tmp_path: Path) -> None:
    table = rows(4)
    priced = compare(read_runs(written(tmp_path / "asked.csv", table)))
    peaks = [item.priced.price for item in priced]
    more = [
        {
            **row,
            "peak_memory_gib": f"{price.peak_bytes['device'] / 2**30 + 2:.6g}",
            "peak_memory_kind": "device",
        }
        for row, price in zip(table, peaks, strict=True)
        if price is not None
    ]
    seen = written(tmp_path / "seen.csv", more)
    found = calibrate(seen)
    assert not found.step
    assert {one.name.partition("/")[0] for one in found.memory} == {"kept", "beside"}

    def missed(by: bool) -> float:
        calibration = found if by else None
        pairs = [item.peaks for item in compare(read_runs(seen), calibration)]
        return float(np.mean([abs(a / b - 1) for a, b in filter(None, pairs)]))

    assert missed(True) < 0.5 * missed(False)


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = calibrate(measured(tmp_path / "seen.csv", rows(3), pace=1.1))
    write_calibration(found, tmp_path / "kept.json")
    assert read_calibration(tmp_path / "kept.json") == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "calibrate again from the rows"),
        ({"coefficients": "0"}, "calibrate again from the rows"),
        ({"format": "meshwright/layout"}, "is not a calibration"),
        ({"after": [[1.0]]}, "covariances"),
        ({"colour": 1}, "colour"),
    ],
)
def test_another_file_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    found = calibrate(measured(tmp_path / "seen.csv", rows(2)))
    path = tmp_path / "kept.json"
    write_calibration(found, path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidFile, match=words):
        read_calibration(path)


def test_tables_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    empty = written(tmp_path / "empty.csv", [dict.fromkeys(rows(1)[0], "")])
    with pytest.raises(InvalidFile, match="no row"):
        calibrate(empty)
    foreign = [{**rows(1)[0], "seconds": "1.2"}]
    with pytest.raises(InvalidFile, match=r"no column is measured.*seconds"):
        calibrate(written(tmp_path / "foreign.csv", foreign))
    (tmp_path / "words.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidFile, match="must name columns"):
        calibrate(tmp_path / "words.csv")
    wrong = [{**rows(1)[0], "step_time_s": "-3"}]
    with pytest.raises(InvalidFile, match="step_time_s='-3'"):
        calibrate(written(tmp_path / "wrong.csv", wrong))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidFile, match="is not a table of runs"):
        calibrate(tmp_path / "other.json")


def test_a_covariance_is_of_its_coefficients_or_not_used() -> None:
    fitted = load_coefficients()
    names = [item.name for item in fitted.entries[:3]]
    before = load_prior().covariance(names, fitted)
    assert np.all(np.linalg.eigvalsh(before) > 0)
    spreads = [item.spread for item in fitted.entries[:3]]
    assert np.all(np.diag(before) >= (load_prior().drift * np.array(spreads)) ** 2)
    size = len(fitted.entries)
    matrix = np.full((size, size), 0.001) + np.eye(size)
    assert np.allclose(Covariance.of(fitted, matrix).matrix(), matrix)
    changed = fitted.changed({names[0]: 2.0})
    assert changed.digest != fitted.digest == replace(fitted).digest


def test_in_a_long_table_some_slopes_stand_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = measured(tmp_path / "seen.csv", rows(9), known(SLOWER), pace=1.05)
    whole = calibrate(seen)
    monkeypatch.setattr("costmodel.runs.calibrate.MOST_PRICED", 4)
    some = calibrate(seen)
    assert len(some.runs) == len(whole.runs) == 9
    for one, other in zip(some.step, whole.step, strict=True):
        assert one.name == other.name
        assert abs(one.change - other.change) < 0.5 * one.spread
