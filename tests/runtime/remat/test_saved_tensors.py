"""`runtime.remat.apply` by name: what a layer keeps, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from costmodel.layout.checkpoint_segments import inner
from costmodel.layout.retention import (
    CORE,
    EVERYTHING,
    Action,
    Retention,
    Treatment,
    preset,
    recompute,
)
from profiles.errors import Unsupported
from profiles.models.decoder import decoder_graph
from profiles.models.spec import DecoderSpec
from runtime.models.decoder import Stage, initialise
from runtime.remat import apply as retention
from tests.support.fact_settings import SPEC

CPU = torch.device("cpu")
GPT = replace(SPEC, layers=3, position="learned", dropout=0.1)
LLAMA = replace(
    SPEC,
    layers=3,
    kv_heads=2,
    position="rotary",
    norm="rmsnorm",
    gated_mlp=True,
    activation="silu",
    qk_norm=True,
)
SPECS = {"gpt": GPT, "llama": LLAMA}
SEEN = {
    "input_norm_out": "input_norm",
    "qkv_out": "attention.qkv",
    "mlp_norm_out": "mlp_norm",
    "mlp_up_out": "mlp.up",
}
NAMES = (
    *("layer_in", "input_norm_out", "qkv_out", "rotary_out", "attention_out", CORE),
    *("projection_out", "attention_residual_out", "mlp_norm_out", "mlp_up_out"),
    *("activation_out", "mlp_down_out", "mlp_residual_out"),
)
AWAY = Treatment(action=Action.OFFLOAD, tier="cpu")
AGAIN = Treatment(action=Action.RECOMPUTE)
TREATMENTS = (AGAIN, AWAY, replace(AWAY, ratio=0.3))


def stage(spec: DecoderSpec) -> Stage:
    made = Stage(spec, ["0", "1", "2"])
    initialise(made, prefix="", layers=spec.layers, seed=1, device=CPU)
    return made


def trained(spec: DecoderSpec, *plans: Retention) -> tuple[list[Tensor], set[str]]:
    """Gradients of all parameters and of the input; what of `SEEN` was there between
    forward and backward."""
    module = stage(spec)
    made_by = seen(module)
    each = plans * 3 if len(plans) == 1 else plans
    retention.apply(module, each, dropout=spec.dropout > 0, device=CPU)
    torch.manual_seed(0)
    stream = torch.randn(2, 16, spec.hidden, requires_grad=True)
    made = module(stream)
    loss = made.square().mean()
    held = {name for name, storage in made_by if not storage.expired()}
    loss.backward()
    found = [stream.grad, *(one.grad for one in module.parameters())]
    return [one for one in found if one is not None], held


def seen(module: Stage) -> list[tuple[str, StorageWeakRef]]:
    """(name, storage) of what modules of `SEEN` make, filled by a forward."""
    made: list[tuple[str, StorageWeakRef]] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda _, given, out: made.append(
            (name, StorageWeakRef(out.untyped_storage()))
        )

    for number, layer in module.layers.items():
        for name, part in SEEN.items():
            layer.get_submodule(part).register_forward_hook(hook(f"{number} {name}"))
    return made


def distance(found: list[Tensor], wanted: list[Tensor]) -> float:
    assert len(found) == len(wanted)
    pairs = zip(found, wanted, strict=True)
    away = sum(float(((one - two) ** 2).sum()) for one, two in pairs)
    return float((away / sum(float((one**2).sum()) for one in wanted)) ** 0.5)


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[Tensor]]:
    return {name: trained(spec, Retention())[0] for name, spec in SPECS.items()}


PLANS = {
    "cheap-ops": lambda spec: preset("cheap-ops", block(spec)),
    "products": lambda spec: preset("qkv,mlp_up,mlp_down", block(spec)),
    "attention": lambda spec: recompute("attention_out", CORE),
    "almost all": lambda spec: recompute(*(set(NAMES) - {"layer_in", CORE})),
    "offloaded": lambda spec: Retention(tensors={EVERYTHING: AWAY}),
    "on a drive": lambda spec: Retention(
        tensors={EVERYTHING: replace(AWAY, tier="nvme")}
    ),
    "half": lambda spec: Retention(tensors={EVERYTHING: replace(AWAY, ratio=0.5)}),
    "selective, offloaded": lambda spec: Retention(
        tensors={CORE: AGAIN, EVERYTHING: AWAY}
    ),
    "full, offloaded": lambda spec: Retention(
        tensors={EVERYTHING: AGAIN, "layer_in": AWAY}
    ),
}


def block(spec: DecoderSpec):  # type: ignore[no-untyped-def]
    return decoder_graph(spec).runs[0][0]


@pytest.mark.parametrize("family", SPECS)
@pytest.mark.parametrize("plan", PLANS)
def test_gradients_are_as_if_all_were_kept(
    family: str, plan: str, wanted: Mapping[str, list[Tensor]]
) -> None:
    spec = SPECS[family]
    found, _ = trained(spec, PLANS[plan](spec))
    assert distance(found, wanted[family]) < 1e-6


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(SPECS)),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TREATMENTS)),
)
def test_any_treatment_of_any_tensors_changes_no_gradient(
    wanted: Mapping[str, list[Tensor]], family: str, tensors: dict[str, Treatment]
) -> None:
    found, _ = trained(SPECS[family], Retention(tensors=tensors))
    assert distance(found, wanted[family]) < 1e-6


def test_layers_of_a_segment_are_made_again_from_one_input(
    wanted: Mapping[str, list[Tensor]],
) -> None:
    for family, spec in SPECS.items():
        within = inner(block(spec))
        found, held = trained(spec, recompute(EVERYTHING), within, within)
        assert distance(found, wanted[family]) < 1e-6
        assert not held


@pytest.mark.parametrize(
    ("bits", "near"), [(16, 2e-3), (8, 1e-2), (4, 0.1), (2, 0.6), (1, 20.0)]
)
def test_packed_activations_give_gradients_nearby(bits: int, near: float) -> None:
    packs = Treatment(action=Action.COMPRESS, bits=bits)
    for spec in (replace(GPT, dropout=0.0), LLAMA):  # rounding draws numbers too
        kept, _ = trained(spec, Retention())
        found, _ = trained(spec, Retention(tensors={EVERYTHING: packs}))
        assert 1e-5 < distance(found, kept) < near


def test_what_is_not_kept_is_gone_between_forward_and_backward() -> None:
    spec = replace(GPT, dropout=0.0)
    everything = {f"{number} {name}" for number in range(3) for name in SEEN}
    assert trained(spec, Retention())[1] == everything
    for treatment in (
        AGAIN,
        AWAY,
        replace(AWAY, ratio=0.5),
        Treatment(action=Action.COMPRESS, bits=8),
    ):
        some = Retention(tensors={"mlp_up_out": treatment, "input_norm_out": treatment})
        gone = {one for one in everything if one.split()[1] in some.tensors}
        assert trained(spec, some)[1] == everything - gone


def test_what_nobody_carries_out_is_refused() -> None:
    part = Retention(tensors={"mlp_up_out": replace(AGAIN, ratio=0.5)})
    with pytest.raises(Unsupported, match="mlp_up_out is recomputed in part"):
        retention.apply(stage(GPT), [part] * 3, dropout=True, device=CPU)
