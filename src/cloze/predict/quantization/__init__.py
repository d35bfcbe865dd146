"""Inference precision: int8 and bfloat16 layers, quantization and the native kernels."""
