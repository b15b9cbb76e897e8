# `make demo` and `make test` do all the set-up themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Threads of a two-core machine; the suite starts processes of its own.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo quick test audit integration check format docs release-check wheel oldest bench bench-check reproduce clean

demo: $(VENV)/demo
	$(BIN)/python examples/demo.py

# What a contributor runs on every change: style, every docstring's example, and a test file or two of every package.
# Under a minute on two cores.
QUICK := torchmetrics_fed tests/laws/test_layers.py tests/metrics/test_definition.py tests/laws/test_split.py \
	tests/counting/test_grid.py tests/counting/test_tree.py tests/counting/test_persons.py \
	tests/privacy/test_settings.py tests/privacy/test_law.py tests/privacy/test_sensitivity.py \
	tests/release/test_spec.py tests/release/test_query.py tests/release/test_share.py tests/release/test_vectors.py \
	tests/aggregation/test_stage.py tests/aggregation/secure/test_shamir.py tests/aggregation/secure/test_mask.py \
	tests/reconstruct/test_histograms.py tests/reconstruct/test_tails.py tests/reconstruct/test_leaves.py \
	tests/paper/test_quantiles.py tests/functional/test_roc.py tests/functional/test_precision_recall.py \
	tests/exchange/test_states.py tests/exchange/test_client.py tests/exchange/test_node.py tests/exchange/test_plans.py \
	tests/metrics/test_metric.py tests/metrics/test_curves.py tests/comparison/test_metric.py \
	tests/report/test_statement.py tests/planning/test_advice.py tests/app/test_study.py tests/app/folder \
	tests/integrations/flower/test_home.py tests/test_simulate.py tests/transports/test_law.py

quick: $(VENV)/check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) -q -n 2 -m "not slow and not audit and not integration" $(QUICK)

test: $(VENV)/check
	$(PYTEST) -n 2 -m "not audit and not integration"

audit: $(VENV)/check
	$(PYTEST) -n 2 -m audit tests

# The report's page in a browser, which root installs where there is apt-get; without one its tests are skipped and say so.
# Flower's simulation and deployment, NVFlare's simulator and POC mode, declearn's server and clients, all on the loopback
# interface, loggers' clients offline, Ray Data, pandas, Polars and DuckDB, and pfl's simulation. Declearn and pfl have an
# environment of their own: pfl needs another dp-accounting than `privacy`. There, too: dcurves, an oracle for decision
# curves, which needs pandas below 3.
TRAINERS := .venv-trainers

integration: $(VENV)/check $(VENV)/integration $(TRAINERS)/integration
	$(PYTEST) tests/integrations/flower/test_app.py tests/integrations/nvflare tests/integrations/test_loggers.py \
		tests/integrations/test_engines.py torchmetrics_fed/integrations tests/test_documents.py
	$(PYTEST) tests/transports -k "nvflare or killed"
	{ command -v chromium && command -v chromedriver; } > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
		apt-get update -qq && apt-get install -y -qq chromium chromium-driver > /dev/null; } || \
		echo "no Chromium: ask root for chromium and chromium-driver"
	$(PYTEST) -m integration tests/report
	OMP_NUM_THREADS=1 $(TRAINERS)/bin/python -m pytest tests/integrations/test_declearn.py tests/integrations/test_pfl.py \
		torchmetrics_fed/integrations/declearn.py torchmetrics_fed/integrations/pfl.py
	OMP_NUM_THREADS=1 $(TRAINERS)/bin/python -m pytest tests/functional/test_decisions.py -m integration
	OMP_NUM_THREADS=1 $(TRAINERS)/bin/python -m pytest tests/transports/test_law.py tests/test_documents.py \
		tests/laws/test_docstrings.py -k "declearn or pfl"

$(TRAINERS)/integration: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TRAINERS)
	grep -v -e '^dp-accounting' -e '^pandas' constraints.txt > $(TRAINERS)/constraints.txt
	$(TRAINERS)/bin/python -m pip install --quiet --constraint $(TRAINERS)/constraints.txt --editable ".[declearn,pfl]" \
		"declearn[grpc]" dcurves pytest scikit-learn
	touch $@

check: $(VENV)/check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in build/docs/index.html. It runs the notebooks; neither building nor reading it needs a network, and warnings
# are errors. Where there is Chromium, every page is then looked at, in build/screenshots.
docs: $(VENV)/docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	! grep -rE '<(script|link|img)[^>]* (src|href)="https?:' --include='*.html' build/docs
	$(BIN)/python docs/screenshots.py build/docs build/screenshots

# Version, changelog, citation, tag, and what is in wheel and sdist: seconds, no network, and nothing is published.
release-check: $(VENV)/wheel
	$(BIN)/python .ci/release.py

# The same with wheel and sdist in dist/, and the wheel tried in fresh environments with the newest and the oldest versions (of torch one only).
wheel: $(VENV)/wheel
	.ci/wheel $(BIN)/python

# The peers live in an environment of their own (declearn needs pandas below 3); one that cannot be installed is skipped, and the bench says so.
BENCH := .venv-bench
PEERS := torcheval declearn
BENCHMARK := OMP_NUM_THREADS=1 $(BENCH)/bin/python -m benchmarks.bench

bench: $(BENCH)/bench
	$(BENCHMARK) --json docs/benchmarks.json --chart docs/images/benchmarks.png --page docs/benchmarks.md
	OMP_NUM_THREADS=1 $(BENCH)/bin/python -m benchmarks.front_page

# Takes minutes, most of them the peers'; fails where a ratio is off its goal by more than a generous margin.
bench-check: $(BENCH)/bench
	$(BENCHMARK) --quick --check

$(BENCH)/bench: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	grep -v '^pandas' constraints.txt > $(BENCH)/constraints.txt
	$(BENCH)/bin/python -m pip install --quiet --constraint $(BENCH)/constraints.txt --editable ".[demo]"
	for peer in $(PEERS); do \
		$(BENCH)/bin/python -m pip install --quiet --constraint $(BENCH)/constraints.txt $$peer || echo "skipped: $$peer"; \
	done
	touch $@

# The oldest Python and the oldest versions that pyproject.toml admits. This torch is the CUDA build: gigabytes, so that
# `.ci/run` leaves it out.
OLDEST := .venv-oldest
PYTHON_OLDEST ?= python3.10

oldest: $(OLDEST)/oldest
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest tests/metrics tests/functional

$(OLDEST)/oldest: pyproject.toml constraints-oldest.txt
	$(PYTHON_OLDEST) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(OLDEST)/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable ".[demo]" pytest hypothesis
	touch $@

# DATA=FOLDER names the data sets' folder; without it they are fetched. Interrupted, it continues.
OUT ?= build/reproduction
reproduce: $(VENV)/reproduce
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.reproduce $(if $(DATA),--data $(DATA)) --out $(OUT)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"

# One stamp per extra, so that the demo need not wait for the test tools.
$(VENV)/demo $(VENV)/check $(VENV)/integration $(VENV)/docs $(VENV)/wheel $(VENV)/reproduce: $(VENV)/%: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) $(OLDEST) $(TRAINERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
