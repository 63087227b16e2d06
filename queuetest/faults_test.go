package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// faulty is a model behind a plan.
func faulty(t *testing.T, seed uint64, plan ...Fault) (*Faults, *model, supervisor.WorkQueue) {
	t.Helper()
	faults, err := NewFaults(seed, plan...)
	if err != nil {
		t.Fatal(err)
	}
	m := newModel(broken{})
	return faults, m, faults.Wrap(m)
}

func started(t *testing.T, queue any, ids ...string) {
	t.Helper()
	for _, id := range ids {
		instance, err := supervisor.NewInstance("spec", 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		instance.ID = id
		if ok, err := queue.(supervisor.Instances).Start(t.Context(), instance, time.Time{}); !ok || err != nil {
			t.Fatalf("Start is %v with error %v", ok, err)
		}
	}
}

func claimOf(t *testing.T, queue supervisor.WorkQueue) supervisor.WorkItem {
	t.Helper()
	items, err := queue.ClaimDue(t.Context(), supervisor.ClaimRequest{WorkerID: worker, LeaseDuration: held, Limit: 1})
	if err != nil || len(items) != 1 {
		t.Fatalf("ClaimDue is %v with error %v", items, err)
	}
	return items[0]
}

func completion(item *supervisor.WorkItem) *supervisor.TransitionCommand {
	command, err := supervisor.NewCommand(item, "done", nil, 1, supervisor.Complete{})
	if err != nil {
		panic(err)
	}
	return &command
}

func TestFaultsFail(t *testing.T) {
	other := errors.New("the disk is full")
	faults, m, queue := faulty(t, 1,
		Fault{Kind: Fail, Op: OpCommitCommand, Call: 1},
		Fault{Kind: Fail, Op: OpCommitCommand, Call: 3, Err: other},
	)
	started(t, queue, "a")
	item := claimOf(t, queue)
	err := queue.CommitCommand(t.Context(), &item, completion(&item))
	if !errors.Is(err, supervisor.ErrUnavailable) || !strings.Contains(err.Error(), "CommitCommand call 1, seed 1") {
		t.Errorf("the first commit: %v", err)
	}
	if s, _ := m.Get(t.Context(), item.TenantID, "a"); s.StateVersion != 0 {
		t.Error("a failed commit was applied")
	}
	if err := queue.CommitCommand(t.Context(), &item, completion(&item)); err != nil {
		t.Errorf("the second commit: %v", err)
	}
	if err := queue.CommitCommand(t.Context(), &item, completion(&item)); !errors.Is(err, other) {
		t.Errorf("the third commit: %v", err)
	}
	if got := faults.Calls(OpCommitCommand); got != 3 {
		t.Errorf("%d commits were counted", got)
	}
	want := []Injection{{OpCommitCommand, 1, Fail}, {OpCommitCommand, 3, Fail}}
	if got := faults.Injected(); !slices.Equal(got, want) {
		t.Errorf("injected were %v", got)
	}
}

func TestFaultsApplyThenFail(t *testing.T) {
	_, m, queue := faulty(t, 1, Fault{Kind: ApplyThenFail, Op: OpCommitCommand}, Fault{Kind: ApplyThenFail, Op: OpClaimDue, Call: 1})
	started(t, queue, "a", "b")
	items, err := queue.ClaimDue(t.Context(), supervisor.ClaimRequest{WorkerID: worker, LeaseDuration: held, Limit: 1})
	if !errors.Is(err, supervisor.ErrUnavailable) || items != nil {
		t.Errorf("ClaimDue is %v with error %v", items, err)
	}
	item := claimOf(t, queue) // the other one, for the first is leased to nobody
	if err := queue.CommitCommand(t.Context(), &item, completion(&item)); !errors.Is(err, supervisor.ErrCommitUnknown) {
		t.Errorf("the commit: %v", err)
	}
	if s, _ := m.Get(t.Context(), item.TenantID, item.ID); s.Status != supervisor.StatusCompleted {
		t.Error("the commit was not applied")
	}
	// What the queue itself refuses was not applied, and says so.
	item.LeaseVersion--
	command := completion(&item)
	command.DeliveryKey = "another"
	if err := queue.CommitCommand(t.Context(), &item, command); !errors.Is(err, supervisor.ErrLeaseLost) {
		t.Errorf("the refused commit: %v", err)
	}
}

func TestFaultsDelayAndDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, queue := faulty(t, 1,
			Fault{Kind: Delay, Op: OpClaimDue, Call: 1, Delay: time.Minute},
			Fault{Kind: Delay, Op: OpClaimDue, Call: 2, Delay: time.Minute},
			Fault{Kind: Drop, Op: OpCommitCommand},
		)
		started(t, queue, "a")
		begun := time.Now()
		item := claimOf(t, queue)
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("the delayed claim took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req := supervisor.ClaimRequest{WorkerID: worker, LeaseDuration: held, Limit: 1}
		if _, err := queue.ClaimDue(ctx, req); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the claim whose context ended: %v", err)
		}
		begun = time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := queue.CommitCommand(ctx, &item, completion(&item)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the dropped commit: %v", err)
		}
		if took := time.Since(begun); took != time.Hour {
			t.Errorf("the dropped commit took %v", took)
		}
	})
}

