"""Int8 kernels in C, compiled where there is a compiler; the fallback is the linear layer of the package above."""
