"""Plain modules of the catalogue's specs; no parallel code in them."""
