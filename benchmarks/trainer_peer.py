"""Run transformers' Trainer on cloze's task rows, for benchmarks that compare the two."""

from pathlib import Path
from typing import Any

import torch

from minilm import minilm  # module in benchmarks/

BATCH, LENGTH, RATE, EPOCHS = 32, 128, 5e-5, 3
IGNORED = -100  # label id that the Trainer's loss ignores


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Task rows in the Trainer's format: texts or pairs with a target, or words with a target at their first piece."""

    def __init__(self, examples: Any, tokenizer: Any, pad: bool = False) -> None:
        options: dict[str, Any] = {"truncation": True, "max_length": LENGTH, "padding": "max_length" if pad else False}
        if hasattr(examples, "words"):
            encoded = tokenizer(examples.words, is_split_into_words=True, **options)
            targets = [_at_first_pieces(encoded.word_ids(row), tags) for row, tags in enumerate(examples.targets)]
        else:
            pairs = [examples.pairs] if examples.pairs is not None else []
            encoded, targets = tokenizer(examples.texts, *pairs, **options), examples.targets
        self.rows = [
            {name: values[row] for name, values in encoded.items()} | {"labels": target}
            for row, target in enumerate(targets)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def _at_first_pieces(words: list[int | None], tags: list[int]) -> list[int]:
    before = [None, *words]
    return [
        tags[word] if word is not None and word != last else IGNORED for last, word in zip(before, words, strict=False)
    ]


def make_trainer(data: Any, variant: str, seed: int, out: Path, callbacks: list[Any], steps: int = -1) -> Any:
    """Return a Trainer of MiniLM for the task, with the usual settings."""
    import transformers

    torch.manual_seed(seed)
    labels = 1 if data.labels is None else len(data.labels)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    tags = data.kind.name == "tag"
    maker: Any = (
        transformers.AutoModelForTokenClassification if tags else transformers.AutoModelForSequenceClassification
    )
    collator: Any = transformers.DataCollatorForTokenClassification if tags else transformers.DataCollatorWithPadding
    model = maker.from_pretrained(minilm(), num_labels=labels, dtype=torch.float32)
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        num_train_epochs=EPOCHS,
        max_steps=steps,
        warmup_steps=0.1,
        weight_decay=0.01,
        seed=seed,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        train_sampling_strategy="group_by_length" if "grouped" in variant else "random",
        bf16="bf16" in variant,
    )
    return transformers.Trainer(
        model,
        arguments,
        data_collator=collator(tokenizer),
        train_dataset=Rows(data.train, tokenizer, pad="128" in variant),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def trainer_score(data: Any, seed: int, out: Path) -> float:
    """Return the Trainer's dev score, computed with cloze's metrics."""
    from cloze.tasks.metrics import score
    from cloze.tasks.tagging.sequences import score_tags

    # Not grouped by length: the Trainer would process rows from longest to shortest, which cost 13 points on MRPC.
    trainer = make_trainer(data, "padded to the longest", seed, out, [])
    trainer.train()
    rows = Rows(data.dev, trainer.processing_class)
    found = trainer.predict(rows)
    metric = data.metrics[0]
    if data.kind.name == "tag":
        predicted, names = found.predictions.argmax(-1), data.labels.names
        expected = [[names[tag] for tag in tags] for tags in data.dev.targets]
        return float(score_tags(data.labels, expected, _tags(predicted, found.label_ids, expected, names))[metric])
    answers = found.predictions[:, 0].tolist() if data.labels is None else found.predictions.argmax(-1).tolist()
    return float(score(data.metrics[:1], data.dev.targets, answers)[metric])


def _tags(predicted: Any, label_ids: Any, expected: list[list[str]], names: Any) -> list[list[str]]:
    """Return each word's tag; words beyond the model's length, which the Trainer does not see, are O."""
    found = [[names[tag] for tag in row[marks != IGNORED]] for row, marks in zip(predicted, label_ids, strict=True)]
    return [tags + ["O"] * (len(words) - len(tags)) for tags, words in zip(found, expected, strict=True)]
