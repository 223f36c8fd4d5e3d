# Motley: `make lab` shows the whole of it on one machine, `make test` proves it.
SHELL := /bin/bash
BIN := $(CURDIR)/.build/venv/bin
export PATH := $(BIN):$(CURDIR)/lab/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
PYTEST := $(BIN)/python -m pytest
NAME ?= lab
PORT ?= 8000
ARGS ?=

.PHONY: help setup lab lab-only test unit unit-oldest integration lint sanity bench acceptance mutants down clean
.DEFAULT_GOAL := help

help:  ## show this
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make the Python environments, the collection link and the lab's engine
	@tools/setup.sh main oldest lab

lab:  ## bring the two-machine lab up and run site.yml against it, to a verified completion
	@tools/setup.sh main lab
	@$(MAKE) --no-print-directory lab-only

lab-only:
	@lab/bin/motley-lab up --name $(NAME) --port $(PORT)
	@lab/bin/motley-lab exec --name $(NAME) controller -- $(BIN)/ansible-playbook site.yml -i inventories/lab $(ARGS)

test:  ## set up and run what CI runs: lint, units on both Python and Ansible pairs, whole runs on the lab
	@.ci/test

unit:  ## unit tests on the newest pair
	@$(PYTEST) tests/unit

unit-oldest:  ## unit tests on the oldest pair (Python 3.11, ansible-core 2.19)
	@tools/setup.sh oldest >/dev/null
	@.build/venv-oldest/bin/python -m pytest tests/unit

integration:  ## whole runs on the lab with the stub engine
	@$(PYTEST) tests/integration

lint:  ## ruff, mypy, ansible-lint, documentation, size of the lab
	@tools/lint.sh

sanity:  ## ansible-test sanity on the built collection
	@tools/sanity.sh

bench:  ## speed of the planner and of a second run, as ratios
	@$(BIN)/python -m pytest tests/bench -s

acceptance:  ## the long checks: kills, matrices, recordings; resumable, prints a table
	@$(BIN)/python tests/acceptance/run.py $(ARGS)

mutants:  ## put thirty faults into the core one at a time; the unit tests must catch 27
	@$(BIN)/python tests/mutants/run.py $(ARGS)

down:  ## take the lab down without a trace
	@lab/bin/motley-lab down --name $(NAME)

clean: down  ## also remove what was built here (not the shared cache)
	@rm -rf .build/lab .build/lab-model .mypy_cache .ruff_cache .pytest_cache motley-inference-*.tar.gz