func TestFaultsPanic(t *testing.T) {
	_, _, queue := faulty(t, 7, Fault{Kind: Panic, Op: OpRenew})
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "Renew call 1, seed 7") {
			t.Errorf("the panic is %q", text)
		}
	}()
	_ = queue.Renew(t.Context(), supervisor.Lease{})
	t.Error("Renew returned")
}

func TestFaultsOfEveryOperation(t *testing.T) {
	faults, _, queue := faulty(t, 1, Fault{Kind: Fail})
	client := queue.(supervisor.Instances)
	ctx := t.Context()
	item := supervisor.WorkItem{}
	errs := map[Op]error{
		OpAdmitEvaluation: queue.AdmitEvaluation(ctx, &item),
		OpRenew:           queue.Renew(ctx, supervisor.Lease{}),
		OpCommitCommand:   queue.CommitCommand(ctx, &item, nil),
		OpRelease:         queue.(supervisor.Releaser).Release(ctx, &item, ""),
		OpWaitDue:         queue.(supervisor.Waiter).WaitDue(ctx, nil),
		OpDeliver:         client.Deliver(ctx, "t", "a", supervisor.Wakeup{}, time.Time{}),
		OpCancel:          client.Cancel(ctx, "t", "a"),
		OpPause:           client.Pause(ctx, supervisor.Scope{}),
		OpResume:          client.Resume(ctx, supervisor.Scope{}),
		OpRetry:           client.Retry(ctx, "t", "a"),
		OpPublishRevision: client.PublishRevision(ctx, "t", nil),
	}
	_, errs[OpClaimDue] = queue.ClaimDue(ctx, supervisor.ClaimRequest{})
	_, errs[OpLoadRevision] = queue.LoadRevision(ctx, &item)
	_, errs[OpCommitAndKeep] = queue.(supervisor.CommitKeeper).CommitAndKeep(ctx, &item, nil, 0)
	_, errs[OpStart] = client.Start(ctx, supervisor.Instance{}, time.Time{})
	_, errs[OpGet] = client.Get(ctx, "t", "a")
	_, errs[OpExplain] = client.Explain(ctx, "t", "a")
	_, errs[OpPrune] = client.Prune(ctx, time.Time{})
	for _, err := range client.List(ctx, supervisor.Filter{}) {
		errs[OpList] = errors.Join(errs[OpList], err)
	}
	for _, err := range client.History(ctx, "t", "a") {
		errs[OpHistory] = errors.Join(errs[OpHistory], err)
	}
	intents := faults.WrapIntents(newModel(broken{}))
	operator := intents.(supervisor.IntentOperator)
	work, key := supervisor.IntentWork{}, supervisor.IntentKey{}
	_, errs[OpClaimIntents] = intents.ClaimIntents(ctx, supervisor.IntentClaimRequest{})
	_, errs[OpMarkIntent] = intents.MarkIntent(ctx, &work)
	errs[OpRenewIntent] = intents.RenewIntent(ctx, supervisor.IntentLease{})
	errs[OpRecordReceipt] = intents.RecordReceipt(ctx, &work, supervisor.Receipt{})
	errs[OpSettleIntent] = intents.SettleIntent(ctx, &work, supervisor.Settlement{})
	errs[OpReleaseIntent] = intents.ReleaseIntent(ctx, &work, supervisor.IntentRelease{})
	errs[OpWaitIntents] = intents.(supervisor.IntentWaiter).WaitIntents(ctx, nil)
	errs[OpConfirmIntent] = operator.ConfirmIntent(ctx, key, "")
	errs[OpRejectIntent] = operator.RejectIntent(ctx, key, "", "")
	errs[OpResolveIntent] = operator.ResolveIntent(ctx, key, "", supervisor.IntentResolution{})
	errs[OpLimitIntents] = operator.LimitIntents(ctx, supervisor.IntentLimit{})
	for _, err := range operator.ListIntents(ctx, supervisor.IntentFilter{}) {
		errs[OpListIntents] = errors.Join(errs[OpListIntents], err)
	}
	for _, op := range ops() {
		if !errors.Is(errs[op], supervisor.ErrUnavailable) {
			t.Errorf("%s: error is %v", op, errs[op])
		}
		if got := faults.Calls(op); got != 1 {
			t.Errorf("%s was counted %d times", op, got)
		}
	}
}

