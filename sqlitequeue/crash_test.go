package sqlitequeue

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// A process of the crash test steps instances along, delivers and starts, and
// tells on its standard output what was reported to it as done. It kills itself
// at a certain write, or is killed from outside.
const (
	killVariable = "SQLITEQUEUE_TEST_KILL_AT_WRITE"
	seedVariable = "SQLITEQUEUE_TEST_SEED"

	crashInstances = 8
)

// crashState is the state of an instance of the crash test, which every commit
// moves on by one, and what its events say of it.
type crashState struct {
	Step     int64    `json:"step"`
	Consumed []string `json:"consumed,omitempty"`
	// Padding is of many sizes: in the row, beside it, over many pages.
	Padding string `json:"padding,omitempty"`
}

var crashPin = supervisor.CapabilityPin{ID: "pay", ContractVersion: "1", ContentDigest: "d"}

func crashInstance(id string) (supervisor.Instance, error) {
	instance, err := supervisor.NewInstance("spec", 1, crashState{})
	instance.ID = id
	instance.CapabilityPins = []supervisor.CapabilityPin{crashPin}
	return instance, err
}

func stepUntilKilled(ctx context.Context, path string) (err error) {
	seed, err := strconv.ParseUint(os.Getenv(seedVariable), 10, 64)
	if err != nil {
		return err
	}
	store := &faultyStore{path: path}
	if at, err := strconv.Atoi(os.Getenv(killVariable)); err == nil {
		store.failWrite(at)
		store.kill = true
	}
	db := store.pool()
	q, err := Open(ctx, "", Options{DB: db, IsBusy: testIsBusy})
	if err != nil {
		return err
	}
	l, err := ledgerOf(path)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "open")
	var workers sync.WaitGroup
	failures := make([]error, 7)
	for n := range failures {
		random := rand.New(rand.NewPCG(seed, uint64(n)))
		workers.Go(func() {
			switch {
			case n == 0:
				failures[n] = deliverUntilKilled(ctx, q, random)
			case n <= 2:
				d := crashDispatcher{q: q, ledger: l, random: random, out: os.Stdout}
				failures[n] = d.untilKilled(ctx)
			default:
				failures[n] = commitUntilKilled(ctx, q, random)
			}
		})
	}
	workers.Wait()
	return errors.Join(failures...)
}

func deliverUntilKilled(ctx context.Context, q *Queue, random *rand.Rand) error {
	for {
		id := fmt.Sprintf("i%d", random.IntN(crashInstances))
		instance, err := crashInstance(id)
		if err != nil {
			return err
		}
		if _, err := q.Start(ctx, instance, time.Time{}); err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, "started", id)
		wakeup := supervisor.Wakeup{ID: fmt.Sprintf("w%d", random.Uint64()), Kind: "note", Payload: json.RawMessage(`{"n":1}`)}
		if err := q.Deliver(ctx, instance.TenantID, id, wakeup, time.Time{}); err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, "delivered", id, wakeup.ID)
	}
}

func commitUntilKilled(ctx context.Context, q *Queue, random *rand.Rand) error {
	for {
		items, err := q.ClaimDue(ctx, supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: 200 * time.Millisecond, Limit: 1 + random.IntN(3)})
		if err != nil {
			return err
		}
		for n := range items {
			for item := &items[n]; item != nil; {
				if item, err = commitStep(ctx, q, item, random); err != nil {
					return err
				}
			}
		}
	}
}

// commitStep commits the next step of an item and returns the one that was kept.
func commitStep(ctx context.Context, q *Queue, item *supervisor.WorkItem, random *rand.Rand) (*supervisor.WorkItem, error) {
	var state crashState
	if err := json.Unmarshal(item.State, &state); err != nil {
		return nil, err
	}
	state.Step++
	state.Consumed = nil
	state.Padding = strings.Repeat("x", [...]int{0, 100, 600, 5000}[random.IntN(4)])
	for n := range item.Wakeups {
		state.Consumed = append(state.Consumed, item.Wakeups[n].ID)
	}
	command, err := supervisor.NewCommand(item, "stepped", state, state, supervisor.Continue{})
	if err != nil {
		return nil, err
	}
	command.ConsumedWakeups = state.Consumed
	command.ActionIntents = crashIntents(item, state.Step)
	var kept *supervisor.WorkItem
	switch random.IntN(3) {
	case 0:
		kept, err = q.CommitAndKeep(ctx, item, &command, 200*time.Millisecond)
	case 1:
		lease := supervisor.Lease{TenantID: item.TenantID, InstanceID: item.ID, WorkerID: "w", Version: item.LeaseVersion, Duration: time.Second}
		if err = q.Renew(ctx, lease); err == nil {
			err = q.CommitCommand(ctx, item, &command)
		}
	default:
		err = q.CommitCommand(ctx, item, &command)
	}
	switch {
	case errors.Is(err, supervisor.ErrLeaseLost):
		return nil, nil
	case err != nil:
		return nil, err
	}
	fmt.Fprintln(os.Stdout, "committed", item.ID, item.StateVersion+1)
	return kept, nil
}

