"""Tensor parallelism of modules as people have them: what is split, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costmodel.layout.strategy import spell_out
from profiles.errors import Unsupported
from tests.runtime.ranks import on_ranks
from tests.support.small_layouts import FP32
from tests.support.training_cases import job

TP2 = replace(FP32, tp=2)
STYLES = {"transformer.h.*.mlp.c_fc": "column", "transformer.h.*.mlp.c_proj": "row"}


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_embd=32, n_head=4, vocab_size=64)
    return transformers.GPT2LMHeadModel(config).eval()


def tokens() -> Tensor:
    return torch.arange(24).view(2, 12)


def split(rank: int) -> dict[str, Any]:
    from torch.distributed.tensor import DTensor

    from runtime.api.entry import parallelize

    asked = spell_out(TP2, job("gpt").graph, 8)
    found: dict[str, Any] = {}
    for name, styles in (("gathered", None), ("paired", STYLES)):
        model: Any = parallelize(gpt2(), asked, styles=styles)
        made = model(tokens()).logits
        made.square().mean().backward()
        named: dict[str, Any] = dict(model.named_parameters())
        found[name] = {
            "made": made.detach(),
            "split": sum(isinstance(one, DTensor) for one in named.values()),
            "gradients": {
                key: whole.full_tensor() if isinstance(whole, DTensor) else whole
                for key, whole in ((key, one.grad) for key, one in named.items())
            },
        }
    return found


def test_gpt2s_transposed_layers_are_split() -> None:
    model = gpt2()
    wanted = model(tokens()).logits
    wanted.square().mean().backward()
    for seen in on_ranks(2, split):
        for name in ("gathered", "paired"):
            torch.testing.assert_close(seen[name]["made"], wanted.detach())
            assert seen[name]["split"] == 4 * 4 * 2  # weights and biases
            for key, one in model.named_parameters():
                torch.testing.assert_close(seen[name]["gradients"][key], one.grad)


class Fused(nn.Module):
    """Most of it is a stack of experts that no linear layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.experts = nn.Parameter(torch.zeros(4, 8, 16))


def refused(rank: int) -> list[str]:
    from runtime.api.entry import parallelize

    asked = spell_out(TP2, job("gpt").graph, 8)
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 48}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.Llama4TextConfig(
        **sizes, **heads, intermediate_size_mlp=48, num_local_experts=4, vocab_size=64
    )
    llama4 = transformers.Llama4ForCausalLM(config)
    said = []
    for module in (Fused(), llama4):
        with pytest.raises(Unsupported) as raised:
            parallelize(module, asked)
        said.append(str(raised.value))
    return said


def test_a_module_of_which_little_is_split_is_refused_by_name() -> None:
    pytest.importorskip("transformers")
    for fused, llama4 in on_ranks(2, refused):
        assert fused.startswith(
            "tp 2 would split 11% of the weights of Fused, and not "
        )
        assert "experts" in fused
        assert "experts.gate_up_proj" in llama4


class Attends(nn.Module):
    """A subclass of a linear layer that gives two tensors, and a weight that is read
    where it is not called."""

    class Scored(nn.Linear):
        def forward(self, given: Tensor) -> Any:
            made = super().forward(given)
            return made, made.sigmoid()

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.router, self.up = self.Scored(8, 4), nn.Linear(8, 64)

    def forward(self, stream: Tensor) -> Tensor:
        stream, _ = self.attention(stream, stream, stream)
        _, scores = self.router(stream)
        return self.up(stream) * scores.sum()  # type: ignore[no-any-return]


def attends(rank: int) -> Tensor:
    from runtime.api.entry import parallelize

    asked = spell_out(TP2, job("gpt").graph, 8)
    made: Tensor = parallelize(Attends(), asked)(torch.ones(2, 3, 8))
    return made.detach()


def test_what_only_looks_like_a_linear_layer_stays_whole() -> None:
    wanted = Attends()(torch.ones(2, 3, 8)).detach()
    for made in on_ranks(2, attends):
        torch.testing.assert_close(made, wanted)
