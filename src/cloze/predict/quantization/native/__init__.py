"""Int8 kernels in C, compiled if a compiler is available; the fallback is ``predict/quantization/linear.py``."""
