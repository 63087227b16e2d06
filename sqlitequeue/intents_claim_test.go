package sqlitequeue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// An intent that cannot be decoded holds up no other, is not tried again at
// once and keeps no slot.
func TestClaimIntentsSetsAsideWhatIsMalformed(t *testing.T) {
	q := open(t, Options{})
	require.NoError(t, q.LimitIntents(t.Context(), supervisor.IntentLimit{CapabilityID: "pay", Max: 1}))
	plan(t, q, "a", write("a", payPin))
	plan(t, q, "b", write("b", payPin))
	plan(t, q, "c", write("c", payPin))
	first := claimIntents(t, q, 1)
	marked, err := q.MarkIntent(t.Context(), &first[0])
	require.NoError(t, err)
	require.Empty(t, claimIntents(t, q, 5))
	_, err = q.DB().ExecContext(t.Context(), `UPDATE supervisor_intents SET progress = '{"broken' WHERE id = 'b'`)
	require.NoError(t, err)
	require.NoError(t, q.SettleIntent(t.Context(), &marked, succeeded()))
	require.Empty(t, claimIntents(t, q, 5))
	require.Equal(t, []string{"c"}, workIDs(claimIntents(t, q, 5)))
	handled := 0
	for record, err := range q.ListIntents(t.Context(), supervisor.IntentFilter{}) {
		if err != nil {
			require.ErrorIs(t, err, errMalformed)
			require.ErrorContains(t, err, `"b"`)
			break
		}
		require.Equal(t, "a", record.Intent.ID)
		handled++
	}
	require.Equal(t, 1, handled)
	_, err = q.MarkIntent(t.Context(), &supervisor.IntentWork{IntentRecord: supervisor.IntentRecord{
		Intent: supervisor.ActionIntent{TenantID: supervisor.DefaultTenantID, InstanceID: "b", ID: "b"},
	}})
	require.ErrorIs(t, err, supervisor.ErrUnavailable)
}

// Settled, parked and future intents, and those of other capabilities, are not
// looked at.
func TestClaimIntentsPlans(t *testing.T) {
	q := open(t, Options{})
	for n := range 20 {
		plan(t, q, fmt.Sprint(n), write("a", payPin), write("b", mailPin))
	}
	_, err := q.DB().ExecContext(t.Context(), `ANALYZE`)
	require.NoError(t, err)
	for text, wanted := range map[string]string{
		selectDueIntents:     "SEARCH a USING INDEX supervisor_intents_due (capability=? AND due_at>? AND due_at<?)",
		selectFirstDueIntent: "SEARCH supervisor_intents USING COVERING INDEX supervisor_intents_due (capability=?",
		selectDuePins:        "SEARCH supervisor_intents USING COVERING INDEX supervisor_intents_due (capability>?)",
		selectFree:           "USING INDEX supervisor_limits_free",
		selectWaits:          "SEARCH supervisor_intents USING COVERING INDEX supervisor_intents_limit (limit_key=? AND parked=? AND capability=?)",
		countMeant:           "SEARCH supervisor_intents USING COVERING INDEX supervisor_intents_limit (limit_key=? AND parked=? AND capability=?)",
		waitingPins:          "SEARCH supervisor_intents USING COVERING INDEX supervisor_intents_limit (limit_key=? AND parked=? AND capability>?)",
		resumeIdleTenant:     "SEARCH supervisor_intents USING INDEX supervisor_intents_idle (tenant=?",
		resumeIdleResource:   "SEARCH supervisor_intents USING INDEX supervisor_intents_idle (tenant=? AND resource_id=?)",
	} {
		args := make([]any, 1+strings.Count(text, "?"))
		plan := strings.Join(texts(t, q, `EXPLAIN QUERY PLAN `+text, args[:parameters(text)]...), "\n")
		require.Contains(t, plan, wanted, text)
		require.NotContains(t, plan, "TEMP B-TREE", text)
	}
}

// texts returns the last column of what a statement selects.
func texts(t *testing.T, q *Queue, text string, args ...any) (found []string) {
	t.Helper()
	rows, err := q.DB().QueryContext(t.Context(), text, args...)
	require.NoError(t, err, text)
	defer func() { require.NoError(t, rows.Close()) }()
	columns, err := rows.Columns()
	require.NoError(t, err)
	for rows.Next() {
		var last string
		values := make([]any, len(columns))
		for n := range values {
			values[n] = new(any)
		}
		values[len(values)-1] = &last
		require.NoError(t, rows.Scan(values...))
		found = append(found, last)
	}
	require.NoError(t, rows.Err())
	return found
}

