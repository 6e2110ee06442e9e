"""Parameter counts against the papers and model cards that print them."""

from __future__ import annotations

import pytest

from profiles.models.catalog import model, names
from profiles.models.decoder import decoder_graph
from profiles.models.graph import Kind
from profiles.models.param_count import Parameters, parameters
from profiles.models.spec import DecoderSpec
from tests.support.rows import Obtained

# Narayanan et al. (SC'21), table 1, in 10^9: every digit must be met.
SC21 = {
    "gpt-1.7b": 1.7,
    "gpt-3.6b": 3.6,
    "gpt-7.5b": 7.5,
    "gpt-18.4b": 18.4,
    "gpt-39.1b": 39.1,
    "gpt-76.1b": 76.1,
    "gpt-145.6b": 145.6,
    "gpt-310.1b": 310.1,
    "gpt-529.6b": 529.6,
    "gpt-1t": 1008.0,
}
# Brown et al. 2020, table D.1, in 10^6; our vocabulary is 51200, theirs 50257.
GPT3 = {
    "gpt-125m": 125,
    "gpt-350m": 356,
    "gpt-760m": 760,
    "gpt-1.3b": 1320,
    "gpt-2.7b": 2650,
    "gpt-6.7b": 6660,
    "gpt-13b": 12850,
    "gpt-175b": 174600,
}
# Model cards (and Llama 1's table 2), in 10^9.
CARDS = {
    "llama-7b": 6.74,
    "llama-13b": 13.02,
    "llama-30b": 32.5,
    "llama-65b": 65.3,
    "llama2-7b": 6.74,
    "llama2-13b": 13.02,
    "llama2-70b": 68.98,
    "llama3-8b": 8.03,
    "llama3-70b": 70.55,
    "llama3-405b": 405.85,
    "llama3.2-1b": 1.24,
    "llama3.2-3b": 3.21,
    "mistral-7b": 7.24,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 140.6,
    "dbrx": 132,
    "deepseek-v2": 236,
    "deepseek-v2-lite": 15.7,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "llama4-scout": 107.8,  # of 109 with its vision encoder
    "llama4-maverick": 400.7,
    # Rajbhandari et al. (ICML 2022): 13 and 52 B; exactly P + 12 · 127 · 8h²
    "gpt-350m-moe-128": 13.1,
    "gpt-1.3b-moe-128": 52.4,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.72,
    "qwen3-4b": 4.02,
    "qwen3-8b": 8.19,
    "qwen3-14b": 14.77,
    "qwen3-32b": 32.76,
    "nemotron-h-8b": 8.1,  # arXiv 2504.03624
    "nemotron-3-nano-30b-a3b": 31.6,  # arXiv 2512.20848, table 1
    "nemotron-3-super-120b-a12b": 120.6,
    "jamba-v0.1": 51.6,  # "52B" of arXiv 2403.19887; its weights' index
    "jamba-1.5-large": 398,  # arXiv 2408.12570
    "minimax-text-01": 456,  # arXiv 2501.08313
}
# What a token meets, by the model cards, in 10^9.
ACTIVE = {
    "mixtral-8x22b": 39.1,
    "dbrx": 36,
    "deepseek-v2": 21.4,
    "qwen3-30b-a3b": 3.35,
    "qwen3-235b-a22b": 22.2,
    "gpt-oss-120b": 5.7,
    "llama4-scout": 17.2,
    "llama4-maverick": 17.2,
    "nemotron-3-nano-30b-a3b": 3.6,
    "nemotron-3-super-120b-a12b": 12.7,
    "jamba-v0.1": 12,
    "jamba-1.5-large": 94,
}
DECODERS = [name for name in names() if isinstance(model(name).spec, DecoderSpec)]


def counted(name: str) -> Parameters:
    return parameters(model(name).spec)


@pytest.mark.parametrize("name", SC21)
def test_sc21_to_the_digit_given(name: str) -> None:
    assert round(counted(name).total / 1e9, 1) == SC21[name]


@pytest.mark.row(
    "J1",
    "million parameters of the eight sizes",
    expected="125; 356; 760; 1320; 2650; 6660; 12850; 174600 (1.5 %)",
)
@pytest.mark.parametrize("name", GPT3)
def test_gpt3_within_1_5_percent(name: str, obtained: Obtained) -> None:
    obtained(f"{counted(name).total / 1e6:.0f}")
    assert counted(name).total / 1e6 == pytest.approx(GPT3[name], rel=0.015)


@pytest.mark.row(
    "I5",
    "billion parameters of the models, DeepSpeed-MoE among them",
    expected="52 and 13 (0.5 % of 52.4 and 13.1)",
    evidence="computed",
)
@pytest.mark.parametrize("name", CARDS)
def test_model_cards_within_half_a_percent(name: str) -> None:
    assert counted(name).total / 1e9 == pytest.approx(CARDS[name], rel=0.005)


