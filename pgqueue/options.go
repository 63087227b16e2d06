package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/workflow-supervisor/supervisor"
)

// Options are the settings of a [Queue]. The zero value is good; a zero field
// means its default.
type Options struct {
	// Schema is the name of the queue's own schema; default "supervisor". Any
	// name that PostgreSQL takes will do, at most 63 bytes.
	Schema string

	// Admit is asked by AdmitEvaluation; nil admits everything. An error refuses
	// the evaluation. It may block, and is called by many goroutines at once.
	Admit func(ctx context.Context, item *supervisor.WorkItem) error

	// Committers bounds the transactions that commit side by side, each for all
	// commits that have gathered; default 4, from 1 to 64. Fewer make larger
	// batches; 2 to 4 suit most servers.
	Committers int

	// BatchSize bounds the commits in one transaction; default 256, from 1 to
	// 4096.
	BatchSize int

	// PollInterval is how long WaitDue sleeps at most while no notifications
	// come: where there is no listener, or its connection is down. Default 1 s,
	// at least 10 ms.
	PollInterval time.Duration

	// DisableListen keeps WaitDue from listening for notifications, which need a
	// session of their own: behind a pooler in transaction mode either set it,
	// or give Listen a way around the pooler.
	DisableListen bool

	// Listen is how the listener connects, made by [pgx.ParseConfig]; nil: as the
	// pool does.
	Listen *pgx.ConnConfig

	// Observer is told what the queue finds out beside its answers.
	Observer *Observer
}

// Observer is a set of optional functions, each called by a goroutine of the
// queue that it holds up: they must be quick and must not close the queue.
type Observer struct {
	// OldSnapshot is called about every 10 s while some session holds a snapshot
	// that is older than that: a dump, a report, a forgotten transaction. Until
	// it ends nothing can be cleaned up, and every queue in the database grows
	// slower.
	OldSnapshot func(SnapshotInfo)
	// ListenFailed is called when the listener's connection failed and WaitDue
	// polls until it is back.
	ListenFailed func(error)
}

// SnapshotInfo tells of the oldest snapshot that the queue's role may see.
type SnapshotInfo struct {
	Age time.Duration
	// PID is the server process that holds it, Application what its session
	// calls itself.
	PID         int32
	Application string
}

const (
	defaultSchema       = "supervisor"
	defaultCommitters   = 4
	defaultBatchSize    = 256
	defaultPollInterval = time.Second
	maxIdentifierBytes  = 63
)

// resolved returns the options with their defaults, or everything that is wrong
// with them.
func (o Options) resolved() (Options, error) {
	if o.Schema == "" {
		o.Schema = defaultSchema
	}
	if o.Committers == 0 {
		o.Committers = defaultCommitters
	}
	if o.BatchSize == 0 {
		o.BatchSize = defaultBatchSize
	}
	if o.PollInterval == 0 {
		o.PollInterval = defaultPollInterval
	}
	if o.Observer == nil {
		o.Observer = new(Observer)
	}
	var errs []error
	if len(o.Schema) > maxIdentifierBytes {
		errs = append(errs, fmt.Errorf("Schema has %d bytes, more than %d", len(o.Schema), maxIdentifierBytes))
	}
	if !utf8.ValidString(o.Schema) {
		errs = append(errs, errors.New("Schema is not valid UTF-8"))
	}
	for _, r := range o.Schema {
		if r == 0 {
			errs = append(errs, errors.New("Schema holds a NUL character"))
			break
		}
	}
	if o.Committers < 1 || o.Committers > 64 {
		errs = append(errs, fmt.Errorf("Committers is %d, must be from 1 to 64", o.Committers))
	}
	if o.BatchSize < 1 || o.BatchSize > 4096 {
		errs = append(errs, fmt.Errorf("BatchSize is %d, must be from 1 to 4096", o.BatchSize))
	}
	if o.PollInterval < 10*time.Millisecond {
		errs = append(errs, fmt.Errorf("PollInterval is %v, must be at least 10ms", o.PollInterval))
	}
	if o.DisableListen && o.Listen != nil {
		errs = append(errs, errors.New("Listen is set, but DisableListen is true"))
	}
	// pgx panics on a config that was made otherwise, which lacks these.
	if o.Listen != nil && (o.Listen.DialFunc == nil || o.Listen.LookupFunc == nil || o.Listen.BuildFrontend == nil) {
		errs = append(errs, errors.New("Listen was not made by pgx.ParseConfig"))
	}
	if err := errors.Join(errs...); err != nil {
		return o, fmt.Errorf("pgqueue: options: %w", err)
	}
	return o, nil
}
