package sqlitequeue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// crashIntentEvery is how many steps of the crash test go with one intent.
const crashIntentEvery = 3

// crashIntents are the intents of a step: of each kind in turn.
func crashIntents(item *supervisor.WorkItem, step int64) []supervisor.ActionIntent {
	if step%crashIntentEvery != 0 {
		return nil
	}
	intent := supervisor.ActionIntent{
		ID: fmt.Sprint("intent ", step), Capability: crashPin, IdempotencyKey: "k", State: supervisor.ActionPrepared,
		Effect: supervisor.EffectExternalWrite, RetryClass: supervisor.IdempotencyNative,
	}
	switch step / crashIntentEvery % 4 {
	case 0:
		intent.Effect, intent.RetryClass = supervisor.EffectRead, supervisor.IdempotencyNone
	case 1:
		intent.RetryClass = supervisor.IdempotencyNone
	case 2:
		intent.RetryClass = supervisor.IdempotencyReconcileBeforeRetry
	}
	return []supervisor.ActionIntent{own(item, intent)}
}

// ledger is a provider that is a directory: it remembers each hand-off by a
// link, which the kernel makes whole or not at all, and once.
type ledger string

// Entries of a ledger.
const (
	ledgerCalled  = "called"
	ledgerRefused = "refused"
)

func ledgerOf(path string) (ledger, error) {
	dir := path + ".ledger"
	return ledger(dir), os.MkdirAll(dir, 0o700)
}

// enter writes an entry for a hand-off and returns the one that there is.
func (l ledger) enter(handoff supervisor.Handoff, entry string) (found string, err error) {
	name := filepath.Join(string(l), url.PathEscape(handoff.Identity()))
	if err := os.Symlink(entry, name); !errors.Is(err, fs.ErrExist) {
		return entry, err
	}
	if found, err = os.Readlink(name); err == nil && entry == ledgerCalled && found == entry {
		err = fmt.Errorf("%s was handed off twice", handoff.Identity())
	}
	return found, err
}

// calls counts the attempts of an intent that were handed off.
func (l ledger) calls(t *testing.T, r *supervisor.IntentRecord) (calls int) {
	t.Helper()
	for attempt := 1; attempt <= r.Attempt+1; attempt++ {
		handoff := supervisor.Handoff{Intent: r.Intent, Attempt: attempt}
		found, err := os.Readlink(filepath.Join(string(l), url.PathEscape(handoff.Identity())))
		if err == nil && found == ledgerCalled {
			require.LessOrEqual(t, attempt, r.Attempt, "calls of what was not marked")
			calls++
		}
	}
	return calls
}

// crashDispatcher claims intents, hands them off to the ledger and settles them.
type crashDispatcher struct {
	q      *Queue
	ledger ledger
	random *rand.Rand
	// out is told what was reported as settled.
	out io.Writer
}

func (d *crashDispatcher) untilKilled(ctx context.Context) error {
	for {
		if err := d.q.WaitIntents(ctx, []supervisor.CapabilityPin{crashPin}); err != nil {
			return err
		}
		if _, err := d.once(ctx, 1+d.random.IntN(3)); err != nil {
			return err
		}
	}
}

func (d *crashDispatcher) once(ctx context.Context, limit int) (claimed int, err error) {
	works, err := d.q.ClaimIntents(ctx, supervisor.IntentClaimRequest{
		WorkerID: "d", LeaseDuration: 200 * time.Millisecond, Limit: limit, MarkRepeatable: d.random.IntN(2) == 0,
	})
	if err != nil {
		return 0, err
	}
	for n := range works {
		switch err := d.step(ctx, &works[n]); {
		case errors.Is(err, supervisor.ErrLeaseLost), errors.Is(err, supervisor.ErrIntentRefused), errors.Is(err, supervisor.ErrStateConflict):
			// It took longer than the lease, and somebody else goes on.
		case err != nil:
			return 0, fmt.Errorf("%s of %s: %w", works[n].Task, works[n].Intent.ID, err)
		}
	}
	return len(works), nil
}