// reported is what processes were told of instances.
type reported struct {
	started   map[string]bool
	delivered map[string][]string
	committed map[string]map[int64]int
	// settled are intents by their instance and the step that made them.
	settled map[string]map[string]bool
}

func newReported() reported {
	return reported{
		started: make(map[string]bool), delivered: make(map[string][]string), committed: make(map[string]map[int64]int),
		settled: make(map[string]map[string]bool),
	}
}

// read takes in the output of a process up to where it was killed.
func (r *reported) read(output io.Reader) {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 2 && fields[0] == "started":
			r.started[fields[1]] = true
		case len(fields) == 3 && fields[0] == "delivered":
			r.delivered[fields[1]] = append(r.delivered[fields[1]], fields[2])
		case len(fields) == 3 && fields[0] == "settled":
			if r.settled[fields[1]] == nil {
				r.settled[fields[1]] = make(map[string]bool)
			}
			r.settled[fields[1]][fields[2]] = true
		case len(fields) == 3 && fields[0] == "committed":
			version, err := strconv.ParseInt(fields[2], 10, 64)
			if err != nil {
				continue // cut off
			}
			if r.committed[fields[1]] == nil {
				r.committed[fields[1]] = make(map[int64]int)
			}
			r.committed[fields[1]][version]++
		}
	}
}

// Processes are killed at each write and between, again and again on one file:
// what was reported as done is there, nothing is there twice or by half, and
// the file is sound.
func TestCrash(t *testing.T) {
	rounds := 16
	if asked, err := strconv.Atoi(os.Getenv("SUPERVISOR_CRASH_ROUNDS")); err == nil {
		rounds = asked
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "queue.db")
	all := newReported()
	for round := range rounds {
		// Two processes at once; one of them is killed from outside after a
		// while, the other at its own n-th write or from outside, too.
		var processes sync.WaitGroup
		parts := make([]reported, 2)
		for n := range parts {
			parts[n] = newReported()
			env := []string{fmt.Sprintf("%s=%d", seedVariable, random.Uint64())}
			if n == 0 && round%2 == 0 {
				env = append(env, fmt.Sprintf("%s=%d", killVariable, 1+random.IntN(200)))
			}
			cmd := child(t, "step", path, env...)
			output, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			life := time.Duration(random.Int64N(int64(300 * time.Millisecond)))
			processes.Go(func() {
				reader := bufio.NewReader(output)
				// The life of a process begins when it has opened the file, or
				// with its start in some rounds, for opening can be cut off, too.
				if round%4 != 3 {
					_, _ = reader.ReadString('\n')
				}
				timer := time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
				defer timer.Stop()
				parts[n].read(reader)
				err := cmd.Wait()
				if cmd.ProcessState.ExitCode() != -1 { // what a signal leaves
					t.Errorf("round %d: a process ended by itself: %v", round, err)
				}
			})
		}
		processes.Wait()
		for n := range parts {
			all.add(&parts[n])
		}
		if t.Failed() {
			return
		}
		all.verify(t, path, round)
	}
	commits := 0
	for _, versions := range all.committed {
		commits += len(versions)
	}
	t.Logf("%d commits in %d rounds", commits, rounds)
	require.Positive(t, commits)
	drainIntents(t, path)
	all.verify(t, path, rounds)
}

