"""Setting names of other libraries get the right suggestion, on the command line and in Python."""

from typing import Any

import pytest

import cloze
from cloze.cli import main
from cloze.errors import ConfigError
from cloze.options import NAMES_ELSEWHERE

ROWS = [{"text": "a fine day", "label": "good"}, {"text": "a dull day", "label": "bad"}] * 20
# What fine-tuning suggests for each name.
_EVERY_EPOCH = "; the dev rows are evaluated after every epoch; leave it out"
_LOGGED = "; the loss is logged to metrics.jsonl in the run's folder; leave it out"
EXPECTED = {
    "weight_decay_rate": "weight_decay",
    "hidden_dropout_prob": "dropout",
    "label_smoothing": "; labels are not smoothed; leave it out",
    "label_smoothing_factor": "; labels are not smoothed; leave it out",
    "max_grad_norm": "; gradients are clipped to norm 1; leave it out",
    "optim": "; the optimizer is AdamW; leave it out",
    "optimizer": "; the optimizer is AdamW; leave it out",
    "eval_steps": _EVERY_EPOCH,
    "compute_metrics": "; the task decides the metrics; leave it out",
    "metric_for_best_model": "; the first metric of the task selects the model; leave it out",
    "logging_steps": _LOGGED,
    "logging_dir": _LOGGED,
    "report_to": _LOGGED,
    "load_best_model_at_end": "patience",
    "save_strategy": "save_every",
    "save_total_limit": "; only the newest checkpoints are kept, and none of a finished run; leave it out",
    "push_to_hub": "; the model is a folder, which hf upload can upload; leave it out",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "max_epochs": "epochs",
    "max_steps": "epochs",
    "per_device_train_batch_size": "batch_size",
    "per_gpu_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "per_device_eval_batch_size": "; scoring needs no batch size; leave it out",
    "eval_batch_size": "; scoring needs no batch size; leave it out",
    "max_seq_length": "max_length",
    "max_seq_len": "max_length",
    "max_len": "max_length",
    "lr": "learning_rate",
    "warmup_ratio": "warmup",
    "warmup_proportion": "warmup",
    "lr_scheduler_type": "; after the warm-up, the learning rate falls linearly; leave it out",
    "gradient_accumulation_steps": "accumulate",
    "gradient_checkpointing": "checkpointing",
    "fp16": "precision",
    "bf16": "precision",
    "evaluation_strategy": _EVERY_EPOCH,
    "eval_strategy": _EVERY_EPOCH,
    "do_train": "; fine-tuning trains and then evaluates on the dev rows; leave it out",
    "do_eval": "; fine-tuning trains and then evaluates on the dev rows; leave it out",
    "early_stopping_patience": "patience",
    "save_steps": "save_every",
    "output_dir": "out",
    "overwrite_output_dir": "fresh",
    "model_name_or_path": "model",
    "model_name": "model",
    "num_labels": "; the labels are collected from the rows; leave it out",
    "train_file": "train",
    "train_dataset": "train",
    "validation_file": "dev",
    "eval_file": "dev",
    "eval_dataset": "dev",
    "text_column_name": "text",
    "label_column_name": "label",
    "lora_r": "adapter_size",
    "random_state": "seed",
    "use_cpu": "device",
    "no_cuda": "device",
}


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    return capsys.readouterr().err.rstrip("\n")


def test_whole_table_is_tested() -> None:
    assert EXPECTED.keys() == NAMES_ELSEWHERE.keys()


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("dashes", [True, False])
@pytest.mark.parametrize("out", [[], ["--out", "run"]])
def test_flags_get_the_flag_of_the_same_meaning(
    name: str, dashes: bool, out: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "--" + (name.replace("_", "-") if dashes else name)
    said = complaint(["finetune", "classify", "rows.csv", *out, flag, "3"], capsys)
    meant = EXPECTED[name]
    remedy = meant if meant.startswith(";") else f"; did you mean --{meant.replace('_', '-')}?"
    if meant == "train":
        remedy = "; the training file is the argument after the task: cloze finetune TASK FILE"
    assert said == f"cloze: error: unknown option {flag}{remedy}"


@pytest.mark.parametrize("name", EXPECTED)
def test_settings_get_the_setting_of_the_same_meaning(name: str) -> None:
    given: dict[str, Any] = {name: 3} | ({} if EXPECTED[name] == "train" else {"train": ROWS})
    with pytest.raises(ConfigError) as caught:
        cloze.finetune("classify", **given)
    meant = EXPECTED[name]
    remedy = meant if meant.startswith(";") else f"; did you mean {meant!r}?"
    assert str(caught.value) == f"there is no setting {name!r}{remedy}"


def test_pretraining_has_steps(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(["pretrain", "data", "--out", "run", "--max_steps", "3"], capsys)
    assert said == "cloze: error: unknown option --max_steps; did you mean --steps?"


def test_flags_may_have_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", "classify", "rows.csv", "--out", "run"]
    said = complaint([*words, "--learning_rate", "3"], capsys)
    assert said == "cloze: error: learning_rate is 3.0; expected a learning rate such as 1e-4"
    said = complaint([*words, "--weight_decay", "3"], capsys)
    assert said == "cloze: error: weight_decay is 3.0; expected a small number such as 0.01"
    said = complaint([*words, "--Epochs", "3"], capsys)
    assert said == "cloze: error: unknown option --Epochs; did you mean --epochs?"


@pytest.mark.parametrize(
    ("name", "meant"), [("weight-decay", "weight_decay"), ("num-train-epochs", "epochs"), ("Epochs", "epochs")]
)
def test_names_of_python_have_underscores(name: str, meant: str) -> None:
    given: dict[str, Any] = {name: 3}
    with pytest.raises(ConfigError, match=rf"^there is no setting '{name}'; did you mean '{meant}'\?$"):
        cloze.finetune("classify", ROWS, **given)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ner", "tag"),
        ("token-classification", "tag"),
        ("Text_Classification", "classify"),
        ("sentiment-analysis", "classify"),
        ("question-answering", "answer"),
        ("multiple-choice", "choose"),
        ("sts", "similarity"),
    ],
)
def test_tasks_of_other_libraries(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^unknown task '{name}'; did you mean '{meant}'\?$"):
        cloze.finetune(name, ROWS)


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [("adapter", "lor", "lora"), ("pooling", "men", "mean"), ("frozen", "lst", "last"), ("augment", "edit", "edits")],
)
def test_values_get_the_nearest_value(name: str, value: str, meant: str) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=rf"^{name} is '{value}'; did you mean '{meant}'\?$"):
        cloze.finetune("classify", ROWS, **given)
