"""Check that two versions of the code train bit-identical models.

    python scripts/same_weights.py BEFORE [AFTER]

BEFORE and AFTER are Git revisions (AFTER: the working tree by default). Both versions run the same commands with fixed
seeds on a small generated corpus: vocabulary training, corpus preparation, pre-training with several objectives and
masking strategies, every kind of fine-tuning, and distillation. The SHA-256 hashes of all written files except logs are
compared, and the exit code is 1 if any file differs.

Only flags that both versions know are used; ``--rate``, ``--batch`` and ``--length`` are aliases in newer versions.
"""

import argparse
import hashlib
import os
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Files written by training that need not be equal: they contain times, the version and the names of settings, or are
# reports that not every version writes.
LOGS = {
    "adapter.json",
    "README.md",
    "metrics.jsonl",
    "run.json",
    "curves.png",
    "distillation.json",
    "eval_results.json",
    "predictions.tsv",
    "resamples.json",
}

NOUNS = ["river", "doctor", "garden", "ship", "letter", "teacher", "mountain", "window", "bridge", "child"]
VERBS = ["sees", "finds", "leaves", "likes", "paints", "follows", "remembers", "builds", "sells", "hears"]
PLACES = ["in London", "near Paris", "at home", "by the sea", "in the rain"]

# Folder that a command writes -> its arguments; {data} is the folder of generated files, {out} the folder of results.
COMMANDS = {
    "vocabulary": "vocab {data}/text.txt --out {out}/vocabulary --size 200 --workers 1",
    "corpus": "prepare {data}/text.txt --vocab {out}/vocabulary --out {out}/corpus",
    "nsp": "pretrain {out}/corpus --out {out}/nsp --preset tiny --steps 30 --batch 8 --length 32",
    "sop": "pretrain {out}/corpus --out {out}/sop --preset tiny --steps 20 --batch 8 --length 32 --objective sop "
    "--masking word --accumulate 2",
    "spans": "pretrain {out}/corpus --out {out}/spans --preset tiny --steps 20 --batch 8 --length 32 --objective none "
    "--masking span --boundary",
    "phases": "pretrain {out}/corpus --out {out}/phases --preset tiny --steps 20 --batch 8 --length 16 "
    "--long-length 64 --masking ngram --static 3",
    "further": "pretrain {out}/corpus --out {out}/further --model {out}/nsp --steps 10 --batch 8 --length 32",
    "classify": "finetune classify {data}/classify.csv --model {out}/nsp --out {out}/classify --epochs 2 --length 32",
    "calibrated": "finetune classify {data}/classify.csv --model {out}/nsp --out {out}/calibrated --epochs 1 "
    "--length 32 --calibrate --class-weights balanced --layer-decay 0.9 --patience 2",
    "multilabel": "finetune multilabel {data}/multilabel.csv --model {out}/nsp --out {out}/multilabel --epochs 1 "
    "--length 32",
    "regress": "finetune regress {data}/regress.csv --pair pair --model {out}/nsp --out {out}/regress --epochs 1 "
    "--length 32",
    "tag": "finetune tag {data}/tag.conll --model {out}/nsp --out {out}/tag --epochs 2 --length 32",
    "answer": "finetune answer {data}/answer.jsonl --model {out}/nsp --out {out}/answer --epochs 1 --length 32 "
    "--stride 8",
    "choose": "finetune choose {data}/choose.csv --options a,b,c --model {out}/nsp --out {out}/choose --epochs 1 "
    "--length 32",
    "houlsby": "finetune classify {data}/classify.csv --model {out}/nsp --out {out}/houlsby --epochs 1 --length 32 "
    "--adapter houlsby",
    "lora": "finetune classify {data}/classify.csv --model {out}/nsp --out {out}/lora --epochs 1 --length 32 "
    "--adapter lora",
    "frozen": "finetune tag {data}/tag.conll --model {out}/nsp --out {out}/frozen --epochs 1 --length 32 "
    "--frozen mix --feature-head lstm",
    "augmented": "finetune classify {data}/classify.csv --model {out}/nsp --out {out}/augmented --epochs 1 --length 32 "
    "--augment contextual",
    "similarity": "finetune similarity {data}/text.txt --model {out}/nsp --out {out}/similarity --epochs 1 --length 32",
    "correction": "finetune correction {data}/correction.csv --text source --label target --model {out}/nsp "
    "--out {out}/correction --epochs 1 --length 32",
    "distilled": "distill classify {data}/classify.csv --model {out}/classify --out {out}/distilled --layers 1 "
    "--epochs 1",
}


