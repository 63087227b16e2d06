// Package queuetest proves queues: a suite of cases, one for each rule that the
// interfaces of package supervisor state, and a wrapper that makes any queue
// fail on purpose.
//
// # Adopting it
//
// A test of a queue is a few lines:
//
//	func TestQueue(t *testing.T) {
//		queuetest.Run(t, func(t *testing.T) queuetest.Queue {
//			queue, err := myqueue.Open(t.Context(), t.TempDir())
//			if err != nil {
//				t.Fatal(err)
//			}
//			t.Cleanup(func() { queue.Close() })
//			return queuetest.Queue{WorkQueue: queue, Add: queue.insert}
//		})
//	}
//
// Each rule is a sub-test, so that one of them runs alone with
//
//	go test -run 'TestQueue/fencing/frozen-holder'
//
// and a failure begins with the sentence that the queue broke. A queue needs no
// more than [supervisor.WorkQueue] and a way to add an instance; cases that need
// more are skipped by name. One that is also a [supervisor.IntentQueue] runs the
// cases of intents, and with [supervisor.IntentWaiter] and
// [supervisor.IntentOperator] all of them.
//
// Most cases share one queue and run side by side, kept apart by tenants and
// specs, so that the suite is also a test under load; on a real store it takes
// some seconds. Set [Queue.Lease] for a store that cannot serve leases of 300 ms.
//
// Queues in memory that go by [time.Now] use [RunInBubbles], which waits for
// nothing and also runs the cases that wait for days.
//
// # What it proves
//
// That every rule holds in the situations that the cases build: claims, their
// order and fairness, leases, fencing, delivery keys, the order of checks,
// epochs, pauses, cancellation, retries, wakeups, lifecycles, fidelity of JSON
// and text, refusal of what no store can hold, races of claimers and
// committers, and, given [Queue.FailWrite], that a store that fails at any write
// leaves all or nothing; and that the queue answers random calls as the memory
// queue does, with a seed to repeat them by ([Queue.Seed]).
//
// Of intents: their order and turns, leases and fences, what refuses a mark and
// what follows, receipts and contradictions, that an outcome is told once and in
// the transaction that stores it, that nothing ambiguous is repeated without
// proof, withdrawal by a cancel, the answers of operators, limits over all
// dispatchers, and waiting.
//
// The suite is itself proved: each of more than two hundred queues in its tests is
// broken in one rule and caught by a case that is named.
//
// # What it cannot prove
//
// Durability: that what was acknowledged survives a crash of the process or a
// loss of power. Cost: that claims stay cheap with a million waiting instances.
// Behaviour of the store under faults that [Queue.FailWrite] does not inject.
// Rare interleavings: run it with -race and -count. Dispatch as a whole: what a
// dispatcher makes of the answers of its providers is not the queue's.
//
// # Making queues fail
//
// [Faults] wraps a queue for your own tests: it fails, delays, drops or panics
// calls, or applies them and loses the answer, by a plan or at random with a
// seed. Wrap is for what supervisors use, WrapIntents for what dispatchers and
// operators do.
package queuetest
