# Every target works on all modules of the workspace (go.work). The pattern
# "work" of the go command means exactly those.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Tools that `make tools` installs are found before others of their name.
export PATH := $(or $(shell go env GOBIN),$(shell go env GOPATH)/bin):$(PATH)

# benchmarks stands outside the workspace: see .ci/run.
MODULES = $(shell go list -m -f '{{.Dir}}') $(CURDIR)/benchmarks
# How long each fuzz target runs, and how many rounds the crash tests make.
FUZZTIME ?= 30s
CRASH_ROUNDS ?= 100
# Which benchmarks run, and how often; the result fits benchstat.
BENCH ?= .
COUNT ?= 6

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## Run all tests
	go test work

.PHONY: race
race: ## Run all tests with the race detector
	go test -race -timeout 30m work

.PHONY: lint
lint: ## Check format, vet, staticcheck and all linters
	@unformatted="$$(gofmt -l .)"; if [ -n "$$unformatted" ]; then echo "not formatted:"; echo "$$unformatted"; exit 1; fi
	go vet work
	staticcheck work
	@for dir in $(MODULES); do echo "golangci-lint in $$dir"; (cd "$$dir" && golangci-lint run --allow-parallel-runners ./...); done

.PHONY: bench
bench: ## Run the benchmarks (BENCH=pattern COUNT=6)
	go test -run '^$$' -bench '$(BENCH)' -count $(COUNT) -timeout 2h work

.PHONY: compare
compare: ## Measure the queues beside their peers (needs SUPERVISOR_TEST_POSTGRES; half an hour)
	go -C benchmarks run .

.PHONY: fuzz
fuzz: ## Run every fuzz target for a while (FUZZTIME=30s)
	@for dir in $$(go list -f '{{.Dir}}' work); do \
		for target in $$(cd "$$dir" && go test -list '^Fuzz' . | grep '^Fuzz' || true); do \
			echo "$$target in $$dir"; \
			(cd "$$dir" && go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) .); \
		done; \
	done

.PHONY: crash
crash: ## Run the crash tests for long (CRASH_ROUNDS=100)
	SUPERVISOR_CRASH_ROUNDS=$(CRASH_ROUNDS) go test -race -count 1 -run 'Crash' -timeout 6h work

.PHONY: cover
cover: ## Write the coverage of all tests to cover.out and print the total
	go test -coverpkg work -coverprofile cover.out work
	@go tool cover -func cover.out | tail -1

.PHONY: tidy
tidy: ## Tidy every module by itself
	@for dir in $(MODULES); do echo "tidy $$dir"; (cd "$$dir" && GOWORK=off go mod tidy); done

.PHONY: fmt
fmt: ## Format all code
	gofmt -w .

.PHONY: example
example: ## Run the example program on its own orders
	go run ./examples/orders

.PHONY: tools
tools: ## Install the checkers in the versions that CI uses
	.ci/run tools

.PHONY: ci
ci: ## Run everything that CI runs
	.ci/run
