"""The kinds of tasks that a model is fine-tuned to (section 4 of the paper, figure 4), and ways to read long texts.

Light to import: settings and the command line read it.
"""

from typing import Literal

# classify: one label a text; multilabel: any number of them; regress: a number; tag: a label a word; answer: where in
# a text the answer to a question stands; choose: which of several continuations fits.
TaskKind = Literal["classify", "multilabel", "regress", "tag", "answer", "choose"]

# What becomes of a text beyond a model's length: text/truncation.py tells.
LongTexts = Literal["cut", "head-tail", "windows"]

# What may be trained in place of the model: model/adapters.py and model/adapters.py.
AdapterKind = Literal["houlsby", "lora"]
# Which frozen states are read, and by what: model/frozen_features.py.
Features = Literal["last", "last4", "mix"]
FeatureHead = Literal["linear", "lstm"]

# In which numbers a prediction is computed: predict/quantization/precision.py.
PrecisionName = Literal["auto", "fp32", "bf16", "int8"]

# A target where nothing is asked, as PyTorch has it.
IGNORED = -100

# Tokens of the longest stretch that may be an answer, as in the original, unless a model was fine-tuned otherwise.
LONGEST_ANSWER = 30
