// Command benchmarks measures the queues of this repository beside their peers
// and beside the loops that one would write by hand, in turns in one run on one
// machine, and writes a report with charts.
//
//	go -C benchmarks run . -dsn postgres://localhost/test
//
// README.md says what is measured and how.
package main
