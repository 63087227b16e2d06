package queuetest

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// surface is the part of a [testing.T] that cases use. It is an interface of our
// own so that deliberately broken queues can be tried without failing a test.
// Fatalf and Skipf do not return.
type surface interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// ability is a set of what a case needs beyond a bare WorkQueue.
type ability uint

const (
	instances ability = 1 << iota
	releaser
	waiter
	keeper
	fastClock // waiting costs no time
	reopen
	failWrite
	shiftHost
	corrupt
	deny
	readIntents
	intentQueue
	intentWaiter
	intentOperator
)

// missing names what a queue lacks, for the message of a skip.
func (a ability) missing() string {
	var names []string
	for _, n := range []struct {
		ability ability
		name    string
	}{
		{instances, "supervisor.Instances"},
		{releaser, "supervisor.Releaser"},
		{waiter, "supervisor.Waiter"},
		{keeper, "supervisor.CommitKeeper"},
		{fastClock, "a bubble"},
		{reopen, "Queue.Reopen"},
		{failWrite, "Queue.FailWrite"},
		{shiftHost, "Queue.ShiftHost"},
		{corrupt, "Queue.Corrupt"},
		{deny, "Queue.Deny"},
		{readIntents, "Queue.Intents"},
		{intentQueue, "supervisor.IntentQueue"},
		{intentWaiter, "supervisor.IntentWaiter"},
		{intentOperator, "supervisor.IntentOperator"},
	} {
		if a&n.ability != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ", ")
}

// testCase proves one rule.
type testCase struct {
	topic, name string // of the sub-test
	// rule is the sentence that a failure breaks.
	rule  string
	needs ability
	// alone asks for a queue that no other case uses.
	alone bool
	// kept makes the trial commit with CommitAndKeep.
	kept bool
	run  func(x *trial)
}

// allCases lists the suite, topic by topic.
func allCases() []testCase {
	return slices.Concat(
		claimCases(),
		orderCases(),
		fairnessCases(),
		renewCases(),
		fencingCases(),
		commitCases(),
		refusalCases(),
		keyCases(),
		epochCases(),
		pauseCases(),
		cancelCases(),
		retryCases(),
		wakeupCases(),
		deliverCases(),
		lifecycleCases(),
		clockCases(),
		fidelityCases(),
		identifierCases(),
		hostileCases(),
		startCases(),
		concurrencyCases(),
		revisionCases(),
		releaseCases(),
		waitCases(),
		keepCases(),
		getCases(),
		listCases(),
		historyCases(),
		explainCases(),
		pruneCases(),
		atomicityCases(),
		intentCases(),
		agreementCases(),
	)
}

// withKept adds to each case its twin that commits with CommitAndKeep, which
// has the same checks and errors as CommitCommand.
func withKept(cases []testCase) []testCase {
	twins := slices.Clone(cases)
	for n := range twins {
		twins[n].name += "-and-keep"
		twins[n].needs |= keeper
		twins[n].kept = true
	}
	return append(cases, twins...)
}

// byTopic groups cases, topics in their first order.
func byTopic(cases []testCase) iter.Seq2[string, []testCase] {
	return func(yield func(string, []testCase) bool) {
		var topics []string
		groups := map[string][]testCase{}
		for _, c := range cases {
			if groups[c.topic] == nil {
				topics = append(topics, c.topic)
			}
			groups[c.topic] = append(groups[c.topic], c)
		}
		for _, topic := range topics {
			if !yield(topic, groups[topic]) {
				return
			}
		}
	}
}

// subject is an opened queue with its abilities.
type subject struct {
	Queue
	abilities ability
	release   supervisor.Releaser
	wait      supervisor.Waiter
	keep      supervisor.CommitKeeper
	intents   supervisor.IntentQueue
	waitFor   supervisor.IntentWaiter
	operator  supervisor.IntentOperator
	reopen    func() supervisor.WorkQueue

	// offset is what the store's clock is ahead of the host's, measured once;
	// slack bounds the error of it.
	offsetOnce    sync.Once
	offset, slack time.Duration
}

func newSubject(t *testing.T, open func(t *testing.T) Queue) *subject {
	t.Helper()
	s := detect(open(t))
	if s.Reopen != nil {
		s.reopen = func() supervisor.WorkQueue { return s.Reopen(t) }
	}
	return s
}

// detect finds the optional abilities of a queue.
func detect(queue Queue) *subject {
	s := &subject{Queue: queue}
	if s.Lease <= 0 {
		s.Lease = defaultLease
	}
	if s.Instances == nil {
		s.Instances, _ = queue.WorkQueue.(supervisor.Instances)
	}
	s.release, _ = queue.WorkQueue.(supervisor.Releaser)
	s.wait, _ = queue.WorkQueue.(supervisor.Waiter)
	s.keep, _ = queue.WorkQueue.(supervisor.CommitKeeper)
	s.intents, _ = queue.WorkQueue.(supervisor.IntentQueue)
	s.waitFor, _ = queue.WorkQueue.(supervisor.IntentWaiter)
	s.operator, _ = queue.WorkQueue.(supervisor.IntentOperator)
	for _, found := range []struct {
		ability ability
		has     bool
	}{
		{instances, s.Instances != nil},
		{releaser, s.release != nil},
		{waiter, s.wait != nil},
		{keeper, s.keep != nil},
		{reopen, queue.Reopen != nil},
		{failWrite, queue.FailWrite != nil},
		{shiftHost, queue.ShiftHost != nil},
		{corrupt, queue.Corrupt != nil},
		{deny, queue.Deny != nil},
		{readIntents, queue.Intents != nil},
		{intentQueue, s.intents != nil},
		{intentWaiter, s.waitFor != nil},
		{intentOperator, s.operator != nil},
	} {
		if found.has {
			s.abilities |= found.ability
		}
	}
	return s
}

// caseTimeout bounds the calls of one case.
const caseTimeout = 2 * time.Minute

// try runs the case on a queue.
func (c testCase) try(ctx context.Context, t surface, s *subject) {
	t.Helper()
	if s.WorkQueue == nil || (s.Add == nil && s.Instances == nil) {
		t.Fatalf("queuetest: a Queue needs a WorkQueue, and Add or supervisor.Instances to add instances with")
	}
	if lacks := c.needs &^ s.abilities; lacks != 0 {
		t.Skipf("the queue lacks %s", lacks.missing())
	}
	// A queue that never answers fails its case instead of the whole run.
	limit := caseTimeout
	if s.abilities&fastClock != 0 {
		limit = 1000 * 24 * time.Hour
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	id := c.topic + "/" + c.name
	c.run(&trial{
		surface: t, subject: s, ctx: ctx, kept: c.kept, rule: c.rule,
		tenant: "tenant of " + id, spec: "spec of " + id,
	})
}
