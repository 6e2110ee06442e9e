"""A measured trace beside the priced one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel import simulate
from costmodel.trace.comparison import BETWEEN, compared
from costmodel.trace.events import ACTIONS, Trace, read_trace, trace_text
from costmodel.trace.priced import priced_trace
from profiles.errors import InvalidFile
from tests.support.commanded import answered, refused
from tests.support.commanded import simulate as command

ASKED = ("gpt-tiny", "--gpus", "2", "--pp", "2", "--global-batch", "8")
LAYOUT: dict[str, Any] = {"gpus": 2, "pp": 2, "global_batch": 8}


def priced() -> Trace:
    return priced_trace(simulate("gpt-tiny", **LAYOUT))


def stretched(trace: Trace, kind: str, by: float, steps: int = 1) -> Trace:
    """As if actions of a *kind* had taken longer, in so many steps."""
    found = []
    for step in range(steps):
        for one in trace.slices:
            if one.thread != ACTIONS:
                continue
            seconds = one.seconds * (by if kind in one.name else 1)
            start_s = one.start_s + step * 100
            end_s = start_s + seconds
            found.append(replace(one, start_s=start_s, end_s=end_s, step=step))
    return replace(trace, slices=found)


def test_a_step_as_priced_takes_no_longer() -> None:
    trace = priced()
    found = compared(trace, trace)
    assert found.priced_step_s == found.measured_step_s
    assert [row.longer_s for row in found.rows] == [0.0] * len(found.rows)
    assert {row.what for row in found.rows} >= {"F", "B", "RECV_F", "STEP", BETWEEN}
    forward = next(r for r in found.rows if (r.what, r.stage) == ("F", 1))
    assert forward.count == simulate("gpt-tiny", **LAYOUT).layout.micro_batches


def test_what_takes_longer_stands_first_with_its_seconds() -> None:
    trace = priced()
    found = compared(trace, stretched(trace, "1B", 3.0, steps=5))
    worst = found.rows[0]
    assert (worst.what, worst.stage, found.steps) == ("B", 1, 5)
    assert worst.longer_s == pytest.approx(2 * worst.priced_s)
    document = found.document()
    first = document["actions"][0]
    assert first["longer_s_of_all_steps"] == pytest.approx(5 * worst.longer_s)


def test_what_is_written_is_read_to_the_nanosecond(tmp_path: Path) -> None:
    trace = priced()
    (tmp_path / "actions.json").write_text(trace_text(trace))
    again = read_trace(tmp_path)  # by the folder
    assert again.processes == trace.processes
    both = (sorted(one.slices, key=str) for one in (again, trace))
    for read, wrote in zip(*both, strict=True):
        assert (read.name, read.thread) == (wrote.name, wrote.thread)
        assert read.start_s == pytest.approx(wrote.start_s, abs=1e-9)
        assert read.end_s == pytest.approx(wrote.end_s, abs=2e-9)


def test_the_command_adds_a_table_and_a_member(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "measured.json"
    file.write_text(trace_text(stretched(priced(), "F", 2.0)))
    found = answered(capsys, *ASKED, "--compare", str(file))["compared"]
    assert found["actions"][0]["action"] in ("F", "B", BETWEEN)
    assert command(*ASKED, "--compare", str(file)) == 0
    said = capsys.readouterr().out
    assert "forward" in said
    assert "longer" in said


def damage(document: dict[str, Any], how: str) -> Any:
    events = document["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    if how == "no thread":
        document["traceEvents"] = [e for e in events if e["name"] != "thread_name"]
    elif how == "negative":
        slices[0]["dur"] = -5
    elif how == "text":
        slices[0]["ts"] = "soon"
    elif how == "no events":
        document["traceEvents"] = []
    elif how == "a list":
        return events
    elif how == "version":
        document["otherData"]["version"] = 9
    elif how == "torch's":
        del document["otherData"]
    elif how == "no process":
        document["traceEvents"] = [e for e in events if e["name"] != "process_name"]
    elif how == "no action":
        for one in slices:
            one["name"] = "sleep"
    return document


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no thread", "damaged"),
        ("negative", "damaged"),
        ("text", "damaged"),
        ("no events", "damaged"),
        ("no process", "damaged"),
        ("a list", "is not a trace"),
        ("torch's", "is not a trace"),
        ("version", "version 9"),
        ("no action", "is not an action"),
    ],
)
def test_a_foreign_or_damaged_trace_is_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, how: str, said: str
) -> None:
    document = damage(json.loads(trace_text(priced())), how)
    file = tmp_path / "t.json"
    file.write_text(json.dumps(document))
    assert said in refused(capsys, *ASKED, "--compare", str(file))


def test_a_trace_that_is_cut_or_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(trace_text(priced())[:-100])
    for wrong in (file, tmp_path / "none", tmp_path):
        with pytest.raises(InvalidFile):
            read_trace(wrong)


def test_a_trace_of_another_layout_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "t.json"
    file.write_text(trace_text(priced()))
    other = (*ASKED[:3], "--tp", "2", "--global-batch", "8")
    said = refused(capsys, *other, "--compare", str(file))
    assert "pp 2" in said
    assert "tp 2" in said
    assert "--compare" in refused(
        capsys, *ASKED, "--compare", str(file), "--sweep", "tp=1,2"
    )