def write_data(folder: Path) -> None:
    """Generate a text and a table for every kind of task."""
    random.seed(0)

    def sentence() -> str:
        return f"The {random.choice(NOUNS)} {random.choice(VERBS)} a {random.choice(NOUNS)} {random.choice(PLACES)}."

    def write(name: str, *lines: str) -> None:
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def options(number: int) -> list[str]:
        return [random.choice(NOUNS) for _ in range(2 + number % 2)] + [""] * (1 - number % 2)

    texts = [sentence() for _ in range(120)]
    write("text.txt", *(line for number in range(600) for line in (sentence(), *([""] if number % 8 == 7 else []))))
    write("classify.csv", "text,label", *(f"{text},{'ab'[len(text) % 2]}" for text in texts))
    write(
        "multilabel.csv",
        "text,label",
        *(f"{text},{'x|y' if 'sea' in text else 'xyz'[len(text) % 3]}" for text in texts),
    )
    write("regress.csv", "text,pair,label", *(f"{text},{sentence()},{len(text) / 10}" for text in texts))
    words = [text.removesuffix(".").split() for text in texts]
    write("tag.conll", *(line for row in words for line in (*(f"{word} {_tag(word)}" for word in row), "")))
    rows = [(text, text.split()[1]) for text in texts]
    write(
        "answer.jsonl",
        *(f'{{"question": "Who is it?", "context": "{text}", "answer": "{noun}"}}' for text, noun in rows),
    )
    write("choose.csv", "text,a,b,c,label", *(",".join([text, *options(i), "0"]) for i, text in enumerate(texts)))
    write(
        "correction.csv",
        "source,target",
        *(f"{text.replace('a', 'the', i % 2)},{text}" for i, text in enumerate(texts)),
    )


def _tag(word: str) -> str:
    return "B-LOC" if word in ("London", "Paris") else "O"


def run(source: Path, data: Path, out: Path) -> dict[str, str]:
    """Run all commands with the code of a source tree; return path -> SHA-256 of each written file."""
    out.mkdir()
    environment = os.environ | {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    for name, words in COMMANDS.items():
        command = [sys.executable, "-m", "cloze", *shlex.split(words.format(data=data, out=out))]
        command += ["--threads", "1"] if words.split()[0] in ("pretrain", "finetune", "distill") else []
        # Set explicitly, because the defaults of newer versions depend on the model and the rows.
        command += ["--rate", "1e-3", "--batch", "16"] if words.split()[0] in ("finetune", "distill") else []
        done = subprocess.run(command, env=environment, cwd=data, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} failed with the code of {source}:\n{shlex.join(command)}\n{done.stderr}")
    paths = sorted(path for path in out.rglob("*") if path.is_file() and path.name not in LOGS)
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def main() -> None:
    """Compare two versions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", help="a Git revision")
    parser.add_argument("after", nargs="?", help="a Git revision; the working tree by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "data").mkdir()
        write_data(work / "data")
        digests = []
        # Both versions use the same path, because model folders record the path of their base.
        for revision in (options.before, options.after):
            source = ROOT if revision is None else work / "code"
            if revision is not None:
                subprocess.run(
                    ["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", source, revision], check=True
                )
            try:
                digests.append(run(source, work / "data", work / "out"))
            finally:
                (work / "out").rename(work / f"out-{len(digests)}")
                if revision is not None:
                    subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", source], check=True)
        before, after = digests
    different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    weights = [name for name in before if name.endswith(".safetensors")]
    for name in different:
        print(f"{name}: {'differs' if name in before and name in after else 'is written by one version only'}")
    print(f"{len(before)} files, {len(weights)} of them weights: {len(different)} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
