# Needs Python 3.11+ and make, nothing else. `make run` serves, `make test` tests, `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Tests start many processes: without compiled modules each of them compiles the product again.
unexport PYTHONDONTWRITEBYTECODE
QUICK  := -m "not slow and not pulsar"
# pytest, and once more the few tests that failed, which the last line names.
TWICE  := $(BIN)/python tests/support/second_attempt.py

.DEFAULT_GOAL := help
.PHONY: help run test test-pulsar test-grants test-full test-faults lint clean conformance conformance-fast conformance-secure conformance-workers conformance-control conformance-flink conformance-franz-go conformance-java conformance-librdkafka conformance-spark conformance-spark-crashes conformance-spark-crashes-full conformance-pulsar mesh-crashes mesh-example mesh-fast mesh-rows mesh-takeover mesh-acls bench bench-mesh bench-pulsar bench-tls bench-functions bench-spark bench-spark-batches bench-typed schemas test-schemas soak soak-fast checker checker-fast checker-tenants functions-faults functions-fast rights rights-fast copier failover

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-30s %s\n", $$1, $$2}'

REQUIREMENTS := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = project["optional-dependencies"]; \
	print(*project["dependencies"], *extras["test"], *extras["lint"], sep="\n")
SOURCES := pyproject.toml kop/_native/Cargo.lock $(wildcard kop/_native/src/*.rs kop/_native/src/*/*.rs)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kop needs Python 3.11 or newer; name one with: make run PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)

$(BIN)/kop: $(SOURCES) | $(BIN)/python
	@echo "installing kop into $(VENV); if Rust's cargo is there, the hot path is compiled, which takes about two minutes"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# What `pip install --editable '.[test,lint]'` does, but cargo compiles while pip looks for the others and unpacks them.
$(VENV)/.test: $(SOURCES) | $(BIN)/python
	@$(BIN)/python -c '$(REQUIREMENTS)' > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable . & \
	$(BIN)/python -m pip install --quiet --requirement $(VENV)/requirements.txt; status=$$?; wait $$! && exit $$status
	@touch $(BIN)/kop $@

run: $(BIN)/kop ## serve Kafka clients on port 9092 (ARGS="--listen ..." for more)
	@exec $(BIN)/kop serve $(ARGS)

# While mypy runs, the other core compiles the modules that each worker of pytest is going to import.
test: $(VENV)/.test ## lint, types and the tests that need nothing else: five minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo $(BIN)/mypy; $(BIN)/python -m pytest -q --collect-only $(QUICK) >/dev/null 2>&1 & $(BIN)/mypy; status=$$?; wait; exit $$status
	$(TWICE) -n 5 --dist worksteal $(QUICK) $(ARGS)

schemas: $(VENV)/.test ## build the compiled reader of Avro for typed columns of PySpark (cargo)
	$(BIN)/python -m pip install --quiet ./kop/schemas/_native

test-schemas: schemas ## the tests of typed columns with the compiled reader, which is compared with the one in Python (cargo)
	KOP_REQUIRE_SCHEMAS=1 KOP_ALL_EXAMPLES=1 $(BIN)/python -m pytest tests/schemas -m "not slow and not pulsar" $(ARGS)

test-pulsar: $(VENV)/.test ## the tests over an Apache Pulsar that it starts (Java, Maven)
	$(TWICE) -n 3 -m "pulsar and not slow" -r fE $(ARGS)

test-grants: $(VENV)/.test ## Pulsar's grants decide, over an Apache Pulsar with tokens that it starts: a minute (Java, Maven)
	$(TWICE) -n 1 tests/interop/test_grants_of_pulsar.py -r fE $(ARGS)

test-full: $(VENV)/.test ## every test, the slow ones too (Java, Maven)
	KOP_ALL_EXAMPLES=1 $(BIN)/python -m pytest -n 2 $(ARGS)

test-faults: $(VENV)/.test ## the tests of outages, limits and permissions of Pulsar: ten minutes (Java, Maven)
	$(BIN)/python -m pytest tests/faults tests/pulsar_client/test_pulsar_faults.py $(ARGS)

conformance-fast: $(VENV)/.test ## real clients against `kop serve`, over SASL_SSL: the part that CI runs
	$(BIN)/python -m conformance --start-kop --secure --fast $(ARGS)

