"""An estimate shown: as tables for a terminal, as a trace for Perfetto."""
