"""`runtime.weights.names`: what is joined comes apart again, of every family."""

from __future__ import annotations

import pytest
import torch

from profiles.errors import Unsupported
from profiles.models.spec import DecoderSpec
from runtime.models.decoder import Stage
from runtime.weights.config import config_of
from runtime.weights.names import bonds
from tests.support.foreign_models import CONFIGS, job_of
from tests.support.small_jobs import GPT, LLAMA, MIXTURE, job


def parts_of(name: str) -> tuple[DecoderSpec, str]:
    spec = job_of(name).spec
    assert isinstance(spec, DecoderSpec)
    return spec, str(CONFIGS[name]["model_type"])


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_joined_comes_apart_again(name: str) -> None:
    for bond in bonds(*parts_of(name)):
        theirs = [torch.randn(shape) for shape in bond.theirs.values()]
        again = bond.part(bond.join(theirs))
        assert [tuple(one.shape) for one in again] == list(bond.theirs.values())
        assert all(map(torch.equal, theirs, again)), bond.ours


@pytest.mark.parametrize("name", CONFIGS)
def test_all_parameters_are_bound_once_and_fit(name: str) -> None:
    spec, kind = parts_of(name)
    with torch.device("meta"):
        stage = Stage(spec, job_of(name).graph.layer_names)
    wanted = {
        one: tuple(parameter.shape)
        for one, parameter in stage.named_parameters(remove_duplicate=False)
    }
    found: dict[str, tuple[int, ...]] = {}
    theirs: list[str] = []
    for bond in bonds(spec, kind):
        assert not found.keys() & set(bond.ours)
        found |= bond.shapes()
        theirs += [] if bond.reads else bond.theirs
    assert found == wanted
    assert len(theirs) == len(set(theirs))


@pytest.mark.parametrize("name", ["gpt2", "gpt2-tied", "llama", "llama-tied", "qwen3"])
def test_a_configuration_is_made_of_what_a_spec_says(name: str) -> None:
    spec, _ = parts_of(name)
    made = config_of(job_of(name), spec)["model_type"]
    assert made == ("gpt2" if name.startswith("gpt2") else name.partition("-")[0])


def test_a_model_of_no_family_is_refused() -> None:
    assert config_of(job(GPT), GPT)["model_type"] == "gpt2"
    with pytest.raises(Unsupported, match="no Hugging Face family"):
        config_of(job(MIXTURE), MIXTURE)
    with pytest.raises(Unsupported, match="model_type t5 are not read"):
        list(bonds(LLAMA, "t5"))
