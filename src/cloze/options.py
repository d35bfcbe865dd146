"""Literal types and constants that several packages share. Imports nothing heavy: settings and the CLI load this."""

from typing import Literal

# What to do with a text longer than the model's maximum length: see text/encoding.py.
LongTexts = Literal["cut", "head-tail", "windows"]

# What may be trained in place of the whole model: see model/adapters.py.
AdapterKind = Literal["houlsby", "lora"]
# Which frozen hidden states a head reads, and the kind of head: see model/frozen_features.py.
Features = Literal["last", "last4", "mix"]
FeatureHead = Literal["linear", "lstm"]

# What the head of a task reads: [CLS] through the pooler, or the mean of the token states without it: see
# model/backbone.py.
HeadPooling = Literal["cls", "mean"]

# Precision of predictions: see predict/quantization/precision.py.
PrecisionName = Literal["auto", "fp32", "bf16", "int8"]

# A target that the loss ignores, as in PyTorch.
IGNORED = -100

# Maximum tokens of an answer, as in the original BERT code, unless a model was fine-tuned with another limit.
LONGEST_ANSWER = 30
