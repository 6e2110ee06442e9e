"""`Machine`: everything a price depends on that is not the model or the layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from costmodel.machine.calibration import Calibrated, Calibration, step_names
from costmodel.machine.coefficients import (
    Coefficients,
    Watched,
    blocked,
    framework_in_training,
    links_in_training,
    load_coefficients,
    rates_in_training,
)
from costmodel.machine.collectives import (
    LinkRates,
    collective_s,
    link_rates,
    send_s,
    unknown_kinds,
)
from costmodel.machine.framework import (
    DEFAULT,
    Framework,
    framework_at,
    framework_on,
    load_framework,
    shares_cores,
)
from costmodel.machine.measured import Come, Measured
from costmodel.machine.pace import slower_framework, slower_links, slower_rates
from costmodel.machine.provenance import Sourced
from costmodel.machine.rates import Rates, rates_of
from profiles.arrays import Array
from profiles.hardware import Cluster, Device, Format, Island
from profiles.models import Job
from profiles.samples import Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A cluster with its fitted rates, and the software that runs on it.

    `measured` are the samples of a profile, which come before rates. A cluster of
    unlike islands has no one island: `islands` says which ranks run on which machine
    and keeps them in `among`; rates and links here are those of the first.
    `imbalance` is how many times the mean the busiest expert's tokens are, `apart_s`
    what is computed between two messages; None: long enough not to matter. `pace` is
    how many times as long everything takes as rates, links and samples say alone,
    `known` what runs of the user's own told, if any did.
    """

    cluster: Cluster
    rates: Rates
    links: LinkRates
    framework: Framework
    measured: Measured | None = None
    imbalance: float = 1.0
    pace: float = 1.0
    known: Calibrated | None = field(default=None, compare=False, repr=False)
    plain: Framework | None = None  # the software before coefficients
    fitted: Coefficients = field(default_factory=load_coefficients, repr=False)
    apart_s: Array | None = field(default=None, compare=False, repr=False)
    among: dict[tuple[int, ...], tuple[Machine, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def of(self, cluster: Cluster) -> Machine:
        """Another cluster under the same software."""
        device = cluster.device
        rates = rates_in_training(rates_of(device), device, self.fitted)
        links = links_in_training(link_rates(cluster.island), device, self.fitted)
        return replace(
            self,
            cluster=cluster,
            rates=slower_rates(rates, self.pace),
            links=slower_links(links, self.pace),
        )

    def paced(self, times: float) -> Machine:
        """The same machine, everything on it taking so many *times* as long."""
        if times == 1.0:
            return self
        return replace(
            self,
            rates=slower_rates(self.rates, times),
            links=slower_links(self.links, times),
            framework=slower_framework(self.framework, times),
            measured=self.measured and self.measured.paced(times),
            pace=self.pace * times,
        )

    @property
    def island(self) -> Island:
        return self.cluster.island

    @property
    def device(self) -> Device:
        """Of unlike islands, the first one's."""
        return self.cluster.islands[0].device

    @property
    def shares_cores(self) -> bool:
        """Whether ranks communicate with the cores that compute: nothing is hidden."""
        return shares_cores(self.device)

    @property
    def sends_in_passes(self) -> bool:
        """Whether a message between stages takes the cores that compute.

        Among CPU ranks of a node it is a copy. Where every node has one rank, it is on
        the wire while its sender goes on, as on a GPU.
        """
        several = any(island.domain > 1 for island in self.cluster.islands)
        return self.shares_cores and several

    @property
    def turns(self) -> float:
        """How many ranks share a core of the profiled machine
        (`costmodel.timeline.processor_sharing`)."""
        return 1.0 if self.measured is None else self.measured.turns

    @property
    def knows_gaps(self) -> bool:
        """Whether messages were measured soon after another, and long after."""
        return self.measured is not None and self.measured.gaps_s is not None

    def sending(self, apart_s: Array) -> Machine:
        """The same machine while so much is computed between two messages."""
        return replace(self, apart_s=apart_s)

    @property
    def has_host_floor(self) -> bool:
        """Whether a host issues kernels beside the device. On a CPU it is the device,
        and its samples contain it."""
        return self.measured is None or not self.shares_cores

    @property
    def step_s(self) -> float:
        """What every step takes beside the model, on the host of a GPU."""
        return self.framework.host.step_s if self.has_host_floor else 0.0

    def hides(self, seconds: Array) -> Array:
        """How many *seconds* of compute hide what is communicated beside it."""
        return np.zeros(()) if self.shares_cores else seconds

    def fitted_as(self, fitted: Coefficients) -> Machine:
        """The same machine under other coefficients."""
        fresh = machine(self.cluster, self.plain, fitted=fitted).paced(self.pace)
        return replace(
            self,
            rates=fresh.rates,
            links=fresh.links,
            framework=fresh.framework,
            fitted=fitted,
        )

    @property
    def names(self) -> frozenset[str]:
        """The coefficients that its prices are made of."""
        watched = Watched(self.fitted)
        machine(self.cluster, self.plain, fitted=watched)
        return frozenset(watched.asked)

    def calibrated(self, by: Calibration | None, job: Job, precision: str) -> Machine:
        """The same machine as a user's own runs have it, training *job*."""
        if by is None:
            return self
        framework, device = self.framework.name, self.device.name
        sampled = self.measured is not None
        paces = step_names(framework, device, precision, job, sampled=sampled)
        known = Calibrated(
            calibration=by,
            names=self.names | frozenset(paces),
            framework=framework,
            device=device,
        )
        on = replace(self, plain=known.remembering(self.plain or self.framework))
        on = on.fitted_as(by.coefficients_in(self.fitted))
        return replace(on.paced(by.pace(known.names)), known=known)

    def running(self, gpus: int) -> Machine:
        """The same machine while *gpus* of its devices are at work."""
        if self.measured is None:
            return self
        on_node = min(gpus, self.island.devices_per_node)
        return replace(self, measured=self.measured.crowded(on_node))

    def remarks(self) -> tuple[str, ...]:
        """What a reader of a price should know of the samples and rates behind it."""
        measured = () if self.measured is None else tuple(self.measured.remarks())
        return (*measured, *unknown_kinds(self.cluster.levels))

    def operator(
        self,
        local: Callable[[], tuple[str, Sequence[Any]]],
        direction: str,
        number: Format,
        roofline: Callable[[], Array],
        where: Any = True,
        share: Any = 1.0,
    ) -> Sourced:
        """A pass of an operator as it was measured, else *roofline*.

        *local* gives its kind and its dimensions on a rank; samples are asked only
        *where* the operator is what was measured, or a *share* of it.
        """
        if self.measured is None:
            return Sourced(seconds=roofline())
        kind, dims = local()
        found = self.measured.operator(kind, direction, dims, number.value)
        if found is not None and not np.all(where):
            found = found.known_where(where)
        return _or_else(found and found * share, roofline)

    def step(self, kind: str, parameters: Array) -> Sourced | None:
        """A part of a step over *parameters* as it was measured; None if it was not."""
        return None if self.measured is None else self.measured.step(kind, parameters)

    def collective(
        self,
        kind: str,
        size_bytes: Array,
        *,
        ranks: Array,
        near: Array,
        pieces: Any = 1,
        shares: Any = 1.0,
        beside: bool = False,
    ) -> Sourced:
        """A collective over groups with *near* members in a fast domain, which have so
        many *shares* of its NICs (`placement.shares`); with a product *beside* it, CPU
        ranks wait less.

        Where it was measured, as so many messages of equal size.
        """

        def roofline() -> Array:
            return collective_s(
                kind,
                size_bytes,
                ranks=ranks,
                ranks_per_node=near,
                rates=self.links,
                shares=shares,
                pieces=pieces,
            )

        if self.measured is None:
            return Sourced(seconds=roofline())
        found = self.measured.exchange(
            kind,
            size_bytes / pieces,
            ranks=ranks,
            near=near,
            island=self.island,
            come=Come(beside=beside, apart_s=self.apart_s),
        )
        return _or_else(found and found * pieces, roofline)

    def once_a_step(self, found: Sourced) -> Sourced:
        """A collective *found* at a step's end: fitted rates are those beside
        compute, samples are as they are."""
        return found.unless_sampled(self.framework.gradients.reduction)

    def collective_s(
        self, kind: str, size_bytes: Array, *, ranks: Array, near: Array
    ) -> Array:
        """Seconds of a collective over groups with *near* members in a fast domain."""
        return self.collective(kind, size_bytes, ranks=ranks, near=near).seconds

    def send(
        self,
        size_bytes: Array,
        *,
        far: Array,
        shares: Any = 1.0,
        changes_rail: Any = False,
    ) -> Sourced:
        """A point-to-point transfer, between fast domains where *far*: with so many
        *shares* of a domain's NICs (`placement.shares`), to another rail where it
        *changes_rail*."""
        far = np.asarray(far, dtype=bool)

        def roofline() -> Array:
            return send_s(
                size_bytes,
                same_node=~far,
                rates=self.links,
                shares=shares,
                changes_rail=changes_rail,
            )

        if self.measured is None:
            return Sourced(seconds=roofline())
        inside, outside = (
            self.measured.send(size_bytes, far=one, island=self.island)
            for one in (False, True)
        )
        if inside is None:  # as where every node has one rank
            return _or_else(outside and outside.known_where(far), roofline)
        if outside is None or not far.any():
            return _farther(inside, far, roofline)
        return inside.where(~far | changes_rail) + outside.where(far)

    def shift(
        self,
        size_bytes: Array,
        times: Array,
        *,
        ranks: Array,
        near: Array,
        shares: Any = 1.0,
        changes_rail: Any = False,
    ) -> Sourced:
        """A step of a ring over groups with *near* members in a fast domain: everybody
        sends to the next, so many *times*; who leaves a domain, with so many *shares*
        of its NICs.

        CPU ranks that send and receive at once wait for each other, as in a collective;
        where that was not measured, and on GPUs, which do both at once, a transfer.
        """
        sent = self.send(
            size_bytes * times,
            far=near < ranks,
            shares=shares,
            changes_rail=changes_rail,
        )
        if self.measured is None or not self.shares_cores:
            return sent
        found = self.measured.exchange(
            "shift",
            size_bytes,
            ranks=ranks,
            near=near,
            island=self.island,
            come=Come(apart_s=self.apart_s),
        )
        if found is None:
            return sent
        return (found * times).or_else(lambda: sent.seconds)

    def send_s(self, size_bytes: Array, *, far: Array) -> Array:
        """Seconds of a point-to-point transfer, between fast domains where *far*."""
        return self.send(size_bytes, far=far).seconds


def _or_else(found: Sourced | None, roofline: Callable[[], Array]) -> Sourced:
    return Sourced(seconds=roofline()) if found is None else found.or_else(roofline)


def _farther(inside: Sourced, far: Array, roofline: Callable[[], Array]) -> Sourced:
    """*roofline* where *far*, but never less than what was measured inside."""
    if not far.any():
        return inside * np.ones_like(far, dtype=float)
    least = np.maximum(roofline(), inside.seconds)
    return inside.where(~far) + Sourced(seconds=least * far)


def machine(
    cluster: Cluster,
    framework: Framework | None = None,
    *,
    samples: Samples | None = None,
    fitted: Coefficients | None = None,
) -> Machine:
    """The machine that *cluster* is under *framework* (default: this project).

    *samples* of its device are prices that come before fitted rates; *fitted* are
    other coefficients than the installed ones. Raises StaleProfile if the samples are
    another device's.
    """
    known = fitted or load_coefficients()
    device = cluster.islands[0].device
    base = framework or framework_on(load_framework(DEFAULT), device)
    return Machine(
        cluster=cluster,
        rates=rates_in_training(rates_of(device), device, known),
        links=links_in_training(link_rates(cluster.islands[0]), device, known),
        framework=framework_at(
            cluster, framework_in_training(base, device, known), blocked(cluster, known)
        ),
        plain=base,
        fitted=known,
        measured=None if samples is None else _measured(samples, device),
    )


def _measured(samples: Samples, device: Device) -> Measured:
    """The samples, by whichever name they know *device*."""
    names = {name.lower() for name in (device.name, *device.aliases)}
    known = {key.device for key in samples.operators}
    called = next((name for name in known if name.lower() in names), device.name)
    samples.require(device=called)
    return Measured(samples=samples, device=called, shares_cores=shares_cores(device))
