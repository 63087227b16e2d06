// Package sqlitequeue is a durable queue of workflow instances in one SQLite
// file: no server, no setup, and the semantics of every other queue of this
// library. It suits programs on one machine, from command-line tools to
// services that start some ten thousand transitions a second.
//
//	queue, err := sqlitequeue.Open(ctx, "orders.db", sqlitequeue.Options{})
//	if err != nil {
//		return err
//	}
//	defer queue.Close()
//	runner, err := supervisor.New(queue, registry, supervisor.Settings{}, newContext)
//
// # Guarantees
//
// What a call reports as done is on disk: the file is in WAL mode with
// synchronous FULL. A process killed at any moment, or a machine that loses
// power, loses nothing that was reported and leaves nothing half done.
//
// Several processes and several queues in one process may share a file. No call
// ever fails because the database is locked: it waits until its context ends.
//
// One goroutine writes. It takes all calls that have queued up while it was
// writing and makes them durable together, so that throughput grows with load
// and a call that comes alone waits for nobody. A call that is refused takes no
// other along, nor does one at which the database fails. [Queue.Close] ends the
// goroutine; there is no other.
//
// Text and JSON come back byte for byte. Instants are stored in microseconds;
// those that the caller gives are rounded up, so that nothing is early. The
// clock is the host's, which within a process never goes backwards and never
// gives one instant twice.
//
// # Intents
//
// The queue is also one of intents: [supervisor.IntentQueue] with
// [supervisor.IntentWaiter], and [supervisor.IntentOperator]. Limits are the
// file's and hold for all processes. The turns that capabilities take are each
// process's own. Output of a success is kept byte for byte but for white space.
//
// # Not guaranteed
//
// The file has to be on a local disk: the locks of network file systems do not
// hold. Processes that share a file share a host and with it a clock. Where that
// is set back while they run, they go on by their own until it has caught up: do
// not start others beside them before, for their leases would seem to have ended.
//
// A file that is deleted or replaced while it is open is noticed with the next
// call that writes, which is [ErrFileGone]; what the same transaction, or an
// earlier one, had reported as done is gone with the file.
//
// A call whose context ends while its change is being written waits for the
// outcome, which is milliseconds away unless the disk hangs.
//
// # Transactions of your own
//
// [Queue.StartTx] and [Queue.DeliverTx] start and deliver in a transaction of
// the caller's on the same file, with tables of its own beside the queue's,
// which all begin with [Options.TablePrefix]. [Queue.DB] is the pool to begin
// them on. The queue waits while such a transaction is open.
//
// # Other drivers
//
// The default driver is modernc.org/sqlite, which needs no C compiler. A pool
// of connections of another one can be handed in; see [Options.DB]. SQLite must
// be 3.43 or newer.
package sqlitequeue
