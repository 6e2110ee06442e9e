"""Coefficients: what published training runs say that kernels alone do not.

A rate of a kernel or a link is measured alone. Inside training clocks are shared with
memory traffic, a host issues kernels one by one, and frameworks differ in what they
fuse and hide. Each such difference is one positive number with a name,

    quantity/owner[/narrower]      product/hopper, host/megatron, link/infiniband/ampere

owned by a device, a link, a kernel or a framework, never by a model, a paper or a row.
`benchmarks/fit_runs.py` fits them and writes `data/coefficients.json`: each has the
prior that it is held to, its standard error and how many runs it moves.

Rates of kernels and links alone are fitted to those, and have their own files with
residuals.

product      seconds of matrix products over those alone             per device
product-fp8  the same of 8- and 4-bit ones over 16-bit ones          per device
fill, wave   what small and partly filled products lose over alone   per device, all
attention    the same of flash kernels                               device, kernel
scores       bytes a score over those counted, of other kernels      kernel
link         seconds of a link's transfers over those inside training  per link
processor    host seconds on hosts of newer cards over an A100's     all
blocked      host seconds of an operator whose kernels are waited for    all
host, elementwise, contention, exposed_tensor …                      per framework
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from costmodel.machine.collectives import LinkRate, LinkRates
from costmodel.machine.framework import Framework, LaunchFloor
from costmodel.machine.rates import AttentionRate, MatmulRate, Rates
from profiles.errors import InvalidFile, UnknownName
from profiles.hardware import Cluster, Device, Format
from profiles.samples import SIXTEEN_BITS

PATH: Final = Path(__file__).parents[1] / "data" / "coefficients.json"
# Which quantity multiplies a framework's number, by its group and field.
FITTED: Final = {
    "host": {"forward_us": "host", "backward_us": "host"},
    "overlap": {"contention": "contention", "exposed_tensor": "exposed_tensor"},
    "gradients": {"reduction": "reduction"},
    "kernels": {"elementwise": "elementwise"},
    "moe": {
        "exposed": "exposed_expert",
        "issue": "expert_host",
    },
    "fp8": {"quantise_bytes": "quantise"},
}


# Of cards that came with hosts like those that issue times are of, or older.
OLDER_HOSTS: Final = ("pascal", "volta", "turing", "ampere")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One fitted number. `spread` and `error` are standard deviations of its logarithm:
    of the prior, and of the fit; `rows` is how many runs its fit hangs on."""

    name: str
    meaning: str
    prior: float
    spread: float
    source: str  # of the prior
    value: float
    error: float
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """A value for each name, and how it came about."""

    entries: tuple[Coefficient, ...]

    def of(self, quantity: str, *owners: str) -> float:
        """The value of *quantity* for the first of *owners* that has one, else of all;
        1 where nobody has.

        >>> Coefficients(entries=()).of("product", "hopper")
        1.0
        """
        values = self.values
        for owner in owners:
            name = f"{quantity}/{owner}"
            if name in values:
                return values[name]
        return values.get(quantity, 1.0)

    @property
    def values(self) -> Mapping[str, float]:
        return {item.name: item.value for item in self.entries}

    @property
    def digest(self) -> str:
        """A hash of all names and values: other coefficients have another."""
        words = repr([(item.name, item.value) for item in self.entries])
        return sha256(words.encode()).hexdigest()[:16]

    def changed(self, values: Mapping[str, float]) -> Coefficients:
        """The same coefficients with other *values*; raises UnknownName."""
        known = {item.name for item in self.entries}
        for name in values:
            if name not in known:
                raise UnknownName("coefficient", name, known)
        return Coefficients(
            entries=tuple(
                replace(item, value=values.get(item.name, item.value))
                for item in self.entries
            )
        )


class Watched(Coefficients):
    """Coefficients that note which of them are asked for."""

    asked: set[str]

    def __init__(self, known: Coefficients) -> None:
        object.__setattr__(self, "entries", known.entries)
        object.__setattr__(self, "asked", set())

    def of(self, quantity: str, *owners: str) -> float:
        """As `Coefficients.of`."""
        values = self.values
        names = (*(f"{quantity}/{owner}" for owner in owners), quantity)
        self.asked.update([name for name in names if name in values][:1])
        return Coefficients.of(self, quantity, *owners)


