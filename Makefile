# The front door: `make demo` runs the main job from nothing, `make test` the tests.
# `make check` is the one command before a commit.

GO          ?= go
FUZZTIME    ?= 5s
SEEDS       ?= 200
SEED_BASE   ?= 1
HOSTILE     ?= 2000
# Packages tested at once, and parallel tests in each: tests of real processes wait for leases
# more than they work.
PACKAGES    ?= 3
PARALLEL    ?= 6
PREFIX      ?= /usr/local
DESTDIR     ?=
VERSION     ?= 0.0.0-dev
LDFLAGS     ?=
MAINTAINER  ?= Coordinator maintainers <maintainers@coordinator.example>
NFPM        ?= $(GO) run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
STATICCHECK ?= $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: all build console demo test check lint race failpoint fuzz sim vectors hostile bench bench-quick bench-growth bench-check man completions install deb check-packages check-package clean

all: build

build:
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o bin/ ./cmd/coordinatord ./cmd/witnessd ./cmd/ownerd ./cmd/coordctl

# The page that coordctl console serves, from its sources; the result is committed. Needs Node.js 20
# and npm.
console:
	cd cmd/internal/console/web && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm run build

demo: build
	@CGO_ENABLED=0 $(GO) run ./cmd/internal/demo -bin bin

test:
	CGO_ENABLED=0 $(GO) test -p $(PACKAGES) -parallel $(PARALLEL) ./...

check: lint test race failpoint vectors sim fuzz

lint:
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt is needed on:"; echo "$$files"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags failpoint ./...
	$(STATICCHECK) ./...

# The race detector needs a C compiler; `make test` does not. What only runs documents, the demo, a
# browser and programs that were built without it has nothing to be detected in.
race:
	CGO_ENABLED=1 $(GO) test -race -p $(PACKAGES) -parallel $(PARALLEL) $$($(GO) list ./... | grep -v -e '/docs$$' -e '/cmd/internal/demo$$' -e '/console/browsertest$$' -e '/cmd/hosts$$' -e '/internal/freeze$$')

# Crash tests at the fail points, which only this tag compiles in.
failpoint:
	$(GO) test -tags failpoint ./internal/failpoint ./internal/boltfile ./server/commit ./server/store

vectors:
	$(GO) test -count=1 ./vectors/...

sim:
	SIM_SEEDS=$(SEEDS) SIM_SEED_BASE=$(SEED_BASE) $(GO) test -count=1 -timeout 30m -run '^TestSimulation$$' -v ./server/sim

# Thousands of unkind peers on each transport beside clients that work; reports what it cost them.
hostile:
	HOSTILE=$(HOSTILE) $(GO) test -count=1 -timeout 20m -v -run '^TestC14_HostilePeers$$' ./server

# One target after the other, each for FUZZTIME; the seeds are the golden vectors. Until
# go1.27 a run may end in "context deadline exceeded" and no input (go.dev/issue/75804): the
# clock ran out within an execution. Such a run is no verdict, and is made again.
fuzz:
	@out=$$(mktemp); trap 'rm -f $$out' EXIT; \
	for target in $$($(GO) test -list '^Fuzz' ./fuzz | grep '^Fuzz'); do \
		for try in 1 2 3; do \
			echo "fuzz $$target $(FUZZTIME)"; \
			if $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./fuzz >$$out 2>&1; then cat $$out; continue 2; fi; \
			cat $$out; \
			if grep -q 'Failing input' $$out || ! grep -q '^ *context deadline exceeded$$' $$out; then exit 1; fi; \
		done; \
		exit 1; \
	done

# Benchmarks beside etcd, NATS JetStream and Redis, a Go module of their own; see
# docs/performance.md. Redis is the machine's: apt-get install redis-server.
BENCH = $(GO) run -C bench . -root ..

# Under ten minutes; the table goes to bench/table.md.
bench:
	$(BENCH) -all -out results.json -table table.md

# The coordinator's own figures.
bench-quick:
	$(BENCH) -own

# Curves over the amount of state, up to ten million operations: about an hour.
bench-growth:
	$(BENCH) -growth 1 -budget 3h -part 90m -out growth.json -svg ../docs

bench-check:
	cd bench && $(GO) vet ./... && $(STATICCHECK) ./... && $(GO) test ./...

# Manual pages of every command, by the programs built with the tag manual.
man:
	@rm -rf bin/man && mkdir -p bin/man
	@for program in coordctl coordinatord ownerd witnessd; do CGO_ENABLED=0 $(GO) run -tags manual ./cmd/$$program bin/man || exit 1; done

completions: build
	@mkdir -p bin/completions/bash bin/completions/zsh bin/completions/fish
	@for program in coordctl coordinatord ownerd witnessd; do \
		bin/$$program completion bash >bin/completions/bash/$$program && \
		bin/$$program completion zsh >bin/completions/zsh/_$$program && \
		bin/$$program completion fish >bin/completions/fish/$$program.fish || exit 1; \
	done

# What a system has: programs, units, manual pages, completions. Users are made by
# `systemd-sysusers coordinator.conf`, their directories by `systemd-tmpfiles --create`.
install: build man completions
	cmd/packaging/install.sh "$(DESTDIR)" "$(PREFIX)"

# bin/coordinator_VERSION_ARCH.deb. nfpm comes over the network when it is not there yet.
deb:
	@rm -rf bin/package bin/coordinator_*.deb
	$(MAKE) install DESTDIR=bin/package PREFIX=/usr LDFLAGS="-s -w"
	VERSION="$(VERSION)" MAINTAINER="$(MAINTAINER)" cmd/packaging/changelog.sh | gzip -9n >bin/package/usr/share/doc/coordinator/changelog.Debian.gz
	GOARCH=$$($(GO) env GOARCH) VERSION="$(VERSION)" MAINTAINER="$(MAINTAINER)" GOFLAGS= $(NFPM) package -f cmd/packaging/nfpm.yaml -p deb -t bin/
	@ls bin/coordinator_*.deb

# The package, looked at and, as root, installed in a machine of its own whose PID 1 is systemd.
# Where nfpm can neither be found nor fetched there is nothing to look at; each test says what
# it lacks. With all of it this takes two minutes on two cores.
check-packages:
	@if ! GOFLAGS= $(NFPM) --version >/dev/null; then echo "check-packages skipped: there is no nfpm here, and it cannot be fetched"; exit 0; fi; \
	$(MAKE) check-package
check-package: deb
	PACKAGE="$$(ls "$(CURDIR)"/bin/coordinator_*.deb)" $(GO) test -count=1 -timeout 15m ./cmd/packaging

clean:
	rm -rf bin
