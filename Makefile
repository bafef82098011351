# make test    everything the tests need, then all tests with the race detector
# make test-full  the same, and the suite on more clusters and with more options
# make lint    gofmt, go vet, staticcheck
# make deps    what each package may import
# make bench   every benchmark once, also those beside peers in bench/; BENCHTIME=2000x for figures
# make faults  every backend under attack, DURATION in all; BACKEND for one, SEED to repeat; a run
#              of 30m and more writes docs/faults.md
# make fuzz    every fuzz target for FUZZTIME
# make demo    the stampede, and its cure
# make fmt     gofmt -w

TESTFLAGS ?=
BENCHTIME ?= 1x
DURATION  ?= 75s
SEED      ?= 0
BACKEND   ?=
FUZZTIME  ?= 30s
# The longest first. They wait for most of the time, so that there is room for one more than the smallest machine has processors.
PACKAGES  ?= ./zklock ./etcdlock ./redislock ./redlock ./cmd/... ./...

.PHONY: test test-full servers lint deps bench faults fuzz demo fmt tools
.DEFAULT_GOAL := test

# Modules whose tests need what no user of paddock should have to know, such as database drivers; they run with all packages.
NESTED = $(if $(filter ./...,$(PACKAGES)),fencing/servertest)

test:
	@. ./.ci/servers; failed=0; go test -p 3 $$RACE $(TESTFLAGS) $(PACKAGES) || failed=1; \
	for module in $(NESTED); do (cd $$module && go test $$RACE $(TESTFLAGS) ./...) || failed=1; done; exit $$failed

test-full:
	@. ./.ci/servers; PADDOCK_SUITE=full go test -timeout 60m $$RACE $(TESTFLAGS) $(PACKAGES)

servers:
	@. ./.ci/servers

bench:
	@. ./.ci/servers; go test -run '^$$' -bench . -benchtime $(BENCHTIME) $(TESTFLAGS) $(PACKAGES) && \
	cd bench && go test -bench . -benchtime $(BENCHTIME) $(TESTFLAGS) ./...

faults:
	@. ./.ci/servers; cd faults && go test -v -count=1 -timeout 3h $(TESTFLAGS) . -args \
	-duration $(DURATION) -seed $(SEED) -backend '$(BACKEND)' -report ../docs/faults.md

fuzz:
	@. ./.ci/servers; grep -rHoE '^func Fuzz[A-Za-z]+' --include='*_test.go' . | while IFS=: read -r file name; do \
	echo "$$file $${name#func }"; \
	go test -run '^$$' -fuzz "^$${name#func }$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || exit 1; done

lint: tools
	@unformatted=$$(git ls-files -z -co --exclude-standard '*.go' | xargs -0 gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi
	go vet ./...
	.bin/staticcheck ./...

deps:
	@.ci/deps

demo:
	go run ./cmd/paddock demo

fmt:
	@git ls-files -z -co --exclude-standard '*.go' | xargs -0 gofmt -w

tools:
	@mkdir -p .bin
	@cd internal/tools && go build -o ../../.bin/ honnef.co/go/tools/cmd/staticcheck golang.org/x/vuln/cmd/govulncheck