func TestFaultsOfListings(t *testing.T) {
	_, _, queue := faulty(t, 1, Fault{Kind: ApplyThenFail, Op: OpList, Call: 2})
	started(t, queue, "a", "b")
	list := queue.(supervisor.Instances).List(t.Context(), supervisor.Filter{})
	for reading, want := range []string{"a b", "a b error", "a b"} {
		var got []string
		for s, err := range list {
			if err != nil {
				got = append(got, "error")
				continue
			}
			got = append(got, s.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("reading %d yields %v, want %s", reading+1, got, want)
		}
	}
	for range list {
		break // a listing that is stopped yields nothing more
	}
}

func TestFaultsByChanceRepeat(t *testing.T) {
	fates := func(seed uint64) string {
		var fates strings.Builder
		_, _, queue := faulty(t, seed, Fault{Kind: Fail, Op: OpRenew, Probability: 0.3})
		for range 1000 {
			if err := queue.Renew(t.Context(), supervisor.Lease{Duration: 1}); errors.Is(err, supervisor.ErrUnavailable) {
				fates.WriteByte('x')
			} else {
				fates.WriteByte('.')
			}
			// Calls of other operations change nothing.
			_ = queue.AdmitEvaluation(t.Context(), &supervisor.WorkItem{})
		}
		return fates.String()
	}
	first := fates(42)
	if fates(42) != first {
		t.Error("the same seed gives other faults")
	}
	if fates(43) == first {
		t.Error("another seed gives the same faults")
	}
	if failed := strings.Count(first, "x"); failed < 230 || failed > 370 {
		t.Errorf("of 1000 calls with probability 0.3 %d failed", failed)
	}
}

// Each of these has the abilities that its name says.
type (
	bareQueue  struct{ supervisor.WorkQueue }
	releasing  struct{ supervisor.Releaser }
	waiting    struct{ supervisor.Waiter }
	keeping    struct{ supervisor.CommitKeeper }
	clientSide struct{ supervisor.Instances }
)

func TestFaultsForwardAbilities(t *testing.T) {
	m := newModel(broken{})
	b, r, w, k, c := bareQueue{m}, releasing{m}, waiting{m}, keeping{m}, clientSide{m}
	for n, queue := range []supervisor.WorkQueue{
		b,
		struct {
			bareQueue
			releasing
		}{b, r},
		struct {
			bareQueue
			waiting
		}{b, w},
		struct {
			bareQueue
			keeping
		}{b, k},
		struct {
			bareQueue
			clientSide
		}{b, c},
		struct {
			bareQueue
			releasing
			waiting
		}{b, r, w},
		struct {
			bareQueue
			releasing
			keeping
		}{b, r, k},
		struct {
			bareQueue
			releasing
			clientSide
		}{b, r, c},
		struct {
			bareQueue
			waiting
			keeping
		}{b, w, k},
		struct {
			bareQueue
			waiting
			clientSide
		}{b, w, c},
		struct {
			bareQueue
			keeping
			clientSide
		}{b, k, c},
		struct {
			bareQueue
			releasing
			waiting
			keeping
		}{b, r, w, k},
		struct {
			bareQueue
			releasing
			waiting
			clientSide
		}{b, r, w, c},
		struct {
			bareQueue
			releasing
			keeping
			clientSide
		}{b, r, k, c},
		struct {
			bareQueue
			waiting
			keeping
			clientSide
		}{b, w, k, c},
		m,
	} {
		faults, err := NewFaults(1)
		if err != nil {
			t.Fatal(err)
		}
		got, want := detect(Queue{WorkQueue: faults.Wrap(queue)}).abilities, detect(Queue{WorkQueue: queue}).abilities
		want &^= intentQueue | intentWaiter | intentOperator
		if got != want {
			t.Errorf("queue %d: the wrapped one has %q, the other %q", n, got.missing(), want.missing())
		}
	}
}

func TestFaultsRefuseBadPlans(t *testing.T) {
	for field, fault := range map[string]Fault{
		"Kind":        {Kind: "explode"},
		"Op":          {Kind: Fail, Op: "Commit"},
		"Call":        {Kind: Fail, Call: -1},
		"Probability": {Kind: Fail, Probability: 1.1},
		"only one":    {Kind: Fail, Call: 1, Probability: 0.5},
		"Delay":       {Kind: Delay},
		"a delay":     {Kind: Fail, Delay: time.Second},
	} {
		if _, err := NewFaults(1, Fault{Kind: Fail}, fault); err == nil || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "fault 2") {
			t.Errorf("%+v: error is %v, want one about fault 2 that names %s", fault, err, field)
		}
	}
}