@lru_cache(maxsize=1)
def load_coefficients() -> Coefficients:
    """The fitted ones; raises InvalidFile if their file is damaged."""
    try:
        entries = msgspec.json.decode(PATH.read_bytes(), type=tuple[Coefficient, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidFile(f"{PATH} does not hold coefficients: {error}") from error
    return Coefficients(entries=entries)


def rates_in_training(rates: Rates, device: Device, fitted: Coefficients) -> Rates:
    """*rates* of *device* with its products and attention as fitted."""
    owners = device_owners(device)
    attention = {
        kernel: _attention(kernel, rate, owners, fitted)
        for kernel, rate in rates.attention.items()
    }
    return replace(
        rates,
        matmul=_products(rates.matmul, owners, fitted),
        attention=attention,
    )


def links_in_training(
    links: LinkRates, device: Device, fitted: Coefficients
) -> LinkRates:
    """*links* with the share of bandwidth that training leaves them, as fitted."""
    architecture = device.architecture.lower()

    def slowed(link: LinkRate) -> LinkRate:
        slower = fitted.of("link", f"{link.name}/{architecture}", link.name)
        return replace(link, training=_saturated(link.training / slower))

    return replace(links, inner=slowed(links.inner), outer=slowed(links.outer))


def framework_in_training(
    framework: Framework, device: Device, fitted: Coefficients
) -> Framework:
    """*framework* with its own numbers as fitted, on hosts that *device* comes with."""
    owners = (framework.name, framework.generation)
    changes: dict[str, dict[str, Any]] = {
        group: {
            field: getattr(getattr(framework, group), field)
            * fitted.of(quantity, *owners)
            for field, quantity in fields.items()
        }
        for group, fields in FITTED.items()
    }
    floor = framework.host.floor
    changes["host"]["floor"] = LaunchFloor(
        alone=floor.alone * fitted.of("sharpness", *owners),
        together=floor.together * fitted.of("together", *owners),
    )
    if not device.architecture.lower().startswith(OLDER_HOSTS):
        for field in ("forward_us", "backward_us"):
            changes["host"][field] *= fitted.of("processor")
    return framework.variant(**changes)


def blocked(cluster: Cluster, fitted: Coefficients) -> float:
    """How much longer a host takes to issue an operator that waits for each kernel."""
    return fitted.of("blocked") if cluster.blocks_launches else 1.0


def device_owners(device: Device) -> tuple[str, ...]:
    """Whose coefficients a device takes: its own, its kin's, its architecture's."""
    names = [device.name, device.kin] if device.kin else [device.name]
    return (*map(_slug, names), device.architecture.lower())


def _products(
    rate: MatmulRate, owners: tuple[str, ...], fitted: Coefficients
) -> MatmulRate:
    slower = fitted.of("product", *owners)
    half = Format.FP16.value  # 16 bits have one rate alone, whichever was measured
    alone = {half: rate.sustained_of(Format.FP16), **rate.sustained}
    sustained = {
        number: share / slower / fitted.of(f"product-{_width(number)}", *owners)
        for number, share in alone.items()
    }
    smaller = fitted.of("fill", *owners)
    return replace(
        rate,
        sustained=sustained,
        default=rate.default / slower,
        fill_k=rate.fill_k * smaller,
        edge=rate.edge * smaller,
        wave=min(rate.wave * fitted.of("wave", *owners), 1.0),
    )


def _width(number: str) -> str:
    """Formats of fewer than 16 bits share one factor: less power for each FLOP."""
    return Format.FP8.value if Format(number).bytes < SIXTEEN_BITS else number


def _saturated(share: float) -> float:
    """*share* of the bandwidth alone, which it approaches and never passes."""
    return float(share / (1.0 + share**8) ** 0.125)


def _attention(
    kernel: str, rate: AttentionRate, owners: tuple[str, ...], fitted: Coefficients
) -> AttentionRate:
    if rate.writes_scores:
        more = fitted.of("scores", kernel)
        return replace(
            rate,
            forward_bytes_per_score=rate.forward_bytes_per_score * more,
            backward_bytes_per_score=rate.backward_bytes_per_score * more,
            forward_cast_bytes=rate.forward_cast_bytes * more,
            backward_cast_bytes=rate.backward_cast_bytes * more,
        )
    names = (*(f"{kernel}/{owner}" for owner in owners), *owners, kernel)
    slower = fitted.of("attention", *names)
    return replace(rate, forward=rate.forward / slower, backward=rate.backward / slower)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