// A process that is killed at any write of its first migration leaves a file that
// the next one opens, with the same tables in the end.
func TestCrashInMigration(t *testing.T) {
	whole := dump(t, open(t, Options{}).DB())
	for write := 1; ; write++ {
		path := filepath.Join(t.TempDir(), "queue.db")
		cmd := child(t, "migrate", path, fmt.Sprintf("%s=%d", killVariable, write))
		err := cmd.Run()
		q := openFile(t, path, Options{})
		require.Equal(t, whole, dump(t, q.DB()), "killed at write %d", write)
		require.NoError(t, q.Close())
		if err == nil {
			require.Greater(t, write, 10)
			return
		}
		require.Equal(t, -1, cmd.ProcessState.ExitCode(), "what a signal leaves")
	}
}

func (r *reported) add(other *reported) {
	for id := range other.started {
		r.started[id] = true
	}
	for id, wakeups := range other.delivered {
		r.delivered[id] = append(r.delivered[id], wakeups...)
	}
	for id, versions := range other.committed {
		if r.committed[id] == nil {
			r.committed[id] = make(map[int64]int)
		}
		for version, times := range versions {
			r.committed[id][version] += times
		}
	}
	for id, steps := range other.settled {
		if r.settled[id] == nil {
			r.settled[id] = make(map[string]bool)
		}
		maps.Copy(r.settled[id], steps)
	}
}

// verify compares the file with what was reported.
func (r *reported) verify(t *testing.T, path string, round int) {
	t.Helper()
	db := (&faultyStore{path: path}).pool()
	defer func() { require.NoError(t, db.Close()) }()
	q, err := Open(t.Context(), "", Options{DB: db, IsBusy: testIsBusy})
	require.NoError(t, err)
	defer func() { require.NoError(t, q.Close()) }()
	var verdict string
	require.NoError(t, db.QueryRowContext(t.Context(), `PRAGMA integrity_check`).Scan(&verdict))
	require.Equal(t, "ok", verdict, "round %d", round)
	for id := range r.started {
		snapshot, err := q.Get(t.Context(), supervisor.DefaultTenantID, id)
		require.NoError(t, err, "round %d: a started instance", round)
		consumed := make(map[string]int)
		var version int64
		for event, err := range q.History(t.Context(), supervisor.DefaultTenantID, id) {
			require.NoError(t, err)
			version++
			require.Equal(t, version, event.StateVersion, "round %d: versions of %s", round, id)
			var state crashState
			require.NoError(t, json.Unmarshal(event.Payload, &state))
			require.Equal(t, version, state.Step, "round %d: a step of %s", round, id)
			for _, wakeup := range state.Consumed {
				consumed[wakeup]++
			}
			if version == snapshot.StateVersion {
				require.Equal(t, string(event.Payload), string(snapshot.State), "round %d: the state of %s", round, id)
			}
		}
		require.Equal(t, snapshot.StateVersion, version, "round %d: the last version of %s", round, id)
		for reported, times := range r.committed[id] {
			require.LessOrEqual(t, reported, version, "round %d: a commit of %s is lost", round, id)
			require.Equal(t, 1, times, "round %d: version %d of %s was committed twice", round, reported, id)
		}
		r.verifyWakeups(t, q, id, consumed, snapshot.PendingWakeups)
		r.verifyIntents(t, q, path, id, version, round)
	}
}

// verifyWakeups proves that each delivery waits or was consumed, once.
func (r *reported) verifyWakeups(t *testing.T, q *Queue, id string, consumed map[string]int, pending int) {
	t.Helper()
	rows, err := q.DB().QueryContext(t.Context(), `SELECT w.id, w.consumed_at IS NOT NULL FROM supervisor_wakeups w
		JOIN supervisor_instances i ON i.key = w.instance WHERE i.id = ?`, id)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	stored := make(map[string]bool)
	waiting := 0
	for rows.Next() {
		var wakeup string
		var gone bool
		require.NoError(t, rows.Scan(&wakeup, &gone))
		stored[wakeup] = true
		if !gone {
			waiting++
		}
		require.Equal(t, gone, consumed[wakeup] > 0, "wakeup %s of %s", wakeup, id)
		require.LessOrEqual(t, consumed[wakeup], 1, "consumptions of %s of %s", wakeup, id)
	}
	require.NoError(t, rows.Err())
	require.Equal(t, waiting, pending)
	for _, wakeup := range r.delivered[id] {
		require.True(t, stored[wakeup], "wakeup %s of %s is lost", wakeup, id)
	}
}