func (d *crashDispatcher) step(ctx context.Context, work *supervisor.IntentWork) error {
	settle := func(s supervisor.Settlement) error {
		if err := d.q.SettleIntent(ctx, work, s); err != nil {
			return err
		}
		if s.State.Terminal() {
			fmt.Fprintln(d.out, "settled", work.Intent.InstanceID, strings.TrimPrefix(work.Intent.ID, "intent "))
		}
		return nil
	}
	success := supervisor.Settlement{
		State: supervisor.ActionSucceeded, Cause: supervisor.CauseReported, Proof: supervisor.ProofReported,
		Output: json.RawMessage(fmt.Sprintf(`{"attempt":%d}`, work.Attempt)),
	}
	switch work.Task {
	case supervisor.IntentTaskRecover:
		switch {
		case work.Repeatable():
			return settle(supervisor.Settlement{State: supervisor.ActionRetryable})
		case work.Intent.RetryClass == supervisor.IdempotencyReconcileBeforeRetry:
			switch found, err := d.ledger.enter(work.Handoff(), ledgerRefused); {
			case err != nil:
				return err
			case found == ledgerCalled:
				return settle(success)
			}
			return settle(supervisor.Settlement{State: supervisor.ActionRetryable, Proof: supervisor.ProofNotAccepted})
		}
		return settle(supervisor.Settlement{State: supervisor.ActionUnknown, Cause: supervisor.CauseAmbiguous})
	case supervisor.IntentTaskObserve, supervisor.IntentTaskCancel:
		return settle(success)
	}
	if work.Intent.State != supervisor.ActionDispatchCommitted {
		marked, err := d.q.MarkIntent(ctx, work)
		if err != nil {
			return err
		}
		*work = marked
	}
	if d.random.IntN(8) == 0 {
		return d.q.ReleaseIntent(ctx, work, supervisor.IntentRelease{NotHandedOff: true, After: time.Millisecond})
	}
	switch found, err := d.ledger.enter(work.Handoff(), ledgerCalled); {
	case err != nil:
		return err
	case found == ledgerRefused:
		// Somebody else found out that it was not accepted, for good.
		return settle(supervisor.Settlement{State: supervisor.ActionRetryable, Proof: supervisor.ProofNotAccepted})
	}
	success.Output = json.RawMessage(fmt.Sprintf(`{"attempt":%d}`, work.Attempt))
	if d.random.IntN(3) == 0 {
		return d.q.RecordReceipt(ctx, work, supervisor.Receipt{Reference: "ref", Report: supervisor.Report{After: time.Millisecond}})
	}
	return settle(success)
}

// verifyIntents compares the intents of an instance with the ledger, with what
// was reported as settled and with what the instance was told.
func (r *reported) verifyIntents(t *testing.T, q *Queue, path, id string, version int64, round int) {
	t.Helper()
	l, err := ledgerOf(path)
	require.NoError(t, err)
	told := make(map[string]bool)
	for _, wakeup := range texts(t, q, `SELECT w.id FROM supervisor_wakeups w JOIN supervisor_instances i ON i.key = w.instance WHERE i.id = ?`, id) {
		told[wakeup] = true
	}
	count := int64(0)
	for record, err := range q.ListIntents(t.Context(), supervisor.IntentFilter{TenantID: supervisor.DefaultTenantID, InstanceID: id}) {
		require.NoError(t, err)
		count++
		name := fmt.Sprintf("round %d: %s of %s, %s", round, record.Intent.ID, id, record.Intent.State)
		calls := l.calls(t, &record)
		if !record.Repeatable() {
			require.LessOrEqual(t, calls, 1, name)
		}
		switch record.Intent.State {
		case supervisor.ActionSucceeded:
			require.Positive(t, calls, name)
		case supervisor.ActionPrepared, supervisor.ActionRetryable:
			if !record.Repeatable() {
				require.Zero(t, calls, name)
			}
		}
		require.Equal(t, record.Intent.State.Terminal(), told["intent:"+record.Intent.ID+":settled"], name)
		require.Equal(t, record.Intent.State == supervisor.ActionUnknown, told[fmt.Sprintf("intent:%s:unknown:%d", record.Intent.ID, record.Attempt)], name)
		if r.settled[id][strings.TrimPrefix(record.Intent.ID, "intent ")] {
			require.True(t, record.Intent.State.Terminal(), name)
		}
	}
	require.Equal(t, version/crashIntentEvery, count, "round %d: intents of %s", round, id)
}

// drainIntents goes on with all that is left of the intents: none is lost.
func drainIntents(t *testing.T, path string) {
	t.Helper()
	q := openFile(t, path, Options{})
	l, err := ledgerOf(path)
	require.NoError(t, err)
	d := crashDispatcher{q: q, ledger: l, random: rand.New(rand.NewPCG(1, 1)), out: io.Discard}
	left := func() (open int) {
		require.NoError(t, q.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM supervisor_intents WHERE due_at IS NOT NULL`).Scan(&open))
		return open
	}
	for end := time.Now().Add(time.Minute); left() > 0; {
		require.True(t, time.Now().Before(end), "intents that are never settled")
		require.NoError(t, q.WaitIntents(t.Context(), nil))
		_, err := d.once(t.Context(), 64)
		require.NoError(t, err)
	}
	states := make(map[supervisor.ActionState]int)
	for record, err := range q.ListIntents(t.Context(), supervisor.IntentFilter{}) {
		require.NoError(t, err)
		states[record.Intent.State]++
		if record.Intent.State != supervisor.ActionSucceeded {
			require.Equal(t, supervisor.ActionUnknown, record.Intent.State)
			require.Equal(t, supervisor.IdempotencyNone, record.Intent.RetryClass)
		}
	}
	t.Logf("intents by state: %v", states)
	require.Positive(t, states[supervisor.ActionSucceeded])
}
