"""Which saved tensors are kept, made again, offloaded or compressed."""
