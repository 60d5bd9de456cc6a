# make run starts the farm, make test checks it. Settings are environment variables: PORT=8081 make run
PYTHON ?= python3
VENV ?= .venv
py = $(VENV)/bin/python
setup = @$(PYTHON) -m common.bootstrap $(VENV)
ifdef BACKEND
export FARM_BACKEND := $(BACKEND)
endif

.PHONY: run install test rest test-all lint types unit clean
.NOTPARALLEL:

run:
	$(setup) up

install:
	$(setup) install dev

test: lint types unit

lint: install
	$(py) -m ruff check .
	$(py) -m ruff format --check .

types: install
	$(py) -m mypy

# Everything that needs nothing but this checkout: rules, HTTP, oracle, a tiny model, a minute of chaos.
unit: install
	$(py) -m pytest

# The longer checks; each has a marker of the same name in pyproject.toml.
long = parity chaos soak clients fresh contract-neuron contract-gaudi
present = $(foreach name,$(long),$(if $(shell grep -rlE "pytest.mark.$(subst -,_,$(name))\b" tests --include=*.py),$(name)))
.PHONY: $(long) bench

$(filter-out parity contract-%,$(long)): install
	$(py) -m pytest -m $(subst -,_,$@) --timeout 3600

# Tries every model type, and writes the tables of those that gave the tokens of transformers.
parity: install
	$(py) -m pytest -m parity --timeout 3600
	$(py) -m tests.parity.run
	PYTHONPATH=$$($(py) -m tests.gaudi.environment) $(py) -m tests.gaudi.contract.ways

# The real optimum-neuron and optimum-habana lie before the packages of .venv: each needs another transformers.
contract-neuron: install
	PYTHONPATH=$$($(py) -m tests.neuron.environment) $(py) -m pytest -m contract_neuron tests/neuron/contract
	$(py) -m pytest -m contract_neuron tests/neuron --ignore tests/neuron/contract

contract-gaudi: install
	PYTHONPATH=$$($(py) -m tests.gaudi.environment) $(py) -m pytest -m contract_gaudi --timeout 300 tests/gaudi/contract
	$(py) -m pytest -m contract_gaudi tests/gaudi --ignore tests/gaudi/contract

# Images, for Docker where its daemon answers, else for Podman. TAG names their version.
TAG ?= 0.1.0
build = $(if $(shell docker info >/dev/null 2>&1 && echo yes),docker build,BUILDAH_ISOLATION=chroot podman build --network host --format docker)
.PHONY: image-gateway image-cpu image-neuron image-gaudi image-all compose-test dash-test

image-gateway:
	$(build) -t tokenfarm-gateway:$(TAG) -f deploy/images/gateway.Containerfile .

image-cpu:
	$(build) -t tokenfarm-worker-cpu:$(TAG) -f deploy/images/worker-cpu.Containerfile .

image-neuron:
	$(build) -t tokenfarm-worker-neuron:$(TAG) -f deploy/images/worker-neuron.Containerfile .
	$(build) -t tokenfarm-neuron:$(TAG) --build-arg WORKER=tokenfarm-worker-neuron:$(TAG) -f deploy/images/all.Containerfile .

# TAG=tgi-gaudi, as on TGI's page, also makes it the image's own name: docker run … tgi-gaudi --model-id …
image-gaudi:
	$(build) -t tokenfarm-worker-gaudi:$(TAG) -f deploy/images/worker-gaudi.Containerfile .
	$(build) -t tokenfarm-gaudi:$(TAG) $(if $(shell echo $(TAG) | grep '^[a-z]'),-t $(TAG)) --build-arg WORKER=tokenfarm-worker-gaudi:$(TAG) -f deploy/images/all.Containerfile .

image-all: image-cpu
	$(build) -t tokenfarm:$(TAG) --build-arg WORKER=tokenfarm-worker-cpu:$(TAG) -f deploy/images/all.Containerfile .

# These need Docker, or Podman with podman-compose, and the base images.
compose-test: install image-gateway image-all
	TAG=$(TAG) $(py) -m pytest -m compose --timeout 300

dash-test: install image-gateway image-cpu
	TAG=$(TAG) $(py) -m pytest -m dash --timeout 300

bench: install
	$(py) -m tests.bench

rest: $(filter clients contract-%,$(present))

test-all: test rest

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
