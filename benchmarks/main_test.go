package main

import (
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	// The other process of some cases is this program again.
	if order := os.Getenv(starterVariable); order != "" {
		if err := runStarter(context.Background(), order, os.Stdin, os.Stdout); err != nil {
			_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// testDSN returns the database of the tests, without which they are skipped, or
// fail in CI.
func testDSN(t *testing.T) string {
	t.Helper()
	dsn := os.Getenv(dsnVariable)
	switch {
	case dsn != "":
	case os.Getenv("CI") != "":
		t.Fatal(dsnVariable + " names no database")
	default:
		t.Skip(dsnVariable + " names no database")
	}
	return dsn
}

// TestSmoke runs every case once, with next to nothing to do.
func TestSmoke(t *testing.T) {
	folder := t.TempDir()
	var log strings.Builder
	err := command(t.Context(), []string{
		"-dsn", testDSN(t), "-out", folder, "-rounds", "1", "-scale", "0.0005", "-lasting", "300ms", "-window", "100ms",
		"-waiting", "10,20", "-tenants", "1,3", "-times", "1",
	}, &log)
	require.NoError(t, err, log.String())
	results, err := readResults(folder)
	require.NoError(t, err)
	for _, part := range allParts {
		require.Contains(t, results.Parts, part)
		require.NotEmpty(t, results.Parts[part].Measurements, part)
		for _, m := range results.Parts[part].Measurements {
			require.NotEmpty(t, m.Values, m.Case)
			if v, ok := m.Values[perSecond]; ok && part != partSustained {
				require.Positive(t, v, m.Case)
			}
		}
	}
	report, err := os.ReadFile(filepath.Join(folder, "README.md"))
	require.NoError(t, err)
	for _, g := range []group{postgresGroup(), sqliteGroup(), memoryGroup()} {
		for _, c := range g.all() {
			require.Contains(t, string(report), "| "+c.name+" |")
		}
	}
	for _, c := range latencyCases() {
		require.Contains(t, string(report), "| "+c.name+" |")
	}
	for _, chart := range []string{"throughput.svg", "sqlite.svg"} {
		text, err := os.ReadFile(filepath.Join(folder, chart))
		require.NoError(t, err)
		require.Positive(t, elements(t, string(text))["rect"])
	}
}

func TestStageDropsItsSchema(t *testing.T) {
	ctx := t.Context()
	db, err := openDatabase(ctx, testDSN(t))
	require.NoError(t, err)
	defer db.close()
	s, err := newStage(ctx, db)
	require.NoError(t, err)
	exists := func() (found bool) {
		require.NoError(t, db.admin.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", s.schema).Scan(&found))
		return found
	}
	require.True(t, exists())
	require.DirExists(t, s.folder)
	pool, err := s.pool(ctx, 1)
	require.NoError(t, err)
	require.NoError(t, execAll(ctx, pool, "CREATE TABLE here (n int)"))
	// Also when what it was for was broken off.
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, s.close(canceled))
	require.False(t, exists())
	require.NoDirExists(t, s.folder)
}

// TestPgSeed proves that what is multiplied in the tables is due, or waits, as
// what the queue itself started.
func TestPgSeed(t *testing.T) {
	ctx := t.Context()
	db, err := openDatabase(ctx, testDSN(t))
	require.NoError(t, err)
	defer db.close()
	s, err := newStage(ctx, db)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.close(ctx)) }()
	q, pool, err := openPgqueue(ctx, s, pgSeed{due: 30, waiting: 60, tenants: 3})
	require.NoError(t, err)
	defer q.Close()
	count := func(where string) (n int) {
		require.NoError(t, pool.QueryRow(ctx, "SELECT count(*) FROM run WHERE "+where).Scan(&n))
		return n
	}
	require.Equal(t, 90, count("true"))
	require.Equal(t, 30, count("due_at <= clock_timestamp()"))
	require.Equal(t, 60, count("due_at > clock_timestamp() + interval '50 minutes'"))
	// Claims find all that is due, and nothing else.
	work := newSupervised(q, true, 2, 60)
	done, err := work.run(ctx)
	require.NoError(t, err)
	require.Equal(t, 60, done)
	require.Equal(t, 30, count("status = 'completed'"))
}

func TestPartThatFailsKeepsEarlierResults(t *testing.T) {
	folder := t.TempDir()
	earlier := &Results{Parts: map[string]*Part{partMemory: {Revision: "earlier"}}}
	require.NoError(t, earlier.write(folder))
	b, err := parse([]string{"-only", "memory", "-scale", "0.0001", "-rounds", "1", "-out", folder}, io.Discard)
	require.NoError(t, err)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.run(canceled), context.Canceled)
	results, err := readResults(folder)
	require.NoError(t, err)
	require.Equal(t, "earlier", results.Parts[partMemory].Revision)
}

