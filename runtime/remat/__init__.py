"""What is saved for backward: kept, recomputed, compressed or offloaded."""

from runtime.remat.bit_allocation import (
    EXACT_BITS,
    allocated,
    sensitivity,
)
from runtime.remat.compressed_module import compress_module
from runtime.remat.dynamic import Rematerializer
from runtime.remat.quantized_activations import Quantizer

__all__ = [
    "EXACT_BITS",
    "Quantizer",
    "Rematerializer",
    "allocated",
    "compress_module",
    "sensitivity",
]
