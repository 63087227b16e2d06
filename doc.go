// Package supervisor supervises long-running workflow instances, as a library
// inside a Go service.
//
// Instances live in a durable queue. Again and again a supervisor
//
//  1. claims those that are due, under a lease with a fencing number,
//  2. evaluates each with the driver that owns its spec, concurrently, while the
//     lease is renewed and panics are contained,
//  3. validates the one command that the driver returns against what was claimed,
//  4. commits it in one transaction: the new state, an event, prepared action
//     intents, consumed wakeups and the next due time.
//
// Effects on the world outside never happen in step 2. A driver returns
// [ActionIntent] values; the commit stores them, and a [Dispatcher] carries them
// out afterwards.
//
// The queue is [MemoryWorkQueue] for tests, package sqlitequeue for a single
// machine, package pgqueue for a fleet, or one of your own, which package
// queuetest proves.
//
// # Duties of the caller
//
// In order:
//
//  1. Write a driver for each spec: with [NewDriver] for one in Go, or with a
//     [Compiler] for specs that are data. Evaluate is a function of the item: it
//     has no effects, goes by [WorkItem.ClaimedAt] rather than by a clock, and
//     returns soon after its context has ended.
//  2. Register all drivers in a [DriverRegistry], then ask its ValidateAll.
//  3. Open a queue. Durable ones have to be migrated first.
//  4. Run a [Supervisor], in as many processes as you like, or call
//     [RunDuePass] from time to time.
//  5. Where there are effects, register a [Provider] for each capability in a
//     [ProviderRegistry], pin instances to the capabilities, and run a
//     [Dispatcher] of the same queue, or call [RunDispatchPass].
//  6. Start instances under ids of your own, so that starting one again changes
//     nothing. Deliver, Cancel, Pause and Retry them; see [Instances].
//  7. Look at what failed for good: it stays until somebody retries or cancels it.
//     Explain says why an instance is not running. Look at intents whose outcome
//     is unknown, and at those that await confirmation; see [IntentOperator].
//  8. End the context of Run, wait until Run has returned, close the queue. What
//     ended long ago goes with Prune.
//
// The loop of a service:
//
//	running, stop := context.WithCancel(context.Background()) // or signal.NotifyContext
//	var service sync.WaitGroup
//	service.Go(func() {
//		if err := loop.Run(running); err != nil {
//			log.Print(err)
//		}
//	})
//
// and its end:
//
//	stop()
//	service.Wait() // nothing of the supervisor is left now
//
// A dispatcher's Run goes beside it in the same group: see the example of
// [Dispatcher.Run].
//
// # Drivers
//
// A command says what becomes of the instance by its [Disposition]: [Continue]
// after a delay, [Reschedule] at an instant, [Complete], or [Failed]. A driver
// that returns an error instead leaves the failure to the supervisor: the state
// stays, nothing is consumed, and the item is tried again after a delay that
// doubles with each failure in a row. [RetryAfter] sets the delay, [Permanent]
// fails the instance for good.
//
// Deliveries and lifecycle timers come as [Wakeup] values. They stay with the
// instance until a command names them in ConsumedWakeups. An item whose
// IsConverging is true shall only be brought to its end.
//
// # Effects
//
// A dispatcher claims intents under leases of their own, marks each hand-off
// durably, calls the provider that is registered for exactly the pin of the
// capability, stores the receipt, observes work that goes on, and settles. The
// settlement and the [Wakeup] of kind action that tells the instance of it are one
// transaction; [ParseActionResult] reads it.
//
// The mark is the point of no return. Without it nothing was sent: intents whose
// instance is cancelled, whose deadline has passed or whose epochs are stale are
// settled as rejected, and those that are paused or beyond a limit wait. With it,
// and without a receipt, nobody knows, be it after a crash, a timeout or an error
// that proves nothing. Then the retry class decides, which is a promise about the
// provider:
//
//   - native: it is sent again under the same idempotency key.
//   - reconcile_before_retry: a [Reconciler] is asked what became of the identity
//     of the hand-off. Only [NotAccepted] with Final allows another attempt.
//   - none, never_automatic_retry, or no reconciler: the outcome is unknown.
//
// Effects that are pure or read may always be repeated. What provably had no
// effect, by [NotSent], a receipt or a reconciler, is repeated by the
// [RetryPolicy] of the provider. An unknown outcome is told to the instance, and
// is not the end: a late receipt settles it, or an operator does by
// ResolveIntent, with the outcome that they found or by allowing a repeat.
//
// Packages httpprovider and commandprovider are providers for most cases.
//
// # Guarantees
//
// With any queue that passes queuetest:
//
//   - Every commit is fenced. Each claim raises the lease version, and a command
//     is applied only under the version it was made with: a worker that was
//     frozen, cut off or declared dead cannot write over its successor, whatever
//     its name and clock.
//   - A commit is all or nothing, and a command that is sent again is applied
//     once. The same delivery key with other content is an error.
//   - A wakeup that was delivered is seen by evaluations until a command has
//     consumed it. One that arrives during an evaluation wakes the instance again.
//   - Items are independent: no error, panic, slow evaluation or slow commit of
//     one delays or cancels another.
//   - An evaluation whose lease is lost, or cannot be confirmed until its end, has
//     its context ended. So does one whose instance or tenant is paused or
//     cancelled, within a third of the lease; its command is refused in any case.
//   - Every failure is recorded with its text. A commit that erred is never
//     followed by another command for the same claim, unless the queue is certain
//     that nothing was applied.
//   - The host's clock decides nothing: instants are the queue's, and spans are
//     measured on the monotonic clock.
//   - A driver gets a copy of its item, and a pass never evaluates an item twice.
//   - An ambiguous effect on the world is never sent again without proof, nor
//     told as failed. An outcome reaches its instance once.
//
// # Not guaranteed
//
//   - That a state is evaluated once. After a crash or a lost lease it is
//     evaluated again, maybe while the first evaluation still runs. One of their
//     commands is committed.
//   - Anything about effects that a driver has by itself. No fence guards them.
//   - That an effect happens once where its provider does not keep what the retry
//     class of the intent says of it; or that its outcome is ever known.
//   - That a driver ends. Go cannot stop a goroutine: a driver that ignores the
//     end of its context is abandoned after AbandonAfter, its slot is freed and
//     its late result dropped, but it keeps its memory. And renewal is automatic:
//     a driver that hangs keeps its lease for as long as its process lives, unless
//     [Settings.EvaluationTimeout] is set.
//   - That every commit has a known outcome. [ErrCommitUnknown] says that it has
//     not; the next claim finds out.
//   - Delivery keys other than an instance's latest. Older commands are refused by
//     the fence, not by their key.
//   - Exact times. Due means not before; how long after depends on free slots and
//     on the queue.
//   - That [MemoryWorkQueue] remembers anything when its process has ended.
//
// # Shutdown
//
// When the context of [Supervisor.Run] ends, it stops claiming and lets
// evaluations finish for DrainTimeout. Then it ends their contexts with the cause
// [ErrShutdown] and hands the claims of those that return an error back, so that
// others take them up at once: no failure is recorded and no attempt counted. Run
// returns nil when every goroutine that it started has ended, save abandoned
// drivers, renewals left behind and cancelled compiles.
//
// When the context of [RunDuePass] ends, evaluations are cancelled and their
// failures committed. Commits outlive the caller's context in both, bounded by
// CommitTimeout. A process that is killed loses nothing: its leases end, and
// others carry on from the last commit.
//
// A [Dispatcher] does the same with calls of providers. A call that DrainTimeout
// has cut off leaves its outcome as open as a crash would.
//
// # Panics
//
// A panic in a driver, in the context factory or in a method of the queue or a
// compiler fails the items that it was called for, with its text; so does
// [runtime.Goexit]. Observers tell of it by a [*PanicError] with the stack. A
// claim that panics is a claim that failed. A panic in an observer or a log
// handler is dropped, and one in a [Settings.Retry] rule leaves the decision to
// the built-in rule. A provider that panics leaves the outcome of its call open.
//
// What nobody can contain is a panic in a goroutine that a driver starts by
// itself: it ends the process. Let such goroutines recover, or start none.
//
// # Reading the source
//
// Types and pure rules come first: workitem.go, command.go, disposition.go,
// intent.go, revision.go, lifecycle.go and record.go know no lock, clock or
// store. queue.go is the contract of a queue and instances.go its client side;
// memqueue.go and its neighbours are the queue in memory. registry.go finds
// drivers, registry_cache.go keeps compiled ones. supervisor.go is one pass,
// service.go its slots, evaluation.go the way of one item from claim to commit,
// lease.go the renewal of its lease, run.go and loop.go the long loop.
//
// Intents have the same order: intentrecord.go and intentrules.go are pure,
// intentqueue.go and provider.go the contracts, dispatch.go a pass and the long
// loop, dispatch_job.go the way of one intent, dispatch_decide.go what follows
// from what a provider said, and dispatch_store.go how that becomes durable.
package supervisor
