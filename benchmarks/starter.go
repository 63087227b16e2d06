package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/workflow-supervisor/supervisor/pgqueue"
)

// starterVariable makes this program, started by itself, a process that starts
// things for another: it holds kind, schema and count. The address of the
// database comes on standard input, where no list of processes shows it.
const starterVariable = "SUPERVISOR_BENCH_STARTER"

// Kinds of starters.
const (
	starterHand    = "hand"
	starterPgqueue = "pgqueue"
)

// startElsewhere starts things from another process, and returns when it began
// each start. The process lives until finish is called.
func startElsewhere(ctx context.Context, kind, dsn, schema string, count int) (started []time.Time, finish func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	command := exec.CommandContext(ctx, program)
	command.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", starterVariable, kind, schema, count))
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := command.Start(); err != nil {
		return nil, nil, err
	}
	finish = func() error { return errors.Join(input.Close(), command.Wait()) }
	if _, err := fmt.Fprintln(input, dsn); err != nil {
		return nil, nil, errors.Join(err, finish())
	}
	lines := bufio.NewScanner(output)
	for len(started) < count && lines.Scan() {
		nanos, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			return nil, nil, errors.Join(err, finish())
		}
		started = append(started, time.Unix(0, nanos))
	}
	if len(started) < count {
		return nil, nil, errors.Join(fmt.Errorf("%d of %d starts from another process", len(started), count), lines.Err(), finish())
	}
	return started, finish, nil
}

// runStarter is the other process. It prints the instant of each start, and
// ends with its input.
func runStarter(ctx context.Context, order string, in io.Reader, out io.Writer) error {
	var kind, schema string
	var count int
	if _, err := fmt.Sscan(order, &kind, &schema, &count); err != nil {
		return fmt.Errorf("%s is %q: %w", starterVariable, order, err)
	}
	input := bufio.NewReader(in)
	dsn, err := input.ReadString('\n')
	if err != nil {
		return err
	}
	db := &database{dsn: strings.TrimSpace(dsn)}
	pool, err := db.pool(ctx, schema, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	start, stop, err := newStarter(kind, schema, pool)
	if err != nil {
		return err
	}
	defer stop()
	started, err := startSlots(ctx, count, start)
	if err != nil {
		return err
	}
	for _, at := range started {
		if _, err := fmt.Fprintln(out, at.UnixNano()); err != nil {
			return err
		}
	}
	// What the last start has set off may still be on its way.
	_, err = io.Copy(io.Discard, input)
	return err
}

func newStarter(kind, schema string, pool *pgxpool.Pool) (start func(context.Context, string) error, stop func(), err error) {
	switch kind {
	case starterHand:
		return func(ctx context.Context, id string) error {
			_, err := pool.Exec(ctx, handTell, id, schema)
			return err
		}, func() {}, nil
	case starterPgqueue:
		q, err := pgqueue.New(pool, pgqueue.Options{Schema: schema})
		if err != nil {
			return nil, nil, err
		}
		return pgqueueStart(q), q.Close, nil
	default:
		return nil, nil, errors.New("there is no starter of kind " + strconv.Quote(kind))
	}
}
