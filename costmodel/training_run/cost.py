"""Money, energy and CO2 of so many hours of devices."""

from __future__ import annotations

from typing import Any, Final

from costmodel.options import RunOptions
from costmodel.simulation import Answer

PUE: Final = 1.1  # [assumed] of a large operator's data centre
CARBON_G_PER_KWH: Final = 429.0  # [assumed] mean of the United States
# Both as Patterson et al., "Carbon Emissions and Large Neural Network Training" (arXiv
# 2104.10350), take them for GPT-3.


def cost(found: Answer, device_hours: float, run: RunOptions) -> dict[str, Any]:
    """Dollars, kWh and kg; None where no price or no power is known."""
    pue = PUE if run.pue is None else run.pue
    carbon = CARBON_G_PER_KWH if run.carbon_intensity is None else run.carbon_intensity
    power_w, price = found.device_power_w, found.device_cost
    kwh = None if power_w is None else device_hours * power_w / 1e3 * pue
    return {
        "device_hours": device_hours,
        "dollars": None if price is None else device_hours * price,
        "energy_kwh": kwh,
        "co2_kg": None if kwh is None else kwh * carbon / 1e3,
    }


def assumed_of_cost(run: RunOptions) -> dict[str, float]:
    """What was not said, and so taken."""
    taken = {}
    if run.pue is None:
        taken["pue"] = PUE
    if run.carbon_intensity is None:
        taken["carbon_g_per_kwh"] = CARBON_G_PER_KWH
    return taken
