# The project's commands.  Each makes .venv first when it is missing or out of date.
#
#   make check                 format, lint, types, import ladder, tests without JVM and database: under a minute, no Java
#   make coverage              which branches of commit/, checkpoint/, starts/ and state/ the quick tests take, held to the floors of pyproject.toml
#   make test                  check, then the tests on Spark, on PostgreSQL, and those that kill processes
#   make test-spark            the Spark and crash groups with another Spark (VERSION=4.2.1, GROUPS="spark", FILES="tests/spark/test_runs.py")
#   make nightly               all pairs of crashes, whole chains of kills, every damaged file, all examples of properties;
#                              its report is build/nightly.json (SEED=n, TESTS="nightly kills" for a part)
#   make demo                  real data, five SIGKILLs, every row once (SINK=postgres|kafka, MASTER=cluster, WIPE=1, SEED=n)
#   make shop                  a shop of orders and payments, killed again and again (SINK=sqlite, KILLS=n, WIPE=1, SEED=n)
#   make video-demo            three cameras, five SIGKILLs, every frame once in events and videos (SINK=postgres|kafka, KILLS=n, WIPE=1, SEED=n)
#   make bench                 the benchmarks of docs/benchmarks.md (SCALE=smoke for a quick look)
#   make matrix                kill at every point for every sink, ours and others', into build/matrix.json (SINKS=a,b PEERS=a,b, PUBLISH=1)
#   make nexmark               Nexmark beside Flink and Spark, into build/nexmark.json (QUERIES=q5,q9 EVENTS=n SIDES=a,b SINK=postgres|files, KILL=1, PUBLISH=1)
#   make docs                  the documentation as a site in site/, without a network; a warning is an error (VERSIONS=DIR: as one version among those in DIR)
#   make dist                  wheel, sdist and bill of materials in dist/: the same bytes each time
#   make release VERSION=0.2.0 tests, version, change log, dist/, site/ and a tag: all of a release but publishing it (URL= the public address)
#   make clean                 remove what the commands made, .venv apart

SHELL := /bin/sh
BIN := .venv/bin
JAVA := sh tools/with_java.sh
MASTER ?= local
SCALE ?= full
TESTS ?= nightly kills unit+fast slow
GROUPS ?= spark crash

# Spark's workers must run the interpreter that has Holdfast, whatever "python3" is on the PATH.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Where it is set, every Python process compiles all of Holdfast anew, and Spark starts many.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check lint fast coverage test test-spark nightly demo shop video-demo bench matrix nexmark docs dist release clean

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@PYTHON="$(PYTHON)" sh tools/setup.sh

check: setup
	@$(MAKE) --no-print-directory -j2 lint fast

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Types are checked by one process, which takes longest where it has no cache: it comes first on two cores.
fast: setup
	nice -n 5 $(BIN)/python -m tools.run_tests unit+fast

coverage: setup
	$(BIN)/coverage erase
	HOLDFAST_FIRST_SEED=0 $(BIN)/coverage run -m tools.run_tests --report build/coverage/tests.json unit+fast
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet
	$(BIN)/python -m tools.branch_coverage build/coverage/report.json

test: lint
	$(JAVA) $(BIN)/python -m tools.run_tests unit+fast slow+postgres spark crash

test-spark: OTHER = $(CURDIR)/build/spark-$(VERSION)
test-spark: setup
	sh tools/other_spark.sh "$(VERSION)"
	PYSPARK_PYTHON=$(OTHER)/.venv/bin/python PYSPARK_DRIVER_PYTHON=$(OTHER)/.venv/bin/python \
		$(JAVA) $(OTHER)/.venv/bin/python -m tools.run_tests --report $(OTHER)/tests.json $(if $(FILES),--files "$(FILES)") $(GROUPS)

nightly: setup
	HOLDFAST_EXAMPLES=all HOLDFAST_JVM_KILLS=30 HOLDFAST_KAFKA_KILLS=30 $(if $(SEED),HOLDFAST_FIRST_SEED=$(SEED)) \
		$(JAVA) $(BIN)/python -m tools.run_tests --report build/nightly.json $(TESTS)

demo: setup
	$(JAVA) $(BIN)/python -m demo.driver $(if $(SINK),--sink $(SINK)) --master $(MASTER) $(if $(SEED),--seed $(SEED)) $(if $(WIPE),--wipe)

shop: setup
	$(JAVA) $(BIN)/python -m examples.shop.drive $(if $(SINK),--sink $(SINK)) $(if $(SEED),--seed $(SEED)) \
		$(if $(KILLS),--kills $(KILLS)) $(if $(WIPE),--wipe)

video-demo: setup
	$(JAVA) $(BIN)/python -m examples.video.drive $(if $(SINK),--sink $(SINK)) $(if $(SEED),--seed $(SEED)) \
		$(if $(KILLS),--kills $(KILLS)) $(if $(WIPE),--wipe) $(if $(MODEL),--model $(MODEL))

bench: setup
	$(JAVA) $(BIN)/python -m bench.run_all --scale $(SCALE)

matrix: setup
	$(JAVA) $(BIN)/python -m bench.matrix $(if $(filter undefined,$(origin SINKS)),,--sinks "$(SINKS)") \
		$(if $(filter undefined,$(origin PEERS)),,--peers "$(PEERS)") $(if $(PUBLISH),--publish)

nexmark: setup
	$(JAVA) $(BIN)/python -m bench.nexmark $(if $(QUERIES),--queries "$(QUERIES)") $(if $(EVENTS),--events $(EVENTS)) \
		$(if $(EVENTS_PER_FILE),--events-per-file $(EVENTS_PER_FILE)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(SIDES),--sides "$(SIDES)") $(if $(SINK),--sink $(SINK)) $(if $(KILL),--kill) $(if $(MORE),--more) \
		$(if $(PUBLISH),--publish)

docs: setup
	$(BIN)/python -m tools.site $(if $(VERSIONS),--versions "$(VERSIONS)")

dist: setup
	$(JAVA) $(BIN)/python -m tools.dist

release: setup
	$(BIN)/python -m tools.release "$(VERSION)" $(if $(URL),--url "$(URL)") $(if $(CHECK),--check)

clean:
	rm -rf demo/out demo/report.html examples/shop/out examples/video/out bench/out build dist site spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