conformance-pulsar: $(VENV)/.test ## real clients against a gateway over an Apache Pulsar that it starts (Java, Maven)
	$(BIN)/python -m conformance --start-kop-pulsar --fast $(ARGS)

conformance: $(VENV)/.test ## every real client (ARGS="--bootstrap HOST:PORT" for another server)
	$(BIN)/python -m conformance $(or $(ARGS),--start-kop)

conformance-secure: $(VENV)/.test ## every real client over SASL_SSL, by each mechanism (ARGS="--start-kop-pulsar --fast": over Pulsar)
	$(BIN)/python -m conformance --secure $(or $(ARGS),--start-kop)

conformance-workers: $(VENV)/.test ## Java's tools, clients and librdkafka over Pulsar through two workers, by SASL_SSL (Java, Maven)
	$(BIN)/python -m conformance --start-kop-pulsar --workers 2 --secure --fast --client java --client confluent-kafka $(ARGS)

conformance-control: $(VENV)/.test ## every real client; what fails is tried on an Apache Kafka, too (Java, Maven)
	$(BIN)/python -m conformance --start-kop --control $(ARGS)

conformance-flink: $(VENV)/.test ## Apache Flink's exactly-once sink while jobs and gateway are killed (Java 17, Maven)
	$(BIN)/python -m conformance --start-kop --client flink $(ARGS)

conformance-franz-go: $(VENV)/.test ## the tests of franz-go's client (Go): two minutes
	$(BIN)/python -m conformance --start-kop --client franz-go $(ARGS)

conformance-java: $(VENV)/.test ## Kafka's own Java tools and clients, the fast part (Java, Maven)
	$(BIN)/python -m conformance --start-kop --client java --fast $(ARGS)

conformance-librdkafka: $(VENV)/.test ## librdkafka's own test-runner: a build, ten minutes (npm, cmake, C++ compiler)
	$(BIN)/python -m conformance --start-kop --client librdkafka $(ARGS)

conformance-spark-crashes: $(VENV)/.test ## kop's own sink for PySpark while driver, workers and gateway are killed: exactly once (Java 17)
	$(BIN)/python -m conformance.spark $(ARGS)

conformance-spark-crashes-full: $(VENV)/.test ## the same with 50 batches and 20 kills
	$(BIN)/python -m conformance.spark --batches 50 --kills 20 $(ARGS)

mesh-crashes: $(VENV)/.test ## a mesh killed 20 times in 50 batches: both triggers, local and standalone, over Pulsar and Kafka, too (Java 17, Maven): an hour
	$(BIN)/python -m conformance.mesh --kills 20 --batches 50 --proof $(ARGS)
	$(BIN)/python -m conformance.mesh --kills 20 --batches 50 --trigger batch $(ARGS)
	$(BIN)/python -m conformance.mesh --kills 20 --trigger once --apart $(ARGS)
	$(BIN)/python -m conformance.mesh --kills 20 --batches 50 --spark standalone $(ARGS)
	$(BIN)/python -m conformance.mesh --kills 20 --batches 50 --spark standalone --trigger batch --apart $(ARGS)
	$(BIN)/python -m conformance.mesh --kills 10 --batches 25 --server pulsar $(ARGS)
	$(BIN)/python -m conformance.mesh --kills 10 --batches 25 --server kafka --trigger batch $(ARGS)

mesh-rows: $(VENV)/.test ## a mesh of a source, a query and a Parquet sink, killed 12 times with each trigger: each row once (Java 17): a quarter of an hour
	$(BIN)/python -m conformance.mesh.rows --kills 12 $(ARGS)
	$(BIN)/python -m conformance.mesh.rows --kills 12 --trigger batch $(ARGS)

mesh-takeover: $(VENV)/.test ## two drivers of a mesh, of which each is paused in turn: exactly once (Java 17)
	$(BIN)/python -m conformance.mesh.takeover $(ARGS)

mesh-acls: $(VENV)/.test ## the driver of a mesh with the rights that docs/mesh.md gives it, and no others (Java 17)
	$(BIN)/python -m conformance.mesh.acls $(ARGS)

mesh-example: $(VENV)/.test ## the example of meshes and its short form: the results that they have to have (Java 17)
	$(BIN)/python -m conformance.mesh.example $(ARGS)

mesh-fast: $(VENV)/.test ## five kills of it with the trigger continuous (Java 17)
	$(BIN)/python -m conformance.mesh $(ARGS)

