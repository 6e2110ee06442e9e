"""What is saved for backward: kept, recomputed, compressed or offloaded."""
