"""PipeDream's planner (Narayanan et al., SOSP 2019) on the profiles that its authors
released: the stages that their optimizer prints (`--activation_compression_ratio 1`).

The numbers are those of profiler/image_classification/profiles/*/graph.txt in
msr-fiddle/pipedream (MIT licence; 128 and 256 images): of each operator but the
input, in order, milliseconds there and back, bytes handed on and bytes of weights. An
operator whose input is wanted once more hands that on, too.
"""

from __future__ import annotations

import pytest

from planner.baselines.pipedream import LayerProfile, Unit, pipedream_split

VGG_16 = (
    (46.92, 1_644_167_168, 7_168),
    (9.999, 1_644_167_168, 0),
    (159.531, 1_644_167_168, 147_712),
    (9.766, 1_644_167_168, 0),
    (9.374, 411_041_792, 0),
    (54.803, 822_083_584, 295_424),
    (5.097, 822_083_584, 0),
    (75.441, 822_083_584, 590_336),
    (5.133, 822_083_584, 0),
    (4.999, 205_520_896, 0),
    (29.149, 411_041_792, 1_180_672),
    (2.757, 411_041_792, 0),
    (44.481, 411_041_792, 2_360_320),
    (3.103, 411_041_792, 0),
    (48.133, 411_041_792, 2_360_320),
    (2.87, 411_041_792, 0),
    (2.682, 102_760_448, 0),
    (23.823, 205_520_896, 4_720_640),
    (1.722, 205_520_896, 0),
    (37.259, 205_520_896, 9_439_232),
    (1.527, 205_520_896, 0),
    (40.445, 205_520_896, 9_439_232),
    (1.523, 205_520_896, 0),
    (1.583, 51_380_224, 0),
    (12.989, 51_380_224, 9_439_232),
    (1.05, 51_380_224, 0),
    (11.466, 51_380_224, 9_439_232),
    (0.653, 51_380_224, 0),
    (12.69, 51_380_224, 9_439_232),
    (0.63, 51_380_224, 0),
    (0.787, 12_845_056, 0),
    (0, 12_845_060, 0),
    (0, 12_845_056, 0),
    (7.05, 2_097_152, 411_058_176),
    (0.407, 2_097_152, 0),
    (0, 2_097_152, 0),
    (1.443, 2_097_152, 67_125_248),
    (0.309, 2_097_152, 0),
    (0, 2_097_152, 0),
    (0.941, 512_000, 16_388_000),
)
ALEXNET = (
    (28.721, 198_246_400, 93_184),
    (1.546, 198_246_400, 0),
    (1.904, 47_775_744, 0),
    (8.74, 143_327_232, 1_229_568),
    (1.335, 143_327_232, 0),
    (1.44, 33_226_752, 0),
    (9.87, 66_453_504, 2_655_744),
    (0.696, 66_453_504, 0),
    (11.62, 44_302_336, 3_539_968),
    (0.727, 44_302_336, 0),
    (8.312, 44_302_336, 2_360_320),
    (0.7, 44_302_336, 0),
    (0.697, 9_437_184, 0),
    (0, 9_437_188, 0),
    (0, 9_437_184, 0),
    (0, 9_437_184, 0),
    (4.809, 4_194_304, 151_011_328),
    (0.51, 4_194_304, 0),
    (0, 4_194_304, 0),
    (2.441, 4_194_304, 67_125_248),
    (0.326, 4_194_304, 0),
    (0.927, 1_024_000, 16_388_000),
)


def chain(profile: tuple[tuple[float, int, int], ...]) -> list[LayerProfile]:
    return [
        LayerProfile(seconds=ms / 1e3, activation_bytes=sent, weight_bytes=weights)
        for ms, sent, weights in profile
    ]


# (end of a stage, its replicas); seconds a minibatch, speed-up over one GPU and over
# data parallelism, as the released optimizer prints them.
SPLITS = [
    (VGG_16, 16, 1.25e9, ((24, 13), (32, 2), (40, 1)), 0.054795, 12.27, 2.66),
    (VGG_16, 16, 2.5e9, ((25, 15), (40, 1)), 0.046321, 14.52, 2.03),
    (VGG_16, 16, 3.125e9, ((25, 15), (40, 1)), 0.045525, 14.77, 1.84),
    (VGG_16, 16, 1e10, ((17, 12), (25, 3), (40, 1)), 0.043227, 15.56, 1.27),
    (VGG_16, 4, 1e9, ((17, 3), (40, 1)), 0.205521, 3.27, 2.84),
    (ALEXNET, 16, 1.25e9, ((16, 15), (22, 1)), 0.015099, 5.65, 3.39),
]


@pytest.mark.parametrize(
    ("profile", "gpus", "rate", "stages", "seconds", "over_one", "over_replicas"),
    SPLITS,
)
def test_the_split_is_that_of_the_released_optimizer(
    profile: tuple[tuple[float, int, int], ...],
    gpus: int,
    rate: float,
    stages: tuple[tuple[int, int], ...],
    seconds: float,
    over_one: float,
    over_replicas: float,
) -> None:
    """Of cuts that are equally good (between operators that take no time, or beside a
    stage that is not the slowest) any; all replicas are theirs."""
    layers = chain(profile)
    found = pipedream_split(layers, [Unit(count=gpus, bytes_per_s=rate)])
    assert [one.replicas for one in found.stages] == [many for _, many in stages]
    assert found.seconds == pytest.approx(seconds, abs=5e-7)
    assert slowest_s(layers, stages, rate) == pytest.approx(found.seconds, rel=1e-12)
    alone_s = sum(layer.seconds for layer in layers)
    assert alone_s / found.seconds == pytest.approx(over_one, abs=0.005)
    replicas_s = slowest_s(layers, ((len(layers), gpus),), rate)
    assert replicas_s / found.seconds == pytest.approx(over_replicas, abs=0.005)


def slowest_s(
    layers: list[LayerProfile], stages: tuple[tuple[int, int], ...], rate: float
) -> float:
    """Seconds of the slowest stage: its passes and its synchronisation, or what it gets
    from the stage before."""
    first, worst_s = 0, 0.0
    for end, many in stages:
        stage = layers[first:end]
        weights = sum(layer.weight_bytes for layer in stage)
        sync_s = 4 * (many - 1) * weights / (rate * many)
        worst_s = max(worst_s, (sum(layer.seconds for layer in stage) + sync_s) / many)
        if first:
            sent_s = 2 * layers[first - 1].activation_bytes / (rate * many)
            worst_s = max(worst_s, sent_s)
        first = end
    return worst_s
