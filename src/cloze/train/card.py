"""The model card of a pre-trained model: what it is, what it was made from and how, how well it does."""

from collections.abc import Mapping
from typing import Any

from cloze.model import Bert
from cloze.text import Tokenizer
from cloze.train.settings import PretrainSettings

_OBJECTIVES = {
    "nsp": "masked language modelling and next-sentence prediction",
    "sop": "masked language modelling and sentence-order prediction",
    "none": "masked language modelling on full sentences",
}


def pretraining_card(
    bert: Bert,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    manifest: Mapping[str, Any],
    results: Mapping[str, float],
) -> str:
    """The card, as Markdown."""
    train = manifest["splits"]["train"]
    scores = {name: value for name, value in results.items() if name.startswith("held_out_")}
    told = "\n".join(f"- {name}: {value:.4f}" for name, value in scores.items()) or "- none: no text was held out"
    length = f"{settings.length} tokens" + (f", then {settings.long_length}" if settings.long_length else "")
    return (
        f"# BERT, {bert.config.layers} layers, hidden size {bert.config.hidden_size}\n\n"
        f"Pre-trained with cloze by {_OBJECTIVES[settings.objective]}.\n\n"
        f"- parameters: {bert.parameter_count():,}\n"
        f"- longest input: {tokenizer.max_length} tokens\n"
        f"- vocabulary: {tokenizer.size:,} pieces, {'uncased' if tokenizer.lowercase else 'cased'}\n"
        f"- text: {train['tokens']:,} tokens in {train['documents']:,} documents\n"
        f"- training: {int(results['steps']):,} steps of {settings.batch} sequences of {length}, "
        f"{results['hours']:.2f} hours, {int(results['tokens_seen']):,} tokens seen\n"
        f"- masking: {settings.masking}, {settings.mask_rate:.0%} of tokens, "
        f"{'/'.join(f'{100 * share:g}' for share in settings.mask_mix)}"
        f"{f', {settings.static} frozen variants' if settings.static else ''}\n"
        f"- peak rate {settings.rate:g}, warm-up {settings.warmup:.0%}, weight decay {settings.weight_decay:g}, "
        f"dropout {bert.config.dropout:g}, seed {settings.seed}\n\n"
        f"Held-out documents:\n\n{told}\n"
    )
