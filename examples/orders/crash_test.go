package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/sqlitequeue"
)

// childEnv makes the test binary the program itself.
const childEnv = "ORDERS_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// child is the program in a process of its own.
func child(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	return cmd
}

// writeOrders writes a file in which every fourth order is not a plain one.
func writeOrders(t *testing.T, count int) (path string, orders []order) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "orders.jsonl")
	var text bytes.Buffer
	for n := range count {
		extra := ""
		o := order{ID: fmt.Sprintf("C-%03d", n), Country: "NL", Cents: 100}
		switch n % 16 {
		case 3:
			o.Card, extra = cardBusy, `,"card":"busy"`
		case 7:
			o.Card, extra = cardDeclined, `,"card":"declined"`
		case 11:
			o.Stock, extra = stockLate, `,"stock":"late"`
		case 15:
			o.Stock, extra = stockNever, `,"stock":"never"`
		}
		fmt.Fprintf(&text, `{"id":%q,"country":"NL","cents":100%s}`+"\n", o.ID, extra)
		orders = append(orders, o)
	}
	require.NoError(t, os.WriteFile(path, text.Bytes(), 0o600))
	return path, orders
}

// requireEachOnce holds the history of every order against its data: no step
// is missing, none was taken twice.
func requireEachOnce(t *testing.T, db string, orders []order) {
	t.Helper()
	queue, err := sqlitequeue.Open(t.Context(), db, sqlitequeue.Options{})
	require.NoError(t, err)
	defer queue.Close()
	for _, o := range orders {
		snapshot, err := queue.Get(t.Context(), supervisor.DefaultTenantID, o.ID)
		require.NoError(t, err)
		require.Equal(t, expectedOf(&o), snapshot.Status, o.ID)
		var got []string
		version := int64(0)
		for event, err := range queue.History(t.Context(), supervisor.DefaultTenantID, o.ID) {
			require.NoError(t, err)
			version++
			require.Equal(t, version, event.StateVersion, o.ID)
			if event.Type == supervisor.EventEvaluationFailed && o.Card != cardDeclined {
				// A slow machine may cut an evaluation off; it is no step, and is tried again.
				t.Logf("%s: %s", o.ID, event.Payload)
				continue
			}
			got = append(got, event.Type)
		}
		want := []string{"order.validated", "order.charging", "order.charged", "order.packed", "order.shipped"}
		switch {
		case o.Card == cardDeclined:
			want = []string{"order.validated", "order.charging", supervisor.EventEvaluationFailed}
		case o.Stock == stockLate:
			want = []string{"order.validated", "order.charging", "order.charged", "order.waiting", "order.packed", "order.shipped"}
		case o.Stock == stockNever:
			want = []string{"order.validated", "order.charging", "order.charged", "order.waiting", "order.cancelled"}
		}
		require.Equal(t, want, got, o.ID)
	}
	var verdict string
	file, err := sql.Open("sqlite", db)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&verdict))
	require.Equal(t, "ok", verdict)
}

// requireChargedOnce reads the ledger itself, without the program.
func requireChargedOnce(t *testing.T, path string, orders []order) {
	t.Helper()
	ledger, err := openLedger(t.Context(), path)
	require.NoError(t, err)
	defer ledger.close()
	charges := make(map[string][]int64)
	for v, err := range ledger.all(t.Context()) {
		require.NoError(t, err)
		if v.State == stateCharged {
			charges[v.Order] = append(charges[v.Order], v.Cents)
		}
	}
	want := make(map[string][]int64)
	for _, o := range orders {
		if expectedOf(&o) != supervisor.StatusFailed {
			want[o.ID] = []int64{openShop(0).total(o)}
		}
	}
	require.Equal(t, want, charges)
}

// rounds is how often a program is killed.
func rounds(t *testing.T, fallback int) int {
	t.Helper()
	if asked, err := strconv.Atoi(os.Getenv("SUPERVISOR_CRASH_ROUNDS")); err == nil {
		return asked
	}
	return fallback
}