func TestFaultsAreRaceFree(t *testing.T) {
	faults, _, queue := faulty(t, 5, Fault{Kind: Fail, Probability: 0.5})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				_ = queue.Renew(t.Context(), supervisor.Lease{Duration: 1})
				_ = faults.Injected()
			}
		})
	}
	group.Wait()
	if got := faults.Calls(OpRenew); got != 800 {
		t.Errorf("%d calls were counted, want 800", got)
	}
}

// wholeQueue has every ability.
type wholeQueue struct {
	supervisor.WorkQueue
	supervisor.Instances
	supervisor.Releaser
	supervisor.Waiter
	supervisor.CommitKeeper
	supervisor.IntentQueue
	supervisor.IntentWaiter
	supervisor.IntentOperator
}

// These have the abilities of queues of intents that their names say.
type (
	bareIntents    struct{ supervisor.IntentQueue }
	waitingIntents struct {
		supervisor.IntentQueue
		supervisor.IntentWaiter
	}
	operatedIntents struct {
		supervisor.IntentQueue
		supervisor.IntentOperator
	}
)

func TestFaultsForwardAbilitiesOfIntents(t *testing.T) {
	m := newModel(broken{})
	for n, queue := range []supervisor.IntentQueue{bareIntents{m}, waitingIntents{m, m}, operatedIntents{m, m}, m} {
		faults, err := NewFaults(1)
		if err != nil {
			t.Fatal(err)
		}
		wrapped := faults.WrapIntents(queue)
		_, waits := queue.(supervisor.IntentWaiter)
		_, operates := queue.(supervisor.IntentOperator)
		if _, got := wrapped.(supervisor.IntentWaiter); got != waits {
			t.Errorf("queue %d: the wrapped one waits: %v, the other: %v", n, got, waits)
		}
		if _, got := wrapped.(supervisor.IntentOperator); got != operates {
			t.Errorf("queue %d: the wrapped one has an operator's side: %v, the other: %v", n, got, operates)
		}
	}
}

// TestWrappedModelPasses shows that a plan without faults changes nothing.
func TestWrappedModelPasses(t *testing.T) {
	RunInBubbles(t, func(t *testing.T) Queue {
		faults, m, wrapped := faulty(t, 1)
		queue := m.queue()
		intents := faults.WrapIntents(m)
		queue.WorkQueue = wholeQueue{
			wrapped, wrapped.(supervisor.Instances), wrapped.(supervisor.Releaser), wrapped.(supervisor.Waiter), wrapped.(supervisor.CommitKeeper),
			intents, intents.(supervisor.IntentWaiter), intents.(supervisor.IntentOperator),
		}
		return queue
	})
}
