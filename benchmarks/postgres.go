package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// database is the server that the measurements share. Nothing in it is touched
// but schemas of random names, each dropped after its use.
type database struct {
	dsn string
	// admin has one connection, for what stands beside the measurements.
	admin *pgxpool.Pool
	// postmaster is the process that all others of the server come from, where
	// the server runs on this machine; else 0.
	postmaster int
}

func openDatabase(ctx context.Context, dsn string) (*database, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 1
	admin, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	db := &database{dsn: dsn, admin: admin}
	var backend int
	if err := admin.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		admin.Close()
		return nil, err
	}
	db.postmaster = parentPostgres(backend)
	return db, nil
}

func (db *database) close() { db.admin.Close() }

// schema makes a schema of its own for one use.
func (db *database) schema(ctx context.Context) (name string, err error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	name = "bench_" + hex.EncodeToString(random[:])
	_, err = db.admin.Exec(ctx, "CREATE SCHEMA "+quoted(name))
	return name, err
}

// drop removes a schema, also after ctx has ended.
func (db *database) drop(ctx context.Context, name string) error {
	_, err := db.admin.Exec(context.WithoutCancel(ctx), "DROP SCHEMA IF EXISTS "+quoted(name)+" CASCADE")
	return err
}

// pool opens connections that find the tables of a schema without its name; 0
// connections means pgx's default.
func (db *database) pool(ctx context.Context, schema string, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(db.dsn)
	if err != nil {
		return nil, err
	}
	if connections > 0 {
		config.MaxConns = int32(connections)
	}
	config.ConnConfig.RuntimeParams["search_path"] = quoted(schema)
	return pgxpool.NewWithConfig(ctx, config)
}

// checkpoint writes out what earlier runs left, so that none pays for another.
// Not every role may; what is measured without holds more full pages.
func (db *database) checkpoint(ctx context.Context) { _, _ = db.admin.Exec(ctx, "CHECKPOINT") }

// wal returns how much the server has written to its log.
func (db *database) wal(ctx context.Context) (bytes int64, err error) {
	err = db.admin.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&bytes)
	return bytes, err
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// ticksPerSecond is the unit of processor times in /proc, the same on every
// Linux that Go runs on.
const ticksPerSecond = 100

// process is what /proc tells of a process.
type process struct {
	name   string
	parent int
	// own and ended are the processor times of the process and of its children
	// that ended, in seconds.
	own, ended float64
}

func readProcess(pid int) (process, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseProcess(string(text))
}

// parseProcess reads a line of /proc/PID/stat. The name stands in parentheses
// and may hold any character, these two included.
func parseProcess(line string) (process, bool) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	// From the state on: the parent is the 2nd field, times the 12th to 15th.
	fields := strings.Fields(line[end+1:])
	if len(fields) < 15 {
		return process{}, false
	}
	var numbers [5]float64
	for n, field := range []string{fields[1], fields[11], fields[12], fields[13], fields[14]} {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return process{}, false
		}
		numbers[n] = v
	}
	return process{
		name:   line[open+1 : end],
		parent: int(numbers[0]),
		own:    (numbers[1] + numbers[2]) / ticksPerSecond,
		ended:  (numbers[3] + numbers[4]) / ticksPerSecond,
	}, true
}

// parentPostgres returns the parent of a server process on this machine, or 0.
func parentPostgres(backend int) int {
	p, ok := readProcess(backend)
	if !ok || p.name != "postgres" {
		return 0
	}
	parent, ok := readProcess(p.parent)
	if !ok || parent.name != "postgres" {
		return 0
	}
	return p.parent
}

// serverSeconds returns the processor time of all processes of the server, those
// that ended included; false where the server runs elsewhere.
func (db *database) serverSeconds() (seconds float64, ok bool) {
	if db == nil || db.postmaster == 0 {
		return 0, false
	}
	main, ok := readProcess(db.postmaster)
	if !ok {
		return 0, false
	}
	seconds = main.own + main.ended
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, false
	}
	for _, name := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok && p.parent == db.postmaster {
			seconds += p.own
		}
	}
	return seconds, true
}

// execAll runs statements one after the other.
func execAll(ctx context.Context, pool *pgxpool.Pool, statements ...string) error {
	for _, statement := range statements {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%w in: %s", err, statement)
		}
	}
	return nil
}