// The payment server lives on while the program is killed again and again, and
// fails in every way: what it charges after its client has died is among them.
func TestNoOrderIsChargedTwiceOrLost(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	input, orders := writeOrders(t, 48)
	books := filepath.Join(t.TempDir(), "bank.db")
	server := child(t.Context(), "-serve", "127.0.0.1:0", "-db", books, "-faults")
	stdout, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	said := bufio.NewScanner(stdout)
	require.True(t, said.Scan())
	args := []string{"-db", filepath.Join(t.TempDir(), "shop.db"), "-payments", said.Text(), "-faults", input}

	for range rounds(t, 4) {
		killed := child(t.Context(), args...)
		require.NoError(t, killed.Start())
		time.Sleep(time.Duration(100+random.IntN(1500)) * time.Millisecond)
		require.NoError(t, killed.Process.Kill())
		_ = killed.Wait()
	}
	output, err := child(t.Context(), args...).CombinedOutput()
	require.NoError(t, err, string(output))
	require.Contains(t, string(output), "the payment server's ledger: 45 orders charged once, 0 twice, 0 not at all\nsince its start it failed ")
	require.Contains(t, string(output), "all as expected")
	requireEachOnce(t, args[1], orders)
	requireChargedOnce(t, ledgerOf(books), orders)
	t.Log(string(output[bytes.Index(output, []byte("since its start")):]))

	require.NoError(t, server.Process.Signal(os.Interrupt))
	require.NoError(t, server.Wait())
}

func TestCrashedRunIsGoneOnWith(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	input, orders := writeOrders(t, 160)
	db := filepath.Join(t.TempDir(), "shop.db")
	args := []string{"-db", db, "-pace", "100ms", input}

	for range rounds(t, 5) {
		killed := child(t.Context(), args...)
		require.NoError(t, killed.Start())
		time.Sleep(time.Duration(100+random.IntN(500)) * time.Millisecond)
		require.NoError(t, killed.Process.Kill()) // SIGKILL: nothing of it runs any more
		_ = killed.Wait()
	}
	output, err := child(t.Context(), args...).CombinedOutput()
	require.NoError(t, err, string(output))
	require.Contains(t, string(output), "160 orders in ")
	require.Contains(t, string(output), "all as expected")
	requireEachOnce(t, db, orders)
	requireChargedOnce(t, ledgerOf(db), orders)

	// There is nothing left to do for one more run, and it says the same.
	output, err = child(t.Context(), args...).CombinedOutput()
	require.NoError(t, err, string(output))
	require.Contains(t, string(output), ", 160 begun by an earlier run, 160 of them ended by it: all as expected")
	requireEachOnce(t, db, orders)
}

func TestProcessesShareAFile(t *testing.T) {
	input, orders := writeOrders(t, 160)
	db := filepath.Join(t.TempDir(), "shop.db")
	var outputs [3]bytes.Buffer
	var processes [3]*exec.Cmd
	for n := range processes {
		processes[n] = child(t.Context(), "-db", db, "-pace", "20ms", input)
		processes[n].Stdout, processes[n].Stderr = &outputs[n], &outputs[n]
		require.NoError(t, processes[n].Start())
	}
	for n, process := range processes {
		err := process.Wait()
		require.NoError(t, err, outputs[n].String())
		require.Contains(t, outputs[n].String(), "all as expected")
	}
	requireEachOnce(t, db, orders)
	requireChargedOnce(t, ledgerOf(db), orders)
}

func TestInterruptedRunIsGoneOnWith(t *testing.T) {
	input, orders := writeOrders(t, 16)
	db := filepath.Join(t.TempDir(), "shop.db")
	args := []string{"-db", db, "-pace", "300ms", input}
	interrupted := child(t.Context(), args...)
	beside, err := interrupted.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, interrupted.Start())
	lines := bufio.NewScanner(beside)
	require.True(t, lines.Scan(), "a line of progress") // now it is under way
	require.NoError(t, interrupted.Process.Signal(os.Interrupt))
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	var exit *exec.ExitError
	require.ErrorAs(t, interrupted.Wait(), &exit)
	require.Equal(t, exitWrong, exit.ExitCode())
	require.Equal(t, "orders: interrupted; the same command goes on with the orders on the way", last)

	all, err := child(t.Context(), args...).CombinedOutput()
	require.NoError(t, err, string(all))
	requireEachOnce(t, db, orders)
}
