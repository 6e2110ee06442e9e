"""The clock of a drive: rates of a file that is gone afterwards."""

from __future__ import annotations

from pathlib import Path

from profiles.hardware.catalog import DEFAULT_CLUSTER, cluster
from profiles.measure.drives import DriveRates, drive_rates, slowest, with_drives
from profiles.units import GB, TB, MiB


def test_a_drive_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = drive_rates(tmp_path, 2 * MiB)
    assert 0 < found.read < TB
    assert 0 < found.write < TB
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_file_has_no_rates(tmp_path: Path) -> None:
    found = drive_rates(tmp_path / "missing", MiB)
    assert found == DriveRates()
    island = cluster(DEFAULT_CLUSTER).island
    assert with_drives(island, found, "a test") == island


def test_nodes_have_what_the_slowest_drive_does() -> None:
    both = (
        DriveRates(read=3 * GB, write=1 * GB),
        DriveRates(read=2 * GB, write=2 * GB),
    )
    rates = slowest(both)
    assert rates == DriveRates(read=2 * GB, write=1 * GB)
    island = with_drives(cluster(DEFAULT_CLUSTER).island, rates, "a test")
    assert island.drive_read is not None
    assert island.drive_write is not None
    assert (island.drive_read.si, island.drive_write.si) == (2 * GB, GB)
