"""The model card of a pre-trained model: what it is, which text and command made it, and its held-out metrics."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cloze import __version__
from cloze.model import Backbone
from cloze.text import Tokenizer
from cloze.train.settings import PretrainSettings

_OBJECTIVES = {
    "nsp": "masked language modelling and next-sentence prediction",
    "sop": "masked language modelling and sentence-order prediction",
    "none": "masked language modelling on full sentences",
}
_MOST_FILES = 10  # of the corpus, named in the card


def pretraining_card(
    bert: Backbone,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    manifest: Mapping[str, Any],
    results: Mapping[str, float],
    model: str | Path | None = None,
) -> str:
    """Return the card as Markdown.

    Args:
        bert: The trained model.
        tokenizer: Its tokenizer.
        settings: What it was trained with.
        manifest: The manifest of the prepared corpus.
        results: The metrics at the end of the run.
        model: The model that training started from; None if from scratch.
    """
    train = manifest["splits"]["train"]
    scores = {name: value for name, value in results.items() if name.startswith("held_out_")}
    held_out = (
        "\n".join(f"- {name}: {value:.4f}" for name, value in scores.items()) or "- none: too little text was held out"
    )
    length = f"{settings.max_length} tokens" + (f", then {settings.long_length}" if settings.long_length else "")
    cut = (
        f", in sequences of {settings.max_length} tokens (long: {settings.long_length})" if settings.long_length else ""
    )
    return (
        f"# BERT, {bert.config.layers} layers, hidden size {bert.config.hidden_size}\n\n"
        f"Pre-trained with cloze {__version__} by {_OBJECTIVES[settings.objective]}"
        f"{' and the boundaries of spans' if settings.boundary else ''}"
        f"{f', further from {model}' if model else ', from scratch'}.\n\n"
        f"- parameters: {bert.parameter_count():,}\n"
        f"- longest input: {tokenizer.max_length} tokens\n"
        f"- vocabulary: {tokenizer.size:,} pieces, {'uncased' if tokenizer.lowercase else 'cased'}\n"
        f"- text: {train['tokens']:,} tokens in {train['documents']:,} documents\n"
        f"- files: {_files(manifest['recipe']['texts'])}\n"
        f"- training: {int(results['steps']):,} steps of {settings.batch_size} sequences of {length}, "
        f"{results['hours']:.2f} hours, {int(results['tokens_seen']):,} tokens seen\n"
        f"- masking: {settings.masking}, {settings.mask_rate:.0%} of tokens, "
        f"{'/'.join(f'{100 * share:g}' for share in settings.mask_mix)}"
        f"{f', {settings.static} frozen variants' if settings.static else ''}\n"
        f"- peak learning rate {settings.learning_rate:g}, warm-up {settings.warmup:.0%}, "
        f"weight decay {settings.weight_decay:g}, dropout {bert.config.dropout:g}, seed {settings.seed}, "
        f"computed in {settings.precision}\n\n"
        "The command, where `DATA` is the folder of those files as `cloze prepare` wrote it, and `RUN` a new one:\n\n"
        f"```console\n{pretraining_command(settings, model)}\n```\n\n"
        f"Held-out documents{cut}:\n\n{held_out}\n"
    )


def pretraining_command(settings: PretrainSettings, model: str | Path | None = None) -> str:
    """Return the command line of these settings: every flag whose value is not the default.

    The folders of the corpus and the run differ from machine to machine; DATA and RUN stand for them.
    """
    words = ["cloze", "pretrain", "DATA", "--out", "RUN", *(["--model", str(model)] if model else [])]
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == field.default:
            continue
        words.append(f"--{field.name.replace('_', '-')}")
        if value is not True:
            words += map(str, value if isinstance(value, tuple) else (value,))
    return shlex.join(words)


def _files(texts: Sequence[tuple[str, str]]) -> str:
    """Return the files of a corpus with the first digits of their SHA-256; only some if there are many."""
    shown = [f"`{name}` ({digest[:12]})" for name, digest in texts[:_MOST_FILES]]
    more = len(texts) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