bench-mesh: $(VENV)/.test ## a mesh beside functions without Spark and beside Spark's own ways, as ratios: half an hour (Java 17)
	$(BIN)/python -m conformance.mesh.speed $(ARGS)

bench-spark: $(VENV)/.test ## format("kop") beside format("kafka"): wall time, CPU of Spark and gateway (Java 17, Maven Central)
	$(BIN)/python -m conformance.spark.speed $(ARGS)

bench-spark-batches: $(VENV)/.test ## what a small batch and an idle query cost by format("kop") in the newest PySpark (Java 17)
	$(BIN)/python -m conformance.spark.overhead $(ARGS)

bench-typed: $(VENV)/.test ## typed columns beside bytes, Avro in Python and by compiled code (Java 17; make schemas first)
	$(BIN)/python -m conformance.spark.typed $(ARGS)

conformance-spark: $(VENV)/.test ## PySpark's format("kafka"), and format("kop") in its oldest and newest PySpark (Java 17, Maven Central)
	$(BIN)/python -m conformance --start-kop --client spark --client spark-kop --client spark-kop-4.0 $(ARGS)

bench: $(VENV)/.test ## rates, CPU, latency beside pulsar-perf and Kafka: forty minutes (ARGS=--help; Java, Maven)
	$(BIN)/python -m conformance.bench $(ARGS)

bench-pulsar: $(VENV)/.test ## the part of it that is about Pulsar (Java, Maven)
	$(BIN)/python -m conformance.bench pulsar $(ARGS)

bench-tls: $(VENV)/.test ## the CPU that TLS adds for a GiB, beside Apache Kafka: ten minutes (ARGS=--help; Java, Maven)
	$(BIN)/python -m conformance.bench.tls $(ARGS)

bench-functions: $(VENV)/.test ## one function's rate, latency and idle cost: six minutes (ARGS=--start-kop-pulsar beside Pulsar's own instance)
	$(BIN)/python -m conformance.functions.speed $(ARGS)

soak: $(VENV)/.test ## ten minutes of faults over Pulsar, then every acknowledgement is checked (Java, Maven)
	$(BIN)/python -m conformance.soak $(ARGS)

soak-fast: $(VENV)/.test ## one minute of faults over Pulsar: the part that CI runs (Java, Maven)
	$(BIN)/python -m conformance.soak --fast $(ARGS)

checker: $(VENV)/.test ## five minutes of transactions under faults, then their history is checked (ARGS=--help)
	$(BIN)/python -m conformance.checker $(ARGS)

checker-fast: $(VENV)/.test ## one minute of it on the embedded engine
	$(BIN)/python -m conformance.checker --start-kop --fast $(ARGS)

checker-tenants: $(VENV)/.test ## the same load by two tenants with equal names, side by side, in short
	$(BIN)/python -m conformance.checker --start-kop --tenants --seconds 16 --spacing 2.5 $(ARGS)

functions-faults: $(VENV)/.test ## functions and their workers, killed, paused and replaced for 15 minutes (ARGS=--help)
	$(BIN)/python -m conformance.functions $(ARGS)

functions-fast: $(VENV)/.test ## one minute of it on the embedded engine (ARGS=--start-kop-pulsar: Java, Maven)
	$(BIN)/python -m conformance.functions --fast $(ARGS)

rights: $(VENV)/.test ## a hundred changes each of users, ACLs, quotas and certificates under load (ARGS=--start-kop-pulsar: grants too; Java, Maven)
	$(BIN)/python -m conformance.rights $(ARGS)

rights-fast: $(VENV)/.test ## eight of each: the part that CI runs
	$(BIN)/python -m conformance.rights --fast $(ARGS)

copier: $(VENV)/.test ## Kafka's own copier over Pulsar, while it and gateways are killed (ARGS=--help; Java, Maven)
	$(BIN)/python -m conformance.copier $(ARGS)

failover: $(VENV)/.test ## how transactions get on over Pulsar while the gateway is killed: two minutes (ARGS=--help; Java, Maven)
	$(BIN)/python -m conformance.failover $(ARGS)

lint: $(VENV)/.test ## format and check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy

clean: ## remove the environment and caches (data stays)
	rm -rf $(VENV) kop/_native/target kop/schemas/_native/target kop/schemas/_native/build kop/*.so .pytest_cache .mypy_cache .ruff_cache *.egg-info build dist
