// Package pgqueue is a durable queue for package supervisor in PostgreSQL 14 and
// later: any number of processes claim, renew and commit workflow instances in
// one schema, and clients start, tell and stop them.
//
//	pool, err := pgxpool.New(ctx, url)
//	queue, err := pgqueue.New(pool, pgqueue.Options{})
//	err = queue.Migrate(ctx)
//	// ... supervisor.New(queue, registry, settings, newContext)
//	queue.Close()
//
// A [Queue] implements [supervisor.WorkQueue], [supervisor.Instances],
// [supervisor.Releaser], [supervisor.Waiter] and [supervisor.CommitKeeper], and for
// dispatchers [supervisor.IntentQueue], [supervisor.IntentWaiter] and
// [supervisor.IntentOperator].
// [Queue.StartTx] and [Queue.DeliverTx] do in a transaction of yours what Start
// and Deliver do in one of their own.
//
// # Duties of the caller
//
//   - Call [Queue.Migrate] before anything else. Rights to change the database
//     are needed only when the schema is not up to date.
//   - The database holds UTF-8.
//   - Keep the pool open until [Queue.Close] has returned.
//   - Call [Queue.Prune] now and then; nothing else removes what has finished.
//   - Keep transactions short in this database. While a snapshot is held, by a
//     dump or a forgotten transaction, nothing can be cleaned up, and every queue
//     grows slower: Observer.OldSnapshot tells of it.
//
// # Guarantees
//
//   - A command is applied completely or not at all, and once at most.
//   - Where the connection is lost during a commit, the outcome is looked up by
//     delivery key, until the caller's context ends: then, and only then, the
//     commit is [supervisor.ErrCommitUnknown].
//   - A commit is decided from what its claim saw, and applied only where the
//     instance is still as it was then. What changed is decided again, with the
//     instance locked.
//   - No connection and no transaction is held while a driver runs.
//   - Due, lease and retry times are the server's clock.
//   - JSON comes back byte for byte.
//   - A pause that has returned lets no commit and no mark of an intent through that
//     did not see it.
//   - Intents are decided by the rules of [supervisor.IntentRecord]. A mark or a
//     settlement whose connection is lost is repeated until the database answers,
//     as a commit is.
//   - A limit is kept by all processes together, and holds from the moment on when
//     LimitIntents returns.
//
// # Not guaranteed
//
//   - Turns between tenants are exact among claims that do not overlap; claims
//     that overlap may see turns slightly apart.
//   - Notifications are best effort. Whoever misses one looks again after
//     Options.PollInterval, or after half a minute while it listens.
//   - Instants have microseconds: what is between two is rounded up.
//   - A standby that is promoted without the last commits of its primary has
//     lost them; that is a matter of the server's synchronous_commit.
//
// # Connections
//
// The client side uses the caller's pool. Workers use connections of the queue's
// own, made from the pool's configuration when they are first needed: up to
// Options.Committers * 3/2 + 3 for claims, commits and intents, one for renewals
// and one to listen. Drivers that use up the pool can therefore not starve a renewal.
//
// The queue keeps no state in a session. Behind a pooler in transaction mode it
// works as it is, but for the listener: set Options.DisableListen, or give
// Options.Listen a way around the pooler. Prepared statements that do not survive
// are noticed and given up.
package pgqueue
