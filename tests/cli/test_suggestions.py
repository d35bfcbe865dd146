import pytest

from cloze.cli import main


@pytest.mark.parametrize(
    ("option", "suggestion"),
    [
        ("--num_train_epochs", "did you mean --epochs?"),
        ("--num-train-epochs", "did you mean --epochs?"),
        ("--per_device_train_batch_size", "did you mean --batch-size?"),
        ("--max_seq_length", "did you mean --max-length?"),
        ("--lr", "did you mean --learning-rate?"),
        ("--warmup_ratio", "did you mean --warmup?"),
        ("--output_dir", "did you mean --out?"),
        ("--model_name_or_path", "did you mean --model?"),
        ("--validation_file", "did you mean --dev?"),
        ("--train_file", "the training file is the argument after the task"),
    ],
)
def test_names_of_transformers_get_the_flag_of_the_same_meaning(
    option: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["finetune", "classify", "rows.csv", "--out", "run", option, "3"])
    assert stopped.value.code == 2
    assert f"cloze: error: unknown option {option}; {suggestion}" in capsys.readouterr().err
