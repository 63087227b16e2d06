package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
)

// Settings of a pass and of a supervisor. A zero value means the default;
// negative values are refused. Settings are copied, defaulted and then
// validated whole before anything is claimed.
type Settings struct {
	// WorkerID names the holder of leases for people; two workers may share a
	// name. Default: host name, process id and a random part.
	WorkerID string
	// LeaseDuration is how long a claim lasts without renewal; it is renewed
	// every third of it. Default 60 s, at least 1 s.
	LeaseDuration time.Duration
	// ClaimBatch bounds the items of one claim. Default and most: Concurrency,
	// so that all that is claimed can start at once.
	ClaimBatch int
	// Concurrency bounds the evaluations at one time. Default 16.
	Concurrency int

	// RequeueDelay is the delay after a first failure; it doubles with each
	// failure in a row up to MaxRetryDelay. Defaults 5 s, and 1 h or
	// RequeueDelay if that is longer. No delay is under 1 s.
	RequeueDelay  time.Duration
	MaxRetryDelay time.Duration
	// Retry replaces the rule above, and what drivers say with [Permanent] and
	// [RetryAfter]: again false fails the instance for good. It may be called by
	// many goroutines at once and owns its item. If it panics the rule holds.
	Retry func(item *WorkItem, err error) (delay time.Duration, again bool)

	// EvaluationTimeout ends an evaluation's context with [ErrEvaluationTimeout].
	// Default: none.
	EvaluationTimeout time.Duration
	// AbandonAfter is how long a driver may ignore the end of its context before
	// its slot is given up and its result dropped. Default LeaseDuration.
	AbandonAfter time.Duration
	// CommitTimeout bounds each commit and release, which go on when the
	// caller's context has ended. Default 30 s.
	CommitTimeout time.Duration

	// PollInterval is how often [Supervisor.Run] claims from an idle queue that
	// is no [Waiter]. Default 1 s.
	PollInterval time.Duration
	// DrainTimeout is how long Run lets evaluations finish once its context has
	// ended. Default 30 s.
	DrainTimeout time.Duration

	// Logger gets what [Observer] gets; a panic of its handler is dropped, too.
	// Default: silent.
	Logger   *slog.Logger
	Observer *Observer
}

const (
	defaultLeaseDuration = 60 * time.Second
	defaultConcurrency   = 16
	defaultRequeueDelay  = 5 * time.Second
	defaultMaxRetryDelay = time.Hour
	defaultCommitTimeout = 30 * time.Second
	defaultPollInterval  = time.Second
	defaultDrainTimeout  = 30 * time.Second

	minLeaseDuration = time.Second
	minRetryDelay    = time.Second
	// The renewal period is a third of the lease, of an hour at most: an owner
	// of a longer lease still learns of a pause or cancel in 20 minutes.
	maxRenewalLease = time.Hour
)

// resolved returns the settings with their defaults, or everything that is
// wrong with them.
func (s Settings) resolved() (Settings, error) {
	var errs []error
	for _, duration := range [...]struct {
		field    string
		value    *time.Duration
		fallback time.Duration
	}{
		{"LeaseDuration", &s.LeaseDuration, defaultLeaseDuration},
		{"RequeueDelay", &s.RequeueDelay, defaultRequeueDelay},
		{"MaxRetryDelay", &s.MaxRetryDelay, max(defaultMaxRetryDelay, s.RequeueDelay)},
		{"EvaluationTimeout", &s.EvaluationTimeout, 0},
		{"AbandonAfter", &s.AbandonAfter, 0},
		{"CommitTimeout", &s.CommitTimeout, defaultCommitTimeout},
		{"PollInterval", &s.PollInterval, defaultPollInterval},
		{"DrainTimeout", &s.DrainTimeout, defaultDrainTimeout},
	} {
		if *duration.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, must not be negative", duration.field, *duration.value))
		} else if *duration.value == 0 {
			*duration.value = duration.fallback
		}
	}
	for _, count := range [...]struct {
		field string
		value int
	}{
		{"ClaimBatch", s.ClaimBatch}, {"Concurrency", s.Concurrency},
	} {
		if count.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d, must not be negative", count.field, count.value))
		}
	}
	if s.Concurrency == 0 {
		s.Concurrency = defaultConcurrency
	}
	if s.ClaimBatch == 0 || s.ClaimBatch > s.Concurrency {
		s.ClaimBatch = s.Concurrency
	}
	if s.AbandonAfter == 0 {
		s.AbandonAfter = s.LeaseDuration
	}
	if s.LeaseDuration > 0 && s.LeaseDuration < minLeaseDuration {
		errs = append(errs, fmt.Errorf("LeaseDuration is %v, must be at least %v", s.LeaseDuration, minLeaseDuration))
	}
	if s.MaxRetryDelay > 0 && s.MaxRetryDelay < s.RequeueDelay {
		errs = append(errs, fmt.Errorf("MaxRetryDelay is %v, must not be less than RequeueDelay %v", s.MaxRetryDelay, s.RequeueDelay))
	}
	if s.Observer != nil {
		observer := *s.Observer
		s.Observer = &observer
	}
	if s.WorkerID == "" {
		s.WorkerID = newWorkerID()
	} else {
		errs = append(errs, checkID("WorkerID", s.WorkerID))
	}
	if err := errors.Join(errs...); err != nil {
		return Settings{}, fmt.Errorf("supervisor: settings: %w", err)
	}
	return s, nil
}

// renewalPeriod is how long after a claim or renewal the next renewal comes.
func (s *Settings) renewalPeriod() time.Duration {
	return min(s.LeaseDuration, maxRenewalLease) / 3
}

// newWorkerID names this process. The random part tells supervisors of one
// process, and processes of one container image, apart.
func newWorkerID() string {
	host, err := os.Hostname()
	if err != nil || len(host) > 255 || checkID("host", host) != nil {
		host = "worker"
	}
	return fmt.Sprintf("%s-%d-%.8s", host, os.Getpid(), uuid.NewString())
}
