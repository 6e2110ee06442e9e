"""Deeds: a layout carried out by PyTorch on real devices."""

__all__: list[str] = []
