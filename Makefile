PYTHON ?= python3
# Where pip finds CPU builds of torch; empty: wherever pip is set up to look.
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP_INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt
DEMO = demo
# Options of the benchmark: make bench-peers BENCH='--quick --plot loaders.png'
BENCH ?=

.PHONY: demo test lint install bench-peers clean

demo: .venv/.core
	.venv/bin/geoprep synth --city moscow --scenes 24 --out $(DEMO)/data
	.venv/bin/geoprep build-zarr --city moscow --source $(DEMO)/data --out $(DEMO)/moscow.zarr
	.venv/bin/geoprep verify $(DEMO)/moscow.zarr
	.venv/bin/geoprep info $(DEMO)/moscow.zarr
	.venv/bin/geoprep preview $(DEMO)/moscow.zarr --out $(DEMO)/preview.png
	@printf '\nMade in ./$(DEMO):\n'
	@printf '  %-14s %s\n' data/ 'a synthetic city: GeoTIFF chips and GeoJSON roads in SpaceNet 5 layout' \
		moscow.zarr 'the same as uint8 tiles and speed masks, two levels' \
		preview.png 'what it looks like: open it'

test: .venv/.dev
	.venv/bin/python -m pytest

lint: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

install: .venv/.dev

# Other loaders, in an environment of their own, and then all that is measured next to them (a
# quarter of an hour). A loader that cannot be installed here is named and left out.
bench-peers: .venv/.dev .venv-peers/.installed
	.venv/bin/python -m benchmarks.loaders $(BENCH)

# The demo needs the package alone; tests need torch and tools beside it.
.venv/.core: pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e '.[train,dev]'
	@touch $@ .venv/.core

.venv-peers/.installed: pyproject.toml constraints-peers.txt benchmarks/peers/install.py
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m benchmarks.peers.install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	@touch $@

clean:
	rm -rf .venv .venv-peers $(DEMO)