def test_experts_count_once_and_act_when_chosen() -> None:
    """Mixtral: 12.9 B active (section 2.1). DeepSeek-V3: 671 B, 37 B active, and for
    multi-token prediction 11.5 B beside the shared embedding and head (its notes on
    the weights)."""
    for name, billions in ACTIVE.items():
        assert counted(name).active / 1e9 == pytest.approx(billions, rel=0.02)
    mixtral, deepseek = counted("mixtral-8x7b"), counted("deepseek-v3")
    assert mixtral.active / 1e9 == pytest.approx(12.9, rel=0.005)
    assert deepseek.total / 1e9 == pytest.approx(671, rel=0.001)
    assert deepseek.active / 1e9 == pytest.approx(37, rel=0.02)
    assert deepseek.prediction / 1e9 == pytest.approx(11.5, rel=0.015)
    assert deepseek.trained == deepseek.total + deepseek.prediction


def test_hybrids_whose_cards_count_other_parts() -> None:
    """Qwen3-Next: 80 B with the layer that predicts one more token, 79 without the
    tables. Nemotron 3 Ultra: 550 and 55 B, active without a table. MiniMax-01: 45.9 B
    active without the head. Qwen3.5: 35 B with a vision encoder of 0.45 B."""
    qwen, ultra = counted("qwen3-next-80b-a3b"), counted("nemotron-3-ultra-550b-a55b")
    assert qwen.total / 1e9 == pytest.approx(80, rel=0.01)
    assert (qwen.total - qwen.embedding - qwen.head) / 1e9 == pytest.approx(
        79, rel=0.01
    )
    assert ultra.total / 1e9 == pytest.approx(550, rel=0.01)
    assert (ultra.active - ultra.embedding) / 1e9 == pytest.approx(55, rel=0.01)
    minimax = counted("minimax-text-01")
    beside = minimax.embedding + minimax.head
    assert (minimax.active - beside) / 1e9 == pytest.approx(45.9, rel=0.005)
    text = counted("qwen3.5-35b-a3b").total / 1e9
    assert text + 0.45 == pytest.approx(35, rel=0.01)


@pytest.mark.row(
    "D2", "parameters of BERT-large over ALBERT-large", expected="334 M over 18 M: 18.6"
)
def test_albert_large_has_18_times_fewer_than_bert_large(obtained: Obtained) -> None:
    """Lan et al. (ICLR 2020), table 1: 334 and 18 million, however many layers there
    are: 24 of them share one set of weights."""
    bert, albert = counted("bert-large"), counted("albert-large")
    assert bert.total / 1e6 == pytest.approx(334, rel=0.007)
    assert albert.total / 1e6 == pytest.approx(18, rel=0.02)
    obtained(f"{bert.total / albert.total:.1f}")
    assert bert.total / albert.total == pytest.approx(334 / 18, rel=0.02)
    assert sum(count for one, count in albert.layers if one.total) == 1
    bare = 30_000 * 128 + 128 * 1024 + 512 * 128 + 2 * 128 + 12 * 1024**2 + 13 * 1024
    beside = 2 * 128 + 1024 + 1024**2 + 1024  # a norm, a bias and the pooler
    heads = 2 * 1024 + 2 + 128 * (1024 + 3) + 30_000  # its answer, and masked words
    assert albert.total == bare + beside + heads


@pytest.mark.parametrize("name", DECODERS)
def test_parts_sum_to_the_total(name: str) -> None:
    spec, found = model(name).spec, counted(name)
    assert isinstance(spec, DecoderSpec)
    assert sum(count for _, count in found.layers) == spec.layers
    layers = sum(
        (layer.attention + layer.mlp + layer.norms) * count
        for layer, count in found.layers
    )
    outside = found.embedding + found.position + found.final_norm + found.head
    assert found.total == layers + outside
    assert found.active <= found.total <= found.trained
    assert (found.active == found.total) == (spec.moe is None)
    assert (found.head == 0) == spec.tied_embeddings


@pytest.mark.parametrize("name", DECODERS)
def test_the_operator_graph_holds_the_same_parameters(name: str) -> None:
    spec = model(name).spec
    assert isinstance(spec, DecoderSpec)
    graph = decoder_graph(spec, name)
    total = 0
    for block, count in graph.blocks:
        for operator in block.operators:
            total += count * operator.vectors * block.extents[operator.vector_dim]
            if operator.contracted and operator.has_weight and not operator.shared:
                width = sum(block.extents[column] for column in operator.columns)
                rows = block.extents[operator.contracted] + operator.bias
                grouped = operator.kind is Kind.GROUPED_MATMUL
                copies = block.extents["experts"] if grouped else 1
                total += count * width * rows * copies
    tied = spec.vocab * spec.hidden if spec.tied_embeddings else 0
    assert total - tied == counted(name).trained
