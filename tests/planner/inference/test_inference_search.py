"""`plan --inference`: the cheapest way to serve, against all ways, each priced."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from costmodel.inference import InferenceEstimate, inference_estimate
from costmodel.inference.memory import fits
from costmodel.options.inference import InferenceOptions
from costmodel.options.pins import Pins
from planner.cli import plan
from planner.inference.options import LatencyOptions
from planner.inference.search import Asked, Found, search, unit_price
from profiles.commandline.options import JobOptions
from profiles.errors import MeshwrightError
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from tests.support.served import asked

SHORT: Any = {"prompt_len": 2000, "new_tokens": 64}
Ask = Callable[..., tuple[int, str, str]]


def found(name: str, where: str, gpus: int, **latency: float) -> Found:
    question = Asked(
        model=model(name),
        cluster=cluster(where),
        job=JobOptions(),
        pins=Pins(),
        options=InferenceOptions(inference=True, **SHORT),
        latency=LatencyOptions(**latency),
    )
    return search(question, [gpus])


def every(name: str, where: str, gpus: int) -> list[tuple[float, InferenceEstimate]]:
    """Every way, each resolved and priced for itself."""
    ways = []
    sizes = [size for size in range(1, gpus + 1) if gpus % size == 0]
    formats = [{}, {"precision": "fp8"}, {"quantization": "int8"}]
    formats.append({"quantization": "int4"})
    for tp in sizes:
        for pp in sizes:
            for ep in sizes:
                for format_ in formats:
                    for batch in (1, 6, 16, 64, 192):
                        degrees = {"tp": tp, "pp": pp, "ep": ep, "micro_batch": batch}
                        one = priced(name, where, gpus, **degrees, **format_)
                        if one is not None:
                            ways.append((cost(one), one))
    return ways


def priced(
    name: str, where: str, gpus: int, **options: Any
) -> InferenceEstimate | None:
    try:
        one = inference_estimate(asked(name, where, gpus=gpus, **options, **SHORT))
    except MeshwrightError:
        return None
    return one if fits(one.asked, one.held) else None


def cost(one: InferenceEstimate) -> float:
    tokens = one.asked.job.global_batch * one.asked.new_tokens
    return one.total_s * one.gpus / tokens * unit_price(one.asked)


@pytest.mark.parametrize(
    ("name", "where", "gpus"),
    [
        ("llama2-7b", "dgx-h100", 2),
        pytest.param("mixtral-8x7b", "hgx-h200", 2, marks=pytest.mark.matrix),
    ],
)
def test_no_way_is_cheaper_within_the_latencies(
    name: str, where: str, gpus: int
) -> None:
    """With no limit, and with limits that leave a half and a tenth of the ways."""
    ways = every(name, where, gpus)
    steps = sorted(one.step_s for _, one in ways)
    firsts = sorted(float(one.prefill.latency_s) for _, one in ways)
    for part in (1, 2, 10):
        place = len(ways) // part - 1
        token, first = steps[place], firsts[max(place, len(ways) // 2)]
        soon = [
            value
            for value, one in ways
            if one.step_s <= token and float(one.prefill.latency_s) <= first
        ]
        answer = found(name, where, gpus, max_token_s=token, max_first_token_s=first)
        best = answer.ways[0]
        assert best.value <= min(soon) * (1 + 1e-12)
        assert best.value == pytest.approx(cost(best.estimate))
        assert best.estimate.fits
        assert best.estimate.step_s <= token
        tally = answer.tally
        assert min(tally.bounded, tally.too_large, tally.too_slow) >= 0
        assert tally.priced >= len(answer.ways)
        for name_, way in answer.best_by_weights.items():
            alike = [
                value
                for value, one in ways
                if one.step_s <= token
                and float(one.prefill.latency_s) <= first
                and name_ in (one.asked.stored.quantization, one.asked.choice.precision)
                and (name_ != "bf16" or one.asked.stored.quantization is None)
            ]
            assert way.value <= min(alike) * (1 + 1e-12)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asking(*argv: str) -> tuple[int, str, str]:
        code = plan.run(["--inference", "--model", "llama2-7b", *argv])
        return code, *capsys.readouterr()

    return asking


def test_the_document_holds_the_answer_and_its_proof(ask: Ask) -> None:
    code, out, _ = ask("--gpus", "2", "--max-token-s", "0.05", "--json", "--top", "3")
    assert code == 0
    document = json.loads(out)
    assert document["estimate"]["decode"]["step_time_s"] <= 0.05
    assert document["bound"]["objective"] == "dollars_per_million_tokens"
    assert document["bound"]["value"] == document["bound"]["lower"]
    prices = [one["dollars_per_million_tokens"] for one in document["alternatives"]]
    assert len(prices) == 3
    assert [document["bound"]["value"], *prices] == sorted(
        [document["bound"]["value"], *prices]
    )
    assert set(document["by_weights"]) == {"bf16", "int8", "int4"}
    assert "global_batch" not in document["estimate"]["assumed"]


def test_a_pinned_value_is_not_searched(ask: Ask) -> None:
    asked_ = ("--gpus", "4", "--tp", "2", "--precision", "bf16", "--micro-batch", "3")
    code, out, _ = ask(*asked_, "--quantization", "int8", "--json")
    assert code == 0
    layout = json.loads(out)["layout"]
    assert (layout["tp"], layout["micro_batch"]) == (2, 3)
    assert layout["quantization"] == "int8"


def test_fewer_gpus_are_chosen_where_they_are_cheaper(ask: Ask) -> None:
    code, out, _ = ask("--gpus", "1..2", "--json")
    assert code == 0
    document = json.loads(out)
    prices = [
        json.loads(ask("--gpus", str(gpus), "--json")[1])["bound"]["value"]
        for gpus in (1, 2)
    ]
    assert document["bound"]["value"] == pytest.approx(min(prices))


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ("", 2, "--gpus is missing"),
        ("--gpus 2 --max-token-s 0", 2, "must be a number > 0"),
        ("--gpus 2 --zero 1", 2, "does not take --zero"),
        ("--gpus 2 --out x.json", 2, "does not take --out"),
        ("--gpus 2 --tokens 3", 2, "does not take --tokens"),
        ("--gpus 2 --prefill-gpus 1", 2, "about one layout"),
        ("--gpus 2 --tp 3", 2, "tp 3 does not divide"),
        ("--gpus 2 --max-token-s 1e-6", 1, "the soonest is"),
        ("--gpus 1 --cluster p3.16xlarge --seq-len 100000", 1, "needs"),
    ],
)
def test_what_cannot_be_is_said(ask: Ask, argv: str, code: int, said: str) -> None:
    got, out, err = ask(*argv.split())
    assert (got, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_latency_without_inference_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked_ = ("--model", "gpt-tiny", "--gpus", "2", "--max-token-s", "1")
    assert plan.run([*asked_]) == 2
    assert "add --inference" in capsys.readouterr().err
