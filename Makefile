# What a checkout needs is set up by the targets themselves, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ROOM := ORT_DISABLE_TELEMETRY=1

.PHONY: demo test lint dist bench placement runtimes proofs machines chaos gpu lab farm-test fleet-test service-test native-test mobile-test web-test clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'edgepack needs Python 3.11 or newer: make PYTHON=python3.12 ...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)  ## Build the example, push it over SSH to a server of its own, measure it there
	$(ROOM) $(BIN)/edgepack demo

test: $(READY)  ## All tests, in parallel and in random order
	$(ROOM) $(BIN)/python -m pytest -n auto --dist worksteal

lint: $(READY)  ## ruff and mypy for Python, oxlint, shellcheck and cppcheck; mobile-test has Kotlin's and Swift's
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.packaging.check_types
	$(BIN)/oxlint $$(git ls-files '*.js')
	$(BIN)/shellcheck .ci/run
	$(BIN)/shellcheck --shell=sh --exclude=SC2015 $$(git ls-files '*.sh')  # A && B || C where C ends it
	$(BIN)/cppcheck --quiet --std=c11 --enable=warning,style,performance,portability --inline-suppr \
	  --error-exitcode=1 $$(git ls-files '*.c')

dist: $(READY)  ## The commit's wheel and sdist, checked, in dist-python; docs/releasing.md
	$(BIN)/python -m tests.packaging.check_dist

bench: $(READY)  ## Print speed ratios, each measured in one run
	$(ROOM) $(BIN)/python -m tests.bench.run

placement: $(READY)  ## Predicted placement against a real OpenVINO, Qualcomm's simulator and Debian's XNNPACK
	$(ROOM) $(BIN)/python -m tests.placement.compare openvino
	$(ROOM) $(BIN)/python -m tests.placement.compare qnn
	$(ROOM) $(BIN)/python -m tests.placement.xnnpack || test $$? = 3  # 3: it cannot run here, and says why
	$(ROOM) $(BIN)/python -m tests.placement.loader_openvino --python .venv-openvino/bin/python

runtimes: $(READY)  ## Bundles in the runtimes that targets pin, in .runtimes
	$(ROOM) $(BIN)/python -m tests.runtimes.run

proofs: $(READY)  ## Shipped variants judged by independent code; PROOFS=quick, a kind or a model of the zoo
	$(ROOM) $(BIN)/python -m tests.proofs.run $(PROOFS)

machines: $(READY)  ## Demo and tests as an ordinary user on Debian's own Pythons, in .machines; needs root on Debian
	$(ROOM) $(BIN)/python -m tests.machines.run $(MACHINES)

chaos: $(READY)  ## Pushes that are disturbed, a thousand times; needs Linux and OpenSSH's server
	$(ROOM) $(BIN)/python -m tests.chaos.run $(CHAOS)

gpu: $(READY)  ## The target nvidia on this machine's GPU; GPU='--wheelhouse FOLDER' where there is no network
	$(ROOM) $(BIN)/python -m tests.gpu.run $(GPU)

lab: $(READY)  ## Emulated aarch64 boards over SSH; needs root on Debian
	$(ROOM) $(BIN)/python -m tests.lab.run --variants $(LAB)

farm-test: $(READY)  ## A month of a farm in an hour: 40 boards, faults all the time; needs root on Linux, sshd
	$(ROOM) $(BIN)/python -m tests.farm.run $(FARM)

fleet-test: $(READY)  ## Devices that pull and jobs of a team, disturbed; 2,000 devices at once; needs Debian's docker-registry, PostgreSQL
	$(ROOM) $(BIN)/python -m tests.fleet.run $(FLEET)
	$(ROOM) $(BIN)/python -m tests.fleet.jobs

mobile-test: $(READY)  ## Phone bundles under real compilers; needs a JDK, Maven and, for Swift, root on Debian
	$(ROOM) $(BIN)/python -m tests.mobile.run $(MOBILE)

web-test: $(READY)  ## Browser bundles in Node and a headless Chromium; needs Node 20, npm and Chromium
	$(ROOM) $(BIN)/python -m tests.web.run $(WEB)

native-test: $(READY)  ## The C++ and C library of bundles for Linux; needs g++, cmake, npm, clang-19 with libFuzzer, lintian, dpkg and emulated aarch64, root on Debian
	$(ROOM) $(BIN)/python -m tests.native.run $(NATIVE)

service-test: $(READY)  ## A bundle's service as an image, a container and a systemd unit; needs root on Debian
	$(ROOM) $(BIN)/python -m tests.service.run $(SERVICE)

clean:
	rm -rf $(VENV) .venv-openvino .venv-qnn .venv-peers .venv-tensorflow .runtimes .proofs .mobile .web .native .service .machines .torch .debian build dist dist-python demo
