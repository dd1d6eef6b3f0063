# Two commands do everything: `make demo` and `make test`. Both make their own virtual environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all test-fast test-scripts docs lint wheel release fuzz bounds versions clock mutants nightly clean

demo: $(VENV)/ready
	mkdir -p demo
	$(BIN)/plan profile examples/gpt2.py -o demo/graph.yaml
	$(BIN)/plan solve demo/graph.yaml --budget 60% -o demo/schedule.json
	$(BIN)/plan check demo/schedule.json --graph demo/graph.yaml
	$(BIN)/plan run demo/schedule.json --graph demo/graph.yaml --model examples/gpt2.py

# Compiled files are written even where the environment says no: each process of a test would compile all sources.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --durations 30 \
	--durations-min 5

# The suite: eight minutes on two cores. Its last line says what it took of the processors.
test: $(VENV)/ready
	$(PYTEST) -m "not scripts and not exhaustive and not clock" $(PYTEST_OPTIONS)

# What is heavy: processes, other packages' trainers, large models, more cases of what the suite samples.
test-scripts: $(VENV)/ready
	$(PYTEST) -m "scripts and not exhaustive and not clock" $(PYTEST_OPTIONS)

# All tests and all cases, in more than an hour.
test-all: $(VENV)/ready clock
	$(PYTEST) -m "not clock" $(PYTEST_OPTIONS)

# Times compared, one test after the other: on a quiet machine.
clock: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m clock $(PYTEST_OPTIONS)

# Some tests of every subpackage, in less than 90 seconds.
test-fast: $(VENV)/ready
	$(PYTEST) -m "not scripts and not exhaustive and not clock" $(PYTEST_OPTIONS) $$(cut -f 2 tests/fast.tsv | sort -u)

# The site, build/docs/index.html, and all examples in it.
docs: $(VENV)/ready
	$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	$(PYTEST) docs/examples.py

fuzz: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fuzz.py --minutes 3 --most 300 --seed 9 --jobs 2

# Mutants of all packages: which do the tests kill? Both go on where they were ended (benchmarks/mutants.py).
mutants: $(VENV)/ready
	$(BIN)/python benchmarks/mutants.py record
	$(BIN)/python benchmarks/mutants.py run --count 200
	$(BIN)/python benchmarks/mutants.py table

# All there is, for a night: before an issue is called resolved. CI leaves out heavy tests of what is as it was then.
nightly: test-all bounds fuzz mutants
	printf '%s\t%s\n' "$$(git rev-parse HEAD)" "$$(date +%F)" >> tests/nightly.tsv

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --project tests --pythonpath $(BIN)/python
	$(BIN)/lint-imports

wheel: $(VENV)/ready
	PYTHON=$(BIN)/python sh tests/wheel.sh

# What an index would take: both archives, their metadata, the README as it renders, one version, a run of the wheel.
release: $(VENV)/ready
	PYTHON=$(BIN)/python sh tests/release.sh

# The lower bounds of pyproject.toml, but .venv's torch: another is gigabytes. `versions`: the oldest and newest of all.
bounds: $(VENV)/ready
	PYTHON=$(PYTHON) sh tests/versions.sh bounds

versions: $(VENV)/ready
	PYTHON=$(PYTHON) sh tests/versions.sh oldest
	PYTHON=$(PYTHON) sh tests/versions.sh newest

clean:
	rm -rf $(VENV) build dist demo

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "memplan needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
