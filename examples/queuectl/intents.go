package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// answer is what the operator says of intents.
type answer struct {
	by      string // empty: the user of the operating system
	reason  string
	output  string // JSON; empty: none
	attempt int    // of resolve; 0: the latest
}

// fillBy names the operator.
func (a *answer) fillBy() error {
	if a.by != "" {
		return nil
	}
	current, err := user.Current()
	if err != nil {
		return fmt.Errorf("-by is missing, and the user is not known: %w", err)
	}
	a.by = current.Username
	return nil
}

// The checks of the calls that decide about intents return what is wrong, empty
// for nothing.

func checkConfirm(c *call) string {
	if err := c.answer.fillBy(); err != nil {
		return err.Error()
	}
	return ""
}

func checkReject(c *call) string {
	if strings.TrimSpace(c.answer.reason) == "" {
		return "-reason is missing, the instance is told it"
	}
	return checkConfirm(c)
}

func checkResolve(c *call) string {
	kinds := []supervisor.IntentResolutionKind{
		supervisor.ResolveSucceeded, supervisor.ResolveFailed, supervisor.ResolveRepeat,
	}
	kind := supervisor.IntentResolutionKind(c.ids[0])
	switch {
	case !slices.Contains(kinds, kind):
		return fmt.Sprintf("the answer is %q, must be one of %v", kind, kinds)
	case c.answer.output != "" && kind != supervisor.ResolveSucceeded:
		return fmt.Sprintf("-output is given, but the answer is %q: only %q has one", kind, supervisor.ResolveSucceeded)
	case c.answer.output != "" && !json.Valid([]byte(c.answer.output)):
		return fmt.Sprintf("-output is %q, must be JSON", plain(c.answer.output))
	case c.answer.attempt < 0:
		return fmt.Sprintf("-attempt is %d, must not be negative", c.answer.attempt)
	}
	return checkConfirm(c)
}

func checkIntents(c *call) string {
	if err := c.intents.Validate(); err != nil {
		return fmt.Sprintf("-state is %q, must be one of %v", plain(string(c.intents.State)), states())
	}
	return ""
}

func states() []supervisor.ActionState {
	return []supervisor.ActionState{
		supervisor.ActionPrepared, supervisor.ActionAwaitingConfirmation, supervisor.ActionAuthorized,
		supervisor.ActionDispatchCommitted, supervisor.ActionExecuting, supervisor.ActionSucceeded,
		supervisor.ActionRejected, supervisor.ActionRetryable, supervisor.ActionUnknown, supervisor.ActionReconciled,
	}
}

func intents(ctx context.Context, t *tool, _ []string) error {
	rows := t.table("TENANT", "INSTANCE", "INTENT", "CAPABILITY", "STATE", "ATTEMPT", "OUTCOME", "SINCE", "LAST TROUBLE", "EVIDENCE")
	made := commits{queue: t.queue}
	for r, err := range t.queue.ListIntents(ctx, t.call.intents) {
		at := since(&r)
		if err == nil && at.IsZero() && !t.call.json {
			at, err = made.at(ctx, &r.Intent)
		}
		if err != nil {
			return errors.Join(rows.close(), err)
		}
		err = rows.add(r, r.Intent.TenantID, r.Intent.InstanceID, r.Intent.ID, r.Intent.Capability.ID, string(r.Intent.State),
			fmt.Sprint(r.Attempt), outcome(&r), instant(at), trouble(r.Diagnostic), fmt.Sprint(len(r.Evidence)))
		if err != nil {
			return err
		}
	}
	return rows.close()
}

func confirm(ctx context.Context, t *tool, ids []string) error {
	return t.eachIntent(ctx, ids[0], ids[1:], func(key supervisor.IntentKey) error {
		return t.queue.ConfirmIntent(ctx, key, t.call.answer.by)
	})
}

func reject(ctx context.Context, t *tool, ids []string) error {
	return t.eachIntent(ctx, ids[0], ids[1:], func(key supervisor.IntentKey) error {
		return t.queue.RejectIntent(ctx, key, t.call.answer.by, t.call.answer.reason)
	})
}

func resolve(ctx context.Context, t *tool, ids []string) error {
	resolution := supervisor.IntentResolution{
		Kind:    supervisor.IntentResolutionKind(ids[0]),
		Attempt: t.call.answer.attempt,
		Output:  json.RawMessage(t.call.answer.output),
		Reason:  t.call.answer.reason,
	}
	return t.eachIntent(ctx, ids[1], ids[2:], func(key supervisor.IntentKey) error {
		return t.queue.ResolveIntent(ctx, key, t.call.answer.by, resolution)
	})
}

