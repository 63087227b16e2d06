package pgqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workflow-supervisor/supervisor"
)

// asker runs a statement that answers with one row: in a caller's transaction,
// or in one of its own.
type asker func(ctx context.Context, sql string, parameters []any, into ...any) error

// askPool asks through the caller's pool.
func (q *Queue) askPool(ctx context.Context, sql string, parameters []any, into ...any) error {
	return q.store.repeat(ctx, func() error {
		return q.pool.QueryRow(ctx, sql, inExecMode(parameters)...).Scan(into...)
	})
}

// inExecMode asks pgx to send a statement with its text, which works behind any
// pooler.
func inExecMode(parameters []any) []any {
	return append([]any{pgx.QueryExecModeExec}, parameters...)
}

// Start implements [supervisor.Instances].
func (q *Queue) Start(ctx context.Context, instance supervisor.Instance, dueAt time.Time) (started bool, err error) {
	started, dueAt, err = q.start(ctx, q.askPool, &instance, dueAt)
	if started {
		q.announce(instance.SpecID, dueAt)
	}
	return started, err
}

// start adds an instance and returns when it is due, zero being now.
func (q *Queue) start(ctx context.Context, ask asker, instance *supervisor.Instance, dueAt time.Time) (bool, time.Time, error) {
	if err := q.ready(ctx); err != nil {
		return false, dueAt, err
	}
	if err := instance.Validate(); err != nil {
		return false, dueAt, err
	}
	if err := checkInstant("dueAt", dueAt); err != nil {
		return false, dueAt, fmt.Errorf("pgqueue: start: %w", err)
	}
	what := fmt.Sprintf("start %q of tenant %q", shorten(instance.ID), shorten(instance.TenantID))
	lane, err := q.lane(ctx, q.pool, instance.TenantID, instance.SpecID)
	if err != nil {
		return false, dueAt, q.wrap(ctx, what, err)
	}
	policy := inUTC(instance.Lifecycle)
	var createdAt, timer any
	if policy != (supervisor.LifecyclePolicy{}) {
		// The policy's rules need the clock.
		var micros int64
		if err := ask(ctx, q.store.text(sqlMicros), nil, &micros); err != nil {
			return false, dueAt, q.wrap(ctx, what, err)
		}
		now := time.UnixMicro(micros).UTC()
		record := supervisor.NewRecord(now)
		if dueAt.IsZero() {
			dueAt = now
		}
		dueAt = record.NextDue(&policy, dueAt, time.Time{})
		createdAt, timer = instantText(now), instantText(timerAt(&policy, &record))
	}
	parameters, err := startParameters(instance, &policy)
	if err != nil {
		return false, dueAt, err
	}
	parameters = append([]any{lane.tenantNo, lane.laneNo}, parameters...)
	parameters = append(parameters, createdAt, instantText(dueAt), timer)
	var answer string
	if err := ask(ctx, q.store.text(sqlStart), parameters, &answer); err != nil {
		return false, dueAt, q.wrap(ctx, what, err)
	}
	if answer == "due" {
		dueAt = time.Time{}
	}
	return answer != "known", dueAt, nil
}

// startParameters are the instance's part of the parameters of sqlStart.
func startParameters(i *supervisor.Instance, policy *supervisor.LifecyclePolicy) ([]any, error) {
	var pins, lifecycle, config any
	if len(i.CapabilityPins) > 0 {
		text, err := json.Marshal(i.CapabilityPins)
		if err != nil {
			return nil, fmt.Errorf("pgqueue: start: CapabilityPins: %w", err)
		}
		pins = string(text)
	}
	if *policy != (supervisor.LifecyclePolicy{}) {
		text, err := json.Marshal(policy)
		if err != nil {
			return nil, fmt.Errorf("pgqueue: start: Lifecycle: %w", err)
		}
		lifecycle = string(text)
	}
	if len(i.Config) > 0 {
		config = string(i.Config)
	}
	return []any{
		i.TenantID, i.ID, i.RunID, i.SubjectID, i.SpecID, i.DefinitionID, int64(i.WorkflowRevision), i.WorkflowRevisionDigest,
		i.ExecutionProfileID, int64(i.ExecutionProfileRevision), i.ExecutionProfileDigest, i.KernelABIVersion,
		pins, lifecycle, config,
	}, nil
}

// inUTC returns a policy whose instants are in UTC, as all that a queue returns.
func inUTC(policy supervisor.LifecyclePolicy) supervisor.LifecyclePolicy {
	for _, at := range [...]*time.Time{&policy.StartsAt, &policy.ExpiresAt, &policy.DrainDeadline} {
		if at.IsZero() {
			*at = time.Time{}
		} else {
			*at = at.UTC().Round(0)
		}
	}
	return policy
}

// instantText writes an instant for any driver, nil for the zero one. The form
// means the same whatever the session's time zone and date style.
func instantText(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return fromMicros(toMicros(t)).Format("2006-01-02T15:04:05.999999Z07:00")
}

// checkInstant refuses what RFC 3339, and with it JSON, cannot write.
func checkInstant(field string, t time.Time) error {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return fmt.Errorf("%s is in the year %d, outside 1 to 9999", field, year)
	}
	return nil
}
