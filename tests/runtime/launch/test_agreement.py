"""`runtime.launch.run`: machines that were asked for unlike things do not train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from profiles.errors import RunFailed
from runtime.data.sources import fingerprint, source
from runtime.launch.run import Request, question, require_agreed
from runtime.train.options import Training
from tests.runtime.checkpoint_cases import stored
from tests.runtime.ranks import on_ranks

REQUEST = Request(
    layout={"job": {"model": "gpt-tiny"}, "gpus": 2, "layout": {}, "cluster": "local"},
    device="cpu",
    steps=4,
    data="synthetic",
    seed=0,
    threads=1,
    result="one.json",
)


def answers(rank: int, machines: bool) -> list[str]:
    """What is said of ranks that differ in one thing, and of such that do not."""
    found = []
    for other in (
        REQUEST,
        replace(REQUEST, result="other.json", threads=2, progress=False),
        replace(REQUEST, seed=1),
        replace(REQUEST, layout={**REQUEST.layout, "gpus": 4}),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCAL_WORLD_SIZE", "1" if machines else "2")
            try:
                require_agreed(question(other if rank else REQUEST, "data"))
                found.append("")
            except RunFailed as error:
                found.append(str(error))
    return found


def test_what_differs_is_named_on_every_rank() -> None:
    first, second = on_ranks(2, answers, True)
    assert first == second
    alike, own, seed, layout = first
    assert (alike, own) == ("", "")
    assert "rank 1's machine" in seed
    assert "--seed is 1 there and 0 here" in seed
    assert "the layout file is" in layout


def test_ranks_of_one_machine_are_not_asked() -> None:
    assert on_ranks(2, answers, False) == [[""] * 4] * 2


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, steps=5),
        replace(REQUEST, resume=True),
        replace(REQUEST, training=Training(warmup_steps=1)),
        replace(REQUEST, training=Training(eval_data="synthetic")),
        replace(REQUEST, lr=1.0),
    ],
)
def test_what_all_must_have_is_in_the_question(other: Request) -> None:
    assert question(other, "data") != question(REQUEST, "data")
    logged = replace(other, training=replace(other.training, log="run.jsonl"))
    assert question(logged, "data") == question(other, "data")


def test_the_checkpoint_and_the_data_are_in_the_question(tmp_path: Path) -> None:
    stored(tmp_path)
    asked = [replace(REQUEST, checkpoint_dir=str(tmp_path / one)) for one in ".x"]
    seen, unseen = (question(one, "data")["the newest checkpoint"] for one in asked)
    assert (seen, unseen) == ("step-000001", None)
    (tmp_path / "a.txt").write_text("once upon a time")
    (tmp_path / "b.txt").write_text("twice upon a time")
    a, b = (
        source(tmp_path / f"{name}.txt", vocab=300, seq_len=8, seed=0) for name in "ab"
    )
    assert fingerprint(a) == fingerprint(a) != fingerprint(b)