func TestRender(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, madeUp().write(folder))
	require.NoError(t, os.Remove(filepath.Join(folder, "README.md")))
	require.NoError(t, command(t.Context(), []string{"-render", "-out", folder}, io.Discard))
	report, err := os.ReadFile(filepath.Join(folder, "README.md"))
	require.NoError(t, err)
	require.Equal(t, madeUp().report(), string(report))
}

func TestCasesAreMerged(t *testing.T) {
	before := &Part{Measurements: []Measurement{{Case: "a", Round: 0}, {Case: "b", Round: 0}, {Case: "a", Round: 1}}}
	again := &Part{Measurements: []Measurement{{Case: "a", Round: 7}}}
	again.merge(before)
	require.Equal(t, []Measurement{{Case: "b", Round: 0}, {Case: "a", Round: 7}}, again.Measurements)
}

func TestRoundsAreAppended(t *testing.T) {
	before := &Part{Revision: "a", Seconds: 1, Measurements: []Measurement{{Case: "a", Round: 0}, {Case: "b", Round: 0}, {Case: "a", Round: 1}}}
	more := &Part{Revision: "b", Seconds: 2, Measurements: []Measurement{{Case: "a", Round: 0}, {Case: "b", Round: 0}, {Case: "c", Round: 0}}}
	more.extend(before)
	require.Equal(t, &Part{Revision: "a, b", Seconds: 3, Measurements: []Measurement{
		{Case: "a", Round: 0}, {Case: "b", Round: 0}, {Case: "a", Round: 1},
		{Case: "a", Round: 2}, {Case: "b", Round: 1}, {Case: "c", Round: 0},
	}}, more)
	require.Equal(t, "1–3", more.rounds())
}

func TestParse(t *testing.T) {
	t.Setenv(dsnVariable, "")
	b, err := parse([]string{"-only", "sqlite,memory"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"sqlite", "memory"}, b.parts)
	b, err = parse([]string{"-dsn", "postgres://host/db", "-waiting", "20, 10"}, io.Discard)
	require.NoError(t, err)
	require.NotContains(t, b.parts, partSustained)
	require.Equal(t, []int{10, 20}, b.waiting)
	b, err = parse([]string{"-dsn", "postgres://host/db", "-lasting", "1m"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, allParts, b.parts)
	for _, test := range []struct{ args, want string }{
		{"", "dsn is empty"},
		{"-only speed", `"speed" is no part`},
		{"-dsn x -only sustained", "sustained needs -lasting"},
		{"-only memory -rounds 0", "rounds is 0"},
		{"-only memory -scale -1", "scale is -1"},
		{"-only memory -starts 0", "starts is 0"},
		{"-only memory -window 0s", "window is 0s"},
		{"-only memory -waiting 1,two", `waiting holds "two"`},
		{"-only memory -tenants 0", `tenants holds "0"`},
		{"-only memory -cases (", "missing closing )"},
		{"-only memory more", `"more" is no flag`},
	} {
		_, err := parse(strings.Fields(test.args), io.Discard)
		require.ErrorContains(t, err, test.want, test.args)
	}
	_, err = parse([]string{"-h"}, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
}

func TestStarterRefusesNonsense(t *testing.T) {
	for _, order := range []string{"", "hand", "hand schema many", "nobody schema 1"} {
		require.Error(t, runStarter(t.Context(), order, strings.NewReader("postgres://127.0.0.1:1/none\n"), io.Discard), order)
	}
}

func TestWanted(t *testing.T) {
	b := &bench{cases: regexp.MustCompile("^River")}
	require.True(t, b.wanted("River, defaults"))
	require.False(t, b.wanted("DBOS"))
}
