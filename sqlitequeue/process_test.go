package sqlitequeue

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// The test binary is also the other processes of the tests: started with a role
// it plays that one and ends.
const (
	roleVariable = "SQLITEQUEUE_TEST_ROLE"
	pathVariable = "SQLITEQUEUE_TEST_FILE"
)

var roles = map[string]func(ctx context.Context, path string) error{
	"complete": completeAll,
	"commit":   commitOne,
	"migrate":  migrateOnce,
	"start":    startOne,
	"step":     stepUntilKilled,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := roles[role](context.Background(), os.Getenv(pathVariable)); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child returns the command of another process in a role.
func child(t *testing.T, role, path string, env ...string) *exec.Cmd {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, pathVariable+"="+path)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	return cmd
}

// startDue starts instances that are due now.
func startDue(t *testing.T, q *Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		started, err := q.Start(t.Context(), testInstance(t, id), time.Time{})
		require.NoError(t, err)
		require.True(t, started)
	}
}

func testInstance(t testing.TB, id string) supervisor.Instance {
	t.Helper()
	instance, err := supervisor.NewInstance("spec", 1, json.RawMessage(`{"step":0}`))
	require.NoError(t, err)
	instance.ID = id
	return instance
}

// openInChild returns a queue in another process, which kills itself at a write
// where it is told so, those that make the tables included.
func openInChild(ctx context.Context, path string) (*Queue, func() error, error) {
	store := &faultyStore{path: path}
	if at, err := strconv.Atoi(os.Getenv(killVariable)); err == nil {
		store.everything, store.kill = true, true
		store.failWrite(at)
	}
	db := store.pool()
	q, err := Open(ctx, "", Options{DB: db, IsBusy: testIsBusy})
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return q, func() error { return errors.Join(q.Close(), db.Close()) }, nil
}

// completeAll claims by fives with four goroutines and completes what it gets,
// until nothing is left; it prints what it evaluated.
func completeAll(ctx context.Context, path string) (err error) {
	q, closeAll, err := openInChild(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	var workers sync.WaitGroup
	var mu sync.Mutex
	for n := range 4 {
		workers.Go(func() {
			failure := func() error {
				for {
					items, err := q.ClaimDue(ctx, supervisor.ClaimRequest{
						WorkerID: fmt.Sprint("worker ", n), LeaseDuration: time.Minute, Limit: 5,
					})
					if err != nil || len(items) == 0 {
						return err
					}
					for i := range items {
						command, err := supervisor.NewCommand(&items[i], "completed", nil, nil, supervisor.Complete{})
						if err != nil {
							return err
						}
						if err := q.CommitCommand(ctx, &items[i], &command); err != nil {
							return err
						}
						mu.Lock()
						fmt.Fprintln(os.Stdout, items[i].ID)
						mu.Unlock()
					}
				}
			}()
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, failure)
		})
	}
	workers.Wait()
	return err
}

func TestTwoProcessesShareAFile(t *testing.T) {
	const count = 500
	path := filepath.Join(t.TempDir(), "queue.db")
	q := openFile(t, path, Options{})
	for n := range count {
		startDue(t, q, fmt.Sprintf("i%03d", n))
	}
	began := time.Now()
	var processes sync.WaitGroup
	outputs := make([]string, 2)
	failures := make([]error, 2)
	for n := range outputs {
		cmd := child(t, "complete", path)
		processes.Go(func() {
			output, err := cmd.Output()
			outputs[n], failures[n] = string(output), err
		})
	}
	processes.Wait()
	require.NoError(t, errors.Join(failures...))
	times := make(map[string]int)
	for id := range strings.FieldsSeq(strings.Join(outputs, "\n")) {
		times[id]++
	}
	require.Len(t, times, count)
	for id, n := range times {
		require.Equal(t, 1, n, "executions of %s", id)
	}
	require.Less(t, time.Since(began), time.Minute)
	for snapshot, err := range q.List(t.Context(), supervisor.Filter{}) {
		require.NoError(t, err)
		require.Equal(t, supervisor.StatusCompleted, snapshot.Status)
	}
}

// startOne starts an instance in another process, once a line on its standard
// input asks for it.
func startOne(ctx context.Context, path string) (err error) {
	q, closeAll, err := openInChild(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	fmt.Fprintln(os.Stdout, "ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	instance, err := supervisor.NewInstance("spec", 1, nil)
	if err != nil {
		return err
	}
	_, err = q.Start(ctx, instance, time.Time{})
	return err
}

func TestWaitDueNoticesOtherProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q := openFile(t, path, Options{PollInterval: 10 * time.Millisecond})
	cmd := child(t, "start", path)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)

	waited := make(chan error, 1)
	var waiter sync.WaitGroup
	waiter.Go(func() { waited <- q.WaitDue(t.Context(), []string{"spec"}) })
	select {
	case err := <-waited:
		t.Fatalf("WaitDue of an empty queue returned %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	_, err = stdin.Write([]byte("go\n"))
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	waiter.Wait()
	require.NoError(t, <-waited)
}
