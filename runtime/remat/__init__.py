"""What backward needs: kept, recomputed, compressed or offloaded."""
