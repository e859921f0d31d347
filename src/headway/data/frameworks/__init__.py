"""Batches as tensors of PyTorch and TensorFlow."""
