"""Int8 in compiled code, where there was a compiler: what ``predict/quantized.py`` does, in a fraction of the time."""
