# One command each. `make` alone lists them. Paths are relative, and the folder may have spaces in its name.

PROFILE ?= quick
# The profile of the part on experiments; a variant as paper@corrected.
EXPERIMENTS ?= laptop
JOBS ?= 2
PYTHON ?= python3
VENV ?= .venv

PY := $(VENV)/bin/python
STAMP := $(VENV)/.vitplast-installed
# Of a file the name without its ending; a variant (paper@as-published) is part of it.
NAME := $(notdir $(subst .yaml,,$(subst .yml,,$(PROFILE))))
# A profile in a file keeps its folder, where results of a rehearsal lie beside it; pages run in folders of their own.
FROM := $(if $(findstring .y,$(EXPERIMENTS)),$(if $(filter /%,$(firstword $(EXPERIMENTS))),,$(CURDIR)/))
SHOWN := VITPLAST_PROFILE='$(NAME)' VITPLAST_EXPERIMENTS='$(FROM)$(EXPERIMENTS)'
VITPLAST := '$(PY)' -m vitplast
BUILD := '$(VENV)/bin/jupyter-book' build .
CODESPELL := '$(VENV)/bin/codespell'

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help env sweep gather keep book pages test search pretrain bench lint format linkcheck clean clean-all

export PYTHONUTF8 = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export HF_HUB_DISABLE_TELEMETRY = 1
# The kernels and the Jupyter settings of this environment, not those of the user's home folder.
export JUPYTER_PREFER_ENV_PATH = 1
export JUPYTER_PLATFORM_DIRS = 1
export PYDEVD_DISABLE_FILE_VALIDATION = 1
# A plotting back end chosen for the terminal would leave the pages without figures.
unexport MPLBACKEND

help: ## this list
	@echo "Usage: make TARGET [PROFILE=$(PROFILE)] [EXPERIMENTS=$(EXPERIMENTS)] [JOBS=$(JOBS)] [PYTHON=$(PYTHON)]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-12s %s\n", $$1, $$2 }'

env: $(STAMP) ## Python environment in .venv (made once, again when pyproject.toml changes)

# The stamp holds the folder that the environment was made for: after a move or a copy it is made anew, since the
# installed commands and the package would still be those of the old folder.
ifneq ($(file <$(STAMP)),$(CURDIR))
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml
	@if [ -s '$(STAMP)' ] && [ "$$(cat '$(STAMP)')" != "$(CURDIR)" ] || ! '$(PY)' -c pass 2>/dev/null; then \
	  command -v '$(PYTHON)' >/dev/null || \
	    { echo "$(PYTHON) is not found; name a Python of version 3.11 or newer: make env PYTHON=..." >&2; exit 1; }; \
	  '$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "vitplast needs Python 3.11 or newer, $(PYTHON) is $$('$(PYTHON)' -V 2>&1);" \
	      "name another one: make env PYTHON=..." >&2; exit 1; }; \
	  echo "making $(VENV) with $$('$(PYTHON)' -V)"; \
	  '$(PYTHON)' -m venv --clear '$(VENV)'; \
	fi
	@'$(PY)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(VENV) holds $$('$(PY)' -V), vitplast needs 3.11 or newer; remove it: make clean-all" >&2; exit 1; }
	@'$(PY)' -m pip --version >/dev/null 2>&1 || '$(PY)' -m ensurepip --upgrade
	'$(PY)' -m pip install -e '.[all]'
	@echo "$(CURDIR)" > '$(STAMP)'

sweep: $(STAMP) ## all runs of the profile that are not done yet (may be stopped at any time)
	$(VITPLAST) sweep --profile '$(PROFILE)' --jobs '$(JOBS)'

gather: $(STAMP) ## check the results of the profile and gather them
	$(VITPLAST) gather --profile '$(PROFILE)'

keep: $(STAMP) ## the results of the profile that are there, with a manifest, into data/ (to be committed)
	$(VITPLAST) gather --profile '$(PROFILE)' --keep
	$(VITPLAST) manifest --check 'data/$(NAME)'

book: sweep gather pages ## everything: runs, gathering, pages

# Strict: any warning, failed cell or broken reference is an error. Offline: nothing is fetched while pages are built.
# JOBS pages are executed at a time, each in a kernel of its own.
pages: $(STAMP) ## the pages from the results that are there
	HF_HUB_OFFLINE=1 VITPLAST_OFFLINE=1 VITPLAST_JOBS='$(JOBS)' $(SHOWN) \
	  $(BUILD) --all -W --keep-going -n
	@echo "The book is built. Open _build/html/index.html in a browser."

test: $(STAMP) ## all tests, with coverage
	MPLBACKEND=agg '$(PY)' -m pytest -q --cov --cov-report=term:skip-covered

# Resumes where it was stopped; results of the search are kept in the store case by case.
search: $(STAMP) ## the long search for counterexamples; its table in data/search/ is what the book shows
	@mkdir -p results/notebooks data/search
	'$(VENV)/bin/papermill' notebooks/search.ipynb results/notebooks/search.ipynb -k python3 \
	  -y '{starts: 24, steps: 400, table: data/search/search.nc}'

# About half an hour on two cores; the weights come with the project.
pretrain: $(STAMP) ## the project's own small model, pretrained anew; its weights in data/models/
	@mkdir -p results/notebooks data/models
	'$(VENV)/bin/papermill' notebooks/pretrain.ipynb results/notebooks/pretrain.ipynb -k python3 \
	  -y '{weights_file: data/models/vit_micro_patch14_56.fashion_mnist.safetensors}'

bench: $(STAMP) ## speed and memory of a measurement and of the bounds, speed of training, on this machine
	'$(PY)' -m vitplast.bench
	'$(PY)' -m vitplast.bench_bounds
	'$(PY)' -m vitplast.bench_finetune
	'$(PY)' -m vitplast.bench_decoding

lint: $(STAMP) ## style, spelling, stripped notebooks
	'$(PY)' -m ruff check .
	'$(PY)' -m ruff format --check .
	$(CODESPELL)
	'$(PY)' -m nbstripout --verify --keep-id notebooks/*.ipynb

format: $(STAMP) ## rewrite code and notebooks in the project's style
	'$(PY)' -m ruff check --fix .
	'$(PY)' -m ruff format .
	'$(PY)' -m nbstripout --keep-id notebooks/*.ipynb

linkcheck: $(STAMP) ## follow the links of the book (needs the web)
	$(SHOWN) $(BUILD) --builder linkcheck

clean: ## remove pages and caches, keep the results and the environment
	rm -rf _build .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* build dist
	find . -path './$(VENV)' -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

clean-all: clean ## remove the environment and the results too
	rm -rf '$(VENV)' results *.egg-info
