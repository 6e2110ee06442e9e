"""Modules of users' own, cut and spread, train like one process in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from costmodel.layout.offload import Offload
from tests.runtime.ranks import on_ranks
from tests.support.measured_module import HUGGING_FACE, OWN, needs_transformers
from tests.support.trained_module import on_rank, plain

LOSS, NORM, WEIGHTS = 1e-5, 5e-5, 1e-6
SPREAD: list[Mapping[str, Any]] = [
    {"dp": 2, "zero": 0},
    {"dp": 2, "zero": 1, "zero_group": 2},
    {"dp": 2, "zero": 3, "zero_group": 2, "recompute": "full"},
]
CUT: list[Mapping[str, Any]] = [
    {"pp": 2},
    {"pp": 2, "recompute": "full"},
    {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
]
WIDE: list[Mapping[str, Any]] = [{"tp": 2}, {"tp": 2, "recompute": "full"}]


@pytest.mark.parametrize("name", ["wide_resnet", "unet"])
def test_networks_of_pictures_with_skips(name: str) -> None:
    _require_alike(f"{OWN}:{name}", [*SPREAD, *CUT])


def test_a_tied_table_and_attention_by_hand() -> None:
    _require_alike(f"{OWN}:by_hand", [*SPREAD, {"pp": 2}, *WIDE])


def test_queries_keys_and_values_side_by_side() -> None:
    _require_alike(f"{OWN}:fused", WIDE)


@pytest.mark.parametrize("name", ["dlrm", "lstm", "odd"])
def test_tables_recurrences_and_layers_that_many_share(name: str) -> None:
    _require_alike(f"{OWN}:{name}", [SPREAD[1], {"pp": 2}])


@needs_transformers
@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "bert", "llama", "gpt2", "t5"])
def test_transformers_of_hugging_face(name: str) -> None:
    _require_alike(f"{HUGGING_FACE}:{name}", [*SPREAD, *CUT, *WIDE])


@needs_transformers
@pytest.mark.slow
def test_experts_run_by_their_own_code() -> None:
    _require_alike(f"{HUGGING_FACE}:mixtral", [*SPREAD, *WIDE])


def _require_alike(reference: str, cases: Sequence[Mapping[str, Any]]) -> None:
    losses, norms, weights = plain(reference)
    seen = on_ranks(2, on_rank, reference, cases)
    for case, *ranks in zip(cases, *seen, strict=True):
        held: dict[str, Any] = {}
        for found_losses, found_norms, found_weights in ranks:
            assert found_losses == pytest.approx(losses, rel=LOSS), case
            assert found_norms == pytest.approx(norms, rel=NORM), case
            held |= found_weights
        assert held.keys() <= weights.keys()
        # All together: a bias of keys has no gradient but rounding.
        wrong = sum(
            float((one - weights[name]).norm()) ** 2 for name, one in held.items()
        )
        moved = sum(float(weights[name].norm()) ** 2 for name in held)
        assert (wrong / moved) ** 0.5 < WEIGHTS, case


@pytest.mark.parametrize("name", ["wide_resnet", "by_hand"])
def test_what_its_layers_save_is_kept_in_eight_bits(name: str) -> None:
    """On one rank with the others' samples, and cut in a pipeline: the first loss is
    that of plain PyTorch, as the forward is exact, and the gradients nearly."""
    reference = f"{OWN}:{name}"
    losses, norms, _ = plain(reference)
    cases = [
        {"dp": 2, "zero": 0, "offload": Offload(compress="8")},
        {"pp": 2, "offload": Offload(compress="8")},
    ]
    for ranks in zip(*on_ranks(2, on_rank, reference, cases), strict=True):
        for found_losses, found_norms, _ in ranks:
            assert found_losses[0] == pytest.approx(losses[0], rel=LOSS)
            assert found_norms[0] == pytest.approx(norms[0], rel=0.02)
            assert found_norms[0] != norms[0]
