package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// madeUp are results of every part.
func madeUp() *Results {
	part := func(measurements ...Measurement) *Part {
		return &Part{
			Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 6, Revision: "abc1234", Settings: "scale 1", Scale: 1,
			Machine:      Machine{Cores: 2, Go: "go1.26", Modules: map[string]string{"example.org/peer": "v1.0.0"}},
			Measurements: measurements,
		}
	}
	at := func(name string, round int, values ...any) Measurement {
		m := Measurement{Case: name, Round: round, Values: make(map[string]float64)}
		for n := 0; n < len(values); n += 2 {
			m.Values[values[n].(string)] = values[n+1].(float64)
		}
		return m
	}
	return &Results{Parts: map[string]*Part{
		partThroughput: part(
			at("by hand, pgx", 0, perSecond, 40_000.0, clientSeconds, 0.01, serverSeconds, 0.03, walBytes, 1000.0, allocations, 6.0, others, 0.2),
			at("pgqueue", 0, perSecond, 20_000.0, ratio, 0.5, clientSeconds, 0.02, serverSeconds, 0.04, walBytes, 800.0, allocations, 12.0),
			at("by hand, pgx", 1, perSecond, 50_000.0, others, 0.05),
			at("pgqueue", 1, perSecond, 30_000.0, ratio, 0.6, others, 0.01),
		),
		partLatency: part(
			at(handInProcess, 0, p50, 1.5, p99, 2.0, highest, 3.0, samples, 100.0),
			at("pgqueue, in process", 0, p50, 3.0, p99, 4.0, highest, 5.0, samples, 100.0),
		),
		partGrowth: part(
			at("by hand: 10 waiting, 1 tenant, snapshot held", 0, perSecond, 10_000.0, clientSeconds, 0.02, serverSeconds, 0.03),
			at("pgqueue: 10 waiting, 1 tenant, snapshot held", 0, perSecond, 5_000.0, ratio, 0.5, clientSeconds, 0.1, serverSeconds, 0.2),
			at("pgqueue: 10 waiting, 1 tenant, snapshot held", 1, perSecond, 4_000.0, ratio, 0.4),
		),
		partSustained: part(at("pgqueue", 0, perSecond, 1000.0), at("pgqueue", 1, perSecond, 900.0), at("by hand", 0, perSecond, 500.0)),
		partSteady: part(
			at("before: run", 0, tableRows, 10_000.0, tableBytes, 1048576.0, indexBytes, 2097152.0),
			at("before: intent", 0, tableRows, 0.0),
			at("after: run", 0, tableRows, 10_000.0, tableBytes, 2097152.0, indexBytes, 2097152.0),
			at("pruned: run", 0, tableRows, 10_000.0, tableBytes, 2097152.0, indexBytes, 2097152.0),
			at("transitions", 0, perSecond, 25_000.0),
		),
		partSQLite: part(at("by hand, SQLite", 0, perSecond, 40_000.0), at("go-workflows", 0, perSecond, 400.0, ratio, 0.01)),
		partMemory: part(at("by hand, memory", 0, perSecond, 1_000_000.0), at("MemoryWorkQueue", 0, perSecond, 100_000.0, ratio, 0.1, clientSeconds, 0.01)),
	}}
}

func TestReport(t *testing.T) {
	report := madeUp().report()
	for _, line := range []string{
		"| by hand, pgx | 45,000 (40,000–50,000) | – | 0.0100 | 0.0300 | 0.0400 | 1.00 | 1,000 | 6.00 |",
		"| pgqueue | 25,000 (20,000–30,000) | 0.55 (0.50–0.60) | 0.0200 | 0.0400 | 0.0600 | 1.50 | 800 | 12.0 |",
		"| pgqueue, in process | 3.00 | 2.00 | 4.00 | 5.00 | 100 |",
		"| 10 waiting, 1 tenant, snapshot held | 100 | 225 (200–250) | 0.45 (0.40–0.50) | 0.0500 | 0.30 |",
		"by hand 100; pgqueue 200, 250.",
		"| pgqueue | 1,000 | 900 | 0.90 |",
		"| by hand | 500 |  | 1.00 |",
		"| run | 10,000 | 1.0 + 2.0 | 10,000 | 2.0 + 2.0 | 10,000 | 2.0 + 2.0 |",
		"| go-workflows | 400 | 0.0100 | – | – |",
		"| MemoryWorkQueue | 10,000 | 0.10 | 10,000 | – |",
		"| throughput | 2026-01-02 03:04 | 6 s | abc1234 | 2 | scale 1 | 5 %, 20 % |",
		"- Modules: example.org/peer v1.0.0.",
	} {
		require.Contains(t, report, line)
	}
	require.NotContains(t, report, "| intent |")
	require.NotContains(t, report, "NaN")
}

func TestReportWithoutResults(t *testing.T) {
	empty := &Results{Parts: map[string]*Part{}}
	require.NotContains(t, empty.report(), "Throughput")
	require.Empty(t, empty.charts())
}

func TestResultsComeBack(t *testing.T) {
	folder := t.TempDir()
	none, err := readResults(folder)
	require.NoError(t, err)
	require.Empty(t, none.Parts)
	require.NoError(t, madeUp().write(folder))
	back, err := readResults(folder)
	require.NoError(t, err)
	require.Equal(t, madeUp(), back)
}

func TestReportWarnsOfOthers(t *testing.T) {
	results := madeUp()
	require.NotContains(t, results.report(), "Other processes used")
	for n := range results.Parts[partThroughput].Measurements {
		results.Parts[partThroughput].Measurements[n].Values[others] = 0.62
	}
	require.Contains(t, results.report(), "## Throughput on PostgreSQL\n\n> Other processes used 62 % of the machine meanwhile")
}