// eachIntent decides about intents of an instance, and tells where each stands
// then: somebody else may have given the same answer before.
func (t *tool) eachIntent(ctx context.Context, instanceID string, ids []string, decide func(supervisor.IntentKey) error) error {
	return t.each(ids, func(id string) error {
		key := supervisor.IntentKey{TenantID: t.call.tenant, InstanceID: instanceID, IntentID: id}
		err := decide(key)
		if err != nil && !errors.Is(err, supervisor.ErrIntentConflict) {
			return err
		}
		record, found := t.find(ctx, key)
		switch {
		case err != nil && found == nil:
			return fmt.Errorf("%w: it is %s", err, standing(&record))
		case err != nil:
			return err
		case found != nil:
			return fmt.Errorf("done, but how it stands now cannot be told: %w", found)
		}
		_, err = fmt.Fprintf(t.out, "%s: %s\n", id, standing(&record))
		return err
	})
}

// find reads an intent.
func (t *tool) find(ctx context.Context, key supervisor.IntentKey) (supervisor.IntentRecord, error) {
	filter := supervisor.IntentFilter{TenantID: key.TenantID, InstanceID: key.InstanceID}
	for record, err := range t.queue.ListIntents(ctx, filter) {
		if err != nil || record.Intent.ID == key.IntentID {
			return record, err
		}
	}
	return supervisor.IntentRecord{}, supervisor.ErrNotFound
}

// standing is where an intent stands and who decided about it.
func standing(r *supervisor.IntentRecord) string {
	text := string(r.Intent.State)
	if outcome := outcome(r); outcome != "" {
		text += " (" + outcome + ")"
	}
	switch confirmation := r.Intent.Confirmation; {
	case r.Resolved != nil:
		text += fmt.Sprintf(", resolved as %s by %s", r.Resolved.Kind, plain(r.Resolved.By))
	case confirmation == nil:
	case r.Cause == supervisor.CauseDenied:
		text += ", rejected by " + plain(confirmation.By)
	default:
		text += ", confirmed by " + plain(confirmation.By)
	}
	return text
}

// outcome is what became of an intent and why; empty while that is open.
func outcome(r *supervisor.IntentRecord) string {
	if r.Outcome == "" {
		return string(r.Cause)
	}
	return string(r.Outcome) + "/" + cmp.Or(string(r.Cause), "-")
}

// since is the latest step of an intent whose time is kept with it: it was made,
// confirmed, handed off, resolved or settled. Zero: none is.
func since(r *supervisor.IntentRecord) time.Time {
	steps := []time.Time{r.Intent.CreatedAt, r.MarkedAt, r.SettledAt}
	if r.Intent.Confirmation != nil {
		steps = append(steps, r.Intent.Confirmation.At)
	}
	if r.Resolved != nil {
		steps = append(steps, r.Resolved.At)
	}
	return slices.MaxFunc(steps, time.Time.Compare)
}

// commits tells when intents were made: drivers need not say so, but the history
// of an instance does.
type commits struct {
	queue                supervisor.Instances
	tenantID, instanceID string // whose times are held; a listing goes by instance
	times                map[int64]time.Time
}

// at returns zero where the history has no such event.
func (c *commits) at(ctx context.Context, i *supervisor.ActionIntent) (time.Time, error) {
	if c.times == nil || c.tenantID != i.TenantID || c.instanceID != i.InstanceID {
		times := make(map[int64]time.Time)
		for e, err := range c.queue.History(ctx, i.TenantID, i.InstanceID) {
			if errors.Is(err, supervisor.ErrNotFound) {
				break // pruned since it was listed
			}
			if err != nil {
				return time.Time{}, err
			}
			// What comes after a commit has its version, too.
			if _, known := times[e.StateVersion]; !known {
				times[e.StateVersion] = e.At
			}
		}
		c.tenantID, c.instanceID, c.times = i.TenantID, i.InstanceID, times
	}
	return c.times[i.ActionEpoch+1], nil
}

// trouble is a diagnostic for people; empty for none.
func trouble(d *supervisor.Diagnostic) string {
	if d == nil {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s in %s %s", d.Category, d.Phase, instant(d.At)))
}
