"""Timings of ranks become samples, and noise is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.measure.machine import Busy, Noise, noise, spread
from profiles.measure.survey import Result
from profiles.measure.tables import _peaks, collective_samples, operator_samples
from profiles.measure.timing.tasks import FORWARD, Exchange, Operation, Request, Timing
from profiles.samples.table import ALONE, OperatorKey, Sample
from tests.profiles.measure.asked import REQUEST

PRODUCT = Operation(kind="matmul", direction=FORWARD, shape=(4, 2, 8), variant="bias")
MESSAGE = Exchange(collective="send", ranks=2, size_bytes=1024)


def request(device: str = "cpu", ranks: int = 3) -> Request:
    return replace(
        REQUEST,
        device=device,
        ranks=ranks,
        operations=(PRODUCT,),
        exchanges=(MESSAGE,),
    )


def result(*seconds: float, took_part: bool = True) -> Result:
    timing = Timing(seconds=seconds, saved_bytes=128.0)
    return Result(
        operations=(timing,),
        exchanges=(timing if took_part else None,),
        calibrations=((1.0, 1.0),),
        copy_bytes_per_s=1e9,
        cpu_s=1.0,
        facts={},
    )


RESULTS = (result(1.0, 2.0, 3.0), result(4.0, 4.0, 4.0), result(9.0, took_part=False))


def test_the_median_over_repeats_and_then_over_ranks() -> None:
    ((key, sample),) = operator_samples(
        request(), RESULTS, device="cpu-x", software="torch"
    ).items()
    assert (key.kind, key.shape, key.co_running) == ("matmul", (4, 2, 8), "ranks=3")
    assert (sample.seconds, sample.spread, sample.repeats) == (4.0, 0.0, 1)
    assert (sample.saved_bytes, sample.provenance) == (128.0, "measured, bias")


def test_who_took_no_part_does_not_count() -> None:
    ((key, sample),) = collective_samples(
        request(), RESULTS, fabric="loopback", network="ethernet"
    ).items()
    assert (key.collective, key.ranks, key.size_bytes) == ("send", (2,), 1024)
    assert (sample.seconds, sample.spread) == (3.0, 0.25)


@pytest.mark.parametrize(("device", "ranks"), [("cpu", 1), ("cuda", 3)])
def test_one_rank_and_gpus_are_alone(device: str, ranks: int) -> None:
    (key,) = operator_samples(
        request(device, ranks), RESULTS[:ranks], device="x", software="torch"
    )
    assert key.co_running == ALONE


def test_a_quiet_machine_is_called_quiet() -> None:
    before, after = Busy(busy_s=10.0, at_s=0.0), Busy(busy_s=12.0, at_s=10.0)
    quiet = noise([1.0, 1.01, 0.99, 1.0], before, after, 2.0)
    assert not quiet.noisy
    assert str(quiet).startswith("quiet: ")
    assert quiet.others == 0.0


def test_a_noisy_machine_is_called_noisy() -> None:
    before, after = Busy(busy_s=10.0, at_s=0.0), Busy(busy_s=1e6, at_s=10.0)
    crowded = noise([1.0, 1.0], before, after, 2.0)
    assert (crowded.noisy, crowded.others) == (True, 1.0)
    still = Busy(busy_s=12.0, at_s=10.0)
    uneven = noise([1.0, 1.5, 1.0, 1.5], before, still, 2.0)
    assert uneven.noisy
    assert str(uneven).startswith("noisy: ")
    assert spread([2.0]) == 0.0


def test_the_kernel_counts_busy_seconds() -> None:
    first, second = Busy.now(), Busy.now()
    assert 0 <= first.busy_s <= second.busy_s
    assert first.at_s <= second.at_s


def test_nodes_have_a_fabric_of_their_own_and_what_took_too_long_is_no_sample() -> None:
    far = Exchange(collective="all_reduce", ranks=4, nodes=2, size_bytes=1024)
    larger = Exchange(collective="all_reduce", ranks=4, nodes=2, size_bytes=4096)
    timing = Timing(seconds=(1.0,))
    results = [replace(RESULTS[0], exchanges=(timing, timing, None)) for _ in range(4)]
    asked = replace(request(), exchanges=(MESSAGE, far, larger))
    found = collective_samples(asked, results, fabric="loopback", network="ethernet")
    assert [str(key) for key in found] == [
        "send|2|1|1024|loopback",
        "all_reduce|2x2|1|1024|ethernet",
    ]


def test_operators_know_the_ranks_of_their_node() -> None:
    for nodes, crowd in ((1, "ranks=2"), (2, ALONE)):
        asked = replace(request(ranks=2), nodes=nodes)
        (key,) = operator_samples(asked, RESULTS[:2], device="x", software="torch")
        assert key.co_running == crowd


def test_of_several_machines_the_noisiest_counts() -> None:
    quiet = Noise(spread=0.01, drift=0.0, others=0.02)
    loud = Noise(spread=0.01, drift=0.0, others=0.5)
    assert max(quiet, loud) is loud
    assert max(loud, quiet) is loud


def test_a_machines_peak_is_of_convolutions_too() -> None:
    """A network may have no other products."""

    def key(kind: str, *shape: int) -> OperatorKey:
        return OperatorKey(
            device="cpu",
            software="torch",
            kind=kind,
            direction=FORWARD,
            shape=shape,
            precision="fp32",
            backend="eager",
        )

    second = Sample(seconds=1.0, spread=0.0, repeats=3, provenance="here")
    convolution = key("convolution-2d", 2, 3, 4, 1, 8, 8, 8, 8, 3, 3, 1, 1)
    found = _peaks({convolution: second, key("relu", 10, 10): second})
    assert found["fp32"].value == pytest.approx(2 * 2 * 64 * 4 * 3 * 9 / 1e9)
    transposed = key("convolution-2d", 2, 4, 3, 1, 8, 8, 16, 16, 2, 2, 2, 2)
    found = _peaks({transposed: second})
    assert found["fp32"].value == pytest.approx(2 * 2 * 64 * 4 * 3 * 4 / 1e9)
