"""Facts: models, devices, clusters and measured samples. No decision is in them."""

__version__ = "0.1.0"
__all__: list[str] = []
