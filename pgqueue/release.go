package pgqueue

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workflow-supervisor/supervisor"
)

const sqlRelease = `
UPDATE {{schema}}.run SET
    lease_version = lease_version + 1,
    lease_ends_at = NULL,
    kept = false,
    release_reason = $4
WHERE instance_no = (SELECT i.instance_no FROM {{schema}}.instance i WHERE i.tenant_id = $1 AND i.id = $2)
  AND lease_version = $3 AND lease_ends_at IS NOT NULL
RETURNING instance_no`

// Release implements [supervisor.Releaser].
func (q *Queue) Release(ctx context.Context, item *supervisor.WorkItem, reason string) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(storable(item.TenantID))
	a.text(storable(item.ID))
	a.int8(item.LeaseVersion)
	a.text(cut(storable(reason)))
	released := false
	err := q.store.do(ctx, q.own, q.store.statements.release, a, func(*cells) error {
		released = true
		return nil
	})
	if err != nil {
		return q.wrap(ctx, "release", err)
	}
	q.held.forget(instanceKey{item.TenantID, item.ID}, item.LeaseVersion)
	if !released {
		return about("release", item.TenantID, item.ID, supervisor.ErrLeaseLost)
	}
	q.announce(item.SpecID, time.Time{})
	return nil
}

// storable makes text that PostgreSQL can hold. What it changes is no id that
// could be stored, so that nothing is found for it.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// cut bounds the text of a reason, visibly.
func cut(reason string) string {
	const mark = "… [cut]"
	if len(reason) <= supervisor.MaxReasonBytes {
		return reason
	}
	end := supervisor.MaxReasonBytes - len(mark)
	for end > 0 && !utf8.RuneStart(reason[end]) {
		end--
	}
	return reason[:end] + mark
}
