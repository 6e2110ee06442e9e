"""`costmodel.machine.kernels`: seconds that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.machine.kernels import (
    AttentionShape,
    ElementBytes,
    alignment_slowdown,
    attention_flops,
    attention_s,
    grouped_matmul_s,
    matmul_s,
    traffic_s,
)
from costmodel.machine.rates import (
    AttentionRate,
    MatmulRate,
    Rates,
    Residual,
    TrafficRate,
)
from profiles.errors import UnknownName, Unsupported
from profiles.hardware.clusters import Device
from profiles.hardware.precisions import Format
from tests.support.toy import figure

EXACT = Residual(median=0.0, p90=0.0, points=0)


# 4 multiprocessors, 1 TFLOP/s, 1 GB/s: memory never binds unless a test says so.
TOY = Device(
    name="toy",
    architecture="none",
    memory=figure(1, "GB"),
    usable_memory=figure(1, "GB"),
    memory_bandwidth=figure(1000, "TB/s"),
    peak={
        "bf16": figure(1, "TFLOP/s"),
        "fp8": figure(2, "TFLOP/s"),
        "fp32": figure(0.1, "TFLOP/s"),
    },
    multiprocessors=4,
    host_link=figure(1, "GB/s"),
)
IDEAL = Rates(
    device="toy",
    kin=None,
    matmul=MatmulRate(
        sustained={},
        default=1.0,
        edge=0.0,
        fill_k=0.0,
        wave=1.0,
        bandwidth=1.0,
        overhead_s=0.0,
        group_s=0.0,
        source="unit test",
        residual=EXACT,
    ),
    traffic=TrafficRate(
        fraction=0.5, overhead_s=1e-6, source="unit test", residual=EXACT
    ),
    attention={
        "flash-2": AttentionRate(
            forward=1.0, backward=0.5, source="unit test", residual=EXACT
        ),
        "materialised": AttentionRate(
            forward_bytes_per_score=10.0,
            backward_bytes_per_score=20.0,
            source="unit test",
            residual=EXACT,
        ),
    },
    launch_s=1e-5,
    launch_source="unit test",
)


def with_matmul(**fields: float) -> Rates:
    return replace(IDEAL, matmul=replace(IDEAL.matmul, **fields))  # type: ignore[arg-type]


def seconds(*shape: float, rates: Rates = IDEAL, number: Format = Format.BF16) -> float:
    return float(matmul_s(*shape, device=TOY, rates=rates, number=number))


def test_whole_waves_run_at_peak() -> None:
    # 1024 x 512 is 4 x 4 tiles of 256 x 128: four whole waves.
    assert seconds(1024, 512, 1000) == pytest.approx(2 * 1024 * 512 * 1000 / 1e12)


def test_a_partly_filled_wave_costs_a_whole_one() -> None:
    whole = seconds(512, 256, 1000)
    # The smallest tiles are 64 x 64: 33 of them need 9 waves of 4, 32 need 8.
    assert seconds(512 + 64, 256, 1000) / whole == pytest.approx(9 / 8)
    assert seconds(1, 1, 1000) == seconds(64, 64, 1000) == pytest.approx(whole / 8)


def test_no_wave_loss_leaves_tiles() -> None:
    smooth = with_matmul(wave=0.0)
    assert seconds(64, 64, 1000, rates=smooth) == pytest.approx(
        2 * 64 * 64 * 1000 / 1e12
    )


def test_edges_make_small_tiles_dear() -> None:
    edged = with_matmul(edge=64.0, wave=0.0)
    small, large = (64 * 64 + 64 * 128) / 64**2, 1 + 64 * (1 / 256 + 1 / 128)
    slow = seconds(64, 64, 1000, rates=edged)
    assert slow == pytest.approx(2 * 64 * 64 * 1000 / 1e12 * small / large)
    assert seconds(1024, 512, 1000, rates=edged) == pytest.approx(
        seconds(1024, 512, 1000)
    )


def test_filling_takes_as_long_in_a_faster_format() -> None:
    filled = with_matmul(fill_k=100.0)
    assert seconds(256, 128, 400, rates=filled) / seconds(
        256, 128, 400
    ) == pytest.approx(1.25)
    lost_s = seconds(256, 128, 400, rates=filled) - seconds(256, 128, 400)
    eight = [
        seconds(256, 128, 400, rates=r, number=Format.FP8) for r in (filled, IDEAL)
    ]
    assert eight[0] - eight[1] == pytest.approx(lost_s)


def test_a_sliver_is_bound_by_memory() -> None:
    slow = replace(TOY, memory_bandwidth=figure(1, "GB/s"))
    moved = 2 * (64 * 64 + 64 * 64 + 64 * 64)
    found = matmul_s(64, 64, 64, device=slow, rates=IDEAL, number=Format.BF16)
    assert float(found) == pytest.approx(moved / 1e9, rel=0.01)
    wide = matmul_s(
        64,
        64,
        64,
        device=slow,
        rates=IDEAL,
        number=Format.BF16,
        stored=ElementBytes(output=8),
    )
    assert float(wide) == pytest.approx((moved + 6 * 64 * 64) / 1e9, rel=0.01)


def test_batches_fill_waves_together() -> None:
    assert seconds(64, 64, 1000, 4) == pytest.approx(seconds(64, 64, 1000))
    assert seconds(64, 64, 1000, 5) == pytest.approx(2 * seconds(64, 64, 1000))


def test_groups_cost_their_launches() -> None:
    grouped = with_matmul(group_s=1e-3)
    keywords = {"device": TOY, "rates": grouped, "number": Format.BF16}
    for groups in (1, 5):
        found = grouped_matmul_s(groups, 64, 64, 64, **keywords)  # type: ignore[arg-type]
        plain = matmul_s(64, 64, 64, groups, **keywords)  # type: ignore[arg-type]
        assert float(found - plain) == pytest.approx(1e-3 * (groups - 1))


def test_overhead_is_paid_once() -> None:
    late = with_matmul(overhead_s=1.0)
    assert seconds(64, 64, 64, rates=late) - seconds(64, 64, 64) == pytest.approx(1.0)


def test_arrays_broadcast_like_scalars() -> None:
    m, n = np.array([[64.0], [1000.0], [4096.0]]), np.array([128.0, 777.0])
    found = matmul_s(m, n, 512, device=TOY, rates=IDEAL, number=Format.BF16)
    assert found.shape == (3, 2)
    each = [[seconds(a, b, 512) for b in n] for a in m[:, 0]]
    assert found == pytest.approx(np.array(each))


def test_a_format_the_device_lacks_is_refused() -> None:
    with pytest.raises(Unsupported, match="nvfp4"):
        seconds(64, 64, 64, number=Format.NVFP4)


SHAPE = AttentionShape(
    batch_heads=16, seq_q=1024, seq_kv=1024, head_dim=64, causal=False
)


def attention(kernel: str, direction: str, **fields: object) -> float:
    sizes = {
        name: fields.pop(name) for name in ("head_dim", "causal") if name in fields
    }
    shape = replace(SHAPE, **sizes)  # type: ignore[arg-type]
    ways = {"device": TOY, "rates": IDEAL, "number": Format.BF16, **fields}
    return float(attention_s(kernel, direction, shape, **ways))  # type: ignore[arg-type]


def test_flash_costs_its_flops() -> None:
    flops = 4 * 16 * 1024**2 * 64
    assert float(attention_flops(SHAPE)) == flops
    assert attention("flash-2", "forward") == pytest.approx(flops / 1e12)
    assert attention("flash-2", "backward") == pytest.approx(2.5 * flops / 0.5e12)


def test_a_causal_mask_halves_flash_only() -> None:
    flash = attention("flash-2", "forward", causal=True)
    assert flash == pytest.approx(attention("flash-2", "forward") / 2)
    written = attention("materialised", "forward", causal=True)
    assert written == attention("materialised", "forward")


def test_the_last_block_is_late() -> None:
    rate = replace(IDEAL.attention["flash-2"], forward_tail=1.0)
    late = replace(IDEAL, attention={"flash-2": rate})
    block_s = 4 * 128 * 1024 * 64 / 0.25e12  # a full row, on one of 4 processors
    found = attention("flash-2", "forward", rates=late)
    assert found - attention("flash-2", "forward") == pytest.approx(block_s)


def test_small_heads_are_less_efficient() -> None:
    rate = replace(IDEAL.attention["flash-2"], half_head=64.0)
    half = replace(IDEAL, attention={"flash-2": rate})
    assert attention("flash-2", "forward", head_dim=128, rates=half) == pytest.approx(
        attention("flash-2", "forward", head_dim=128)
    ), "rates are given at head size 128"
    slow = attention("flash-2", "forward", head_dim=64, rates=half)
    assert slow / attention("flash-2", "forward") == pytest.approx(2 * 128 / 192)


def test_written_scores_cost_bytes_beside_their_products() -> None:
    slow = replace(TOY, memory_bandwidth=figure(0.001, "TB/s"))
    scores = 16 * 1024**2
    found = attention("materialised", "forward", device=slow)
    outer = 16 * 2 * (2 * 1024 * 64 + 1024**2) / 1e9
    assert found == pytest.approx(2 * outer + scores * 10 / 0.5e9 + 3e-6, rel=0.01)
    backward = attention("materialised", "backward", device=slow)
    assert backward == pytest.approx(4 * outer + scores * 20 / 0.5e9 + 3e-6, rel=0.01)


def test_scores_of_16_bits_are_cast_for_the_softmax() -> None:
    slow = replace(TOY, memory_bandwidth=figure(0.001, "TB/s"))
    eager = replace(IDEAL.attention["materialised"], forward_cast_bytes=5.0)
    casting = replace(IDEAL, attention={"materialised": eager})
    score_s = 16 * 1024**2 / 0.5e9

    def found(rates: Rates, number: Format, direction: str = "forward") -> float:
        return attention(
            "materialised", direction, device=slow, rates=rates, number=number
        )

    more = found(casting, Format.BF16) - found(IDEAL, Format.BF16)
    assert more == pytest.approx(5 * score_s)
    assert found(casting, Format.FP32) == found(IDEAL, Format.FP32)
    backward = found(casting, Format.BF16, "backward")
    assert backward == found(IDEAL, Format.BF16, "backward")


def test_scores_of_32_bits_are_counted_kernel_by_kernel() -> None:
    slow = replace(TOY, memory_bandwidth=figure(0.001, "TB/s"))
    outer_s = 16 * 4 * (2 * 1024 * 64 + 1024**2) / 1e9
    for direction, calls, moved in (("forward", 2, 24), ("backward", 4, 28)):
        found = attention("materialised", direction, device=slow, number=Format.FP32)
        score_s = 16 * 1024**2 * moved / 0.5e9
        assert found == pytest.approx(calls * outer_s + score_s, rel=0.01)


def test_a_slowdown_is_of_the_products_only() -> None:
    once = attention("materialised", "forward")
    twice = attention("materialised", "forward", slowdown=2.0)
    written = 16 * 1024**2 * 10 / 0.5e15 + 3e-6
    assert twice - written == pytest.approx(2 * (once - written))
    assert attention("flash-2", "forward", slowdown=2.0) == attention(
        "flash-2", "forward"
    )


def test_a_kernel_the_device_lacks_is_the_next_older() -> None:
    assert attention("flash-3", "forward") == attention("flash-2", "forward")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="flash-2"):
        attention("flash-two", "forward")
    with pytest.raises(UnknownName, match="backward"):
        attention("flash-2", "backwards")


def test_traffic_is_bytes_and_launches() -> None:
    found = traffic_s([0, 5e14], device=TOY, rates=IDEAL, kernels=3)
    assert found == pytest.approx([3e-6, 1 + 3e-6])


def test_misaligned_heads_lose_the_tensor_cores() -> None:
    # BLOOM's first trials: 14400 / 96 = 150 is no multiple of 8.
    assert alignment_slowdown([128, 150, 64], TOY) == pytest.approx([1, 10, 1])
    plain = replace(TOY, peak={"bf16": figure(1, "TFLOP/s")})
    assert alignment_slowdown(150, plain) == pytest.approx(1)