// parameters counts the parameters of a statement.
func parameters(text string) int {
	for n := 9; n > 0; n-- {
		if strings.Contains(text, fmt.Sprint("?", n)) {
			return n
		}
	}
	return strings.Count(text, "?")
}

// commitOne has an instance in another process commit an intent, once a line on
// its standard input asks for it.
func commitOne(ctx context.Context, path string) (err error) {
	q, closeAll, err := openInChild(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	instance, err := supervisor.NewInstance("spec", 1, nil)
	if err != nil {
		return err
	}
	instance.CapabilityPins = []supervisor.CapabilityPin{payPin}
	if _, err := q.Start(ctx, instance, time.Time{}); err != nil {
		return err
	}
	items, err := q.ClaimDue(ctx, supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: time.Minute, Limit: 1})
	if err != nil || len(items) != 1 {
		return fmt.Errorf("%d items, %w", len(items), err)
	}
	fmt.Fprintln(os.Stdout, "ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	command, err := supervisor.NewCommand(&items[0], "planned", nil, nil, supervisor.Complete{})
	if err != nil {
		return err
	}
	command.ActionIntents = []supervisor.ActionIntent{own(&items[0], write("a", payPin))}
	return q.CommitCommand(ctx, &items[0], &command)
}

func TestWaitIntentsNoticesOtherProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q := openFile(t, path, Options{PollInterval: 10 * time.Millisecond})
	cmd := child(t, "commit", path)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)

	waited := make(chan error, 2)
	var waiters sync.WaitGroup
	for _, pins := range [][]supervisor.CapabilityPin{nil, {mailPin, payPin}} {
		waiters.Go(func() { waited <- q.WaitIntents(t.Context(), pins) })
	}
	select {
	case err := <-waited:
		t.Fatalf("WaitIntents of an empty queue returned %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	_, err = stdin.Write([]byte("go\n"))
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	waiters.Wait()
	require.NoError(t, <-waited)
	require.NoError(t, <-waited)
	require.Equal(t, []string{"a"}, workIDs(claimIntents(t, q, 1, mailPin, payPin)))
}

// BenchmarkClaimIntents measures a claim of 16 and giving them back, beside
// intents that are settled, parked or due later.
func BenchmarkClaimIntents(b *testing.B) {
	for _, others := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			q := openDefault(b)
			var intents []supervisor.ActionIntent
			for n := range 64 {
				intents = append(intents, write(fmt.Sprint(n), payPin))
			}
			plan(b, q, "a", intents...)
			for n, change := range []string{
				`'succeeded', NULL, 0, 0, NULL, NULL`,
				`'prepared', NULL, 1, 1, NULL, NULL`,
				`'prepared', NULL, 2, 1, 7, created_at`,
				`'retryable', created_at + 3600000000, 0, 1, NULL, NULL`,
			} {
				_, err := q.DB().ExecContext(b.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
					INSERT INTO supervisor_intents (version, instance, tenant, capability, state, due_at, parked, idle, limit_key, waits_since,
						lease_version, id, seq, idempotency_key, effect, retry_class, tenant_epoch, instance_epoch, resource_epoch,
						lease_epoch, action_epoch, created_at, requires_confirmation)
					SELECT 0, instance, tenant, capability, `+change+`, 0, ?2 || n.i, seq, idempotency_key, effect, retry_class,
						tenant_epoch, instance_epoch, resource_epoch, lease_epoch, action_epoch, created_at, 0
					FROM n CROSS JOIN (SELECT * FROM supervisor_intents LIMIT 1)`, others/4, fmt.Sprintf("other-%d-", n))
				require.NoError(b, err)
			}
			req := supervisor.IntentClaimRequest{WorkerID: "bench", LeaseDuration: time.Minute, Limit: 16}
			for b.Loop() {
				works, err := q.ClaimIntents(b.Context(), req)
				if err != nil || len(works) != req.Limit {
					b.Fatalf("%d intents, %v", len(works), err)
				}
				b.StopTimer()
				for n := range works {
					require.NoError(b, q.ReleaseIntent(b.Context(), &works[n], supervisor.IntentRelease{}))
				}
				b.StartTimer()
			}
		})
	}
}
