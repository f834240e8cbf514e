# The front door: `make demo` runs the main job from nothing, `make test` the tests.
# `make check` is the one command before a commit.

GO          ?= go
FUZZTIME    ?= 5s
SEEDS       ?= 200
SEED_BASE   ?= 1
HOSTILE     ?= 2000
STATICCHECK ?= $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: all build demo test check lint race failpoint fuzz sim vectors hostile bench bench-quick bench-growth bench-check clean

all: build

build:
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/coordinatord ./cmd/witnessd ./cmd/ownerd ./cmd/coordctl

demo: build
	@CGO_ENABLED=0 $(GO) run ./cmd/internal/demo -bin bin

test:
	CGO_ENABLED=0 $(GO) test ./...

check: lint test race failpoint vectors sim fuzz

lint:
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt is needed on:"; echo "$$files"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags failpoint ./...
	$(STATICCHECK) ./...

# The race detector needs a C compiler; `make test` does not.
race:
	CGO_ENABLED=1 $(GO) test -race ./...

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

clean:
	rm -rf bin
