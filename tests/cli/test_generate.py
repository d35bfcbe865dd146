import csv
import json
from pathlib import Path

from cloze.checkpoint import ModelFolder, save_folder
from cloze.model import Gpt
from tests.cli.conftest import Cloze
from tests.predict.test_generation import CONFIG, TOKENIZER


def test_the_command_prints_and_writes(tmp_path: Path, run: Cloze) -> None:
    folder = tmp_path / "model"
    save_folder(ModelFolder(Gpt.fresh(CONFIG, ["lm"], seed=3), TOKENIZER), folder)
    flags = ("--model", str(folder), "--tokens", "5", "--temperature", "0")
    done = run("generate", "winter", *flags)
    assert done.code == 0
    assert done.out.startswith("winter ")
    row = json.loads(run("generate", "winter", *flags, "--json").out)
    assert row["text"] == "winter"
    assert done.out.strip() == f"winter {row['continuation']}"
    (tmp_path / "texts.txt").write_text("winter\ngarden house\n", encoding="utf-8")
    output = tmp_path / "out.csv"
    assert run("generate", "--input", str(tmp_path / "texts.txt"), "--output", str(output), *flags[:4]).code == 0
    with output.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [one["text"] for one in rows] == ["winter", "garden house"]
    refused = run("generate", "winter", *flags[:2], "--top-p", "2")
    assert refused.code == 2
    assert "top_p is 2.0" in refused.complaint
