package pgqueue

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/workflow-supervisor/supervisor"
)

const (
	sqlPublish = `
WITH published AS (
    INSERT INTO {{schema}}.revision (tenant_no, definition_id, revision, content_digest, content, spec_id, spec,
        kernel_abi_version, capabilities, expression_versions, dependency_set_digest)
    SELECT t.tenant_no, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 FROM {{schema}}.tenant t WHERE t.tenant_id = $1
    ON CONFLICT (tenant_no, definition_id, revision) DO NOTHING
    RETURNING content_digest, content
)
SELECT content_digest, content FROM published
UNION ALL
SELECT r.content_digest, r.content FROM {{schema}}.tenant t
JOIN {{schema}}.revision r ON r.tenant_no = t.tenant_no
WHERE t.tenant_id = $1 AND r.definition_id = $2 AND r.revision = $3`

	sqlLoadRevision = `
SELECT r.spec_id, r.spec, r.kernel_abi_version, r.capabilities, r.expression_versions, r.dependency_set_digest
FROM {{schema}}.tenant t
JOIN {{schema}}.revision r ON r.tenant_no = t.tenant_no
WHERE t.tenant_id = $1 AND r.definition_id = $2 AND r.revision = $3 AND r.content_digest = $4`
)

// PublishRevision implements [supervisor.Instances].
func (q *Queue) PublishRevision(ctx context.Context, tenantID string, revision *supervisor.Revision) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if err := (&supervisor.Scope{TenantID: tenantID}).Validate(); err != nil {
		return err
	}
	if err := revision.Validate(); err != nil {
		return err
	}
	// Opaque content digests may be equal for different content.
	content, err := revision.ComputeDigest()
	if err != nil {
		return err
	}
	var capabilities, expressions []byte
	if len(revision.Capabilities) > 0 {
		if capabilities, err = json.Marshal(revision.Capabilities); err != nil {
			return fmt.Errorf("pgqueue: publish revision: Capabilities: %w", err)
		}
	}
	if len(revision.ExpressionVersions) > 0 {
		if expressions, err = json.Marshal(revision.ExpressionVersions); err != nil {
			return fmt.Errorf("pgqueue: publish revision: ExpressionVersions: %w", err)
		}
	}
	if err := q.tenant(ctx, q.pool, tenantID); err != nil {
		return q.wrap(ctx, "publish revision", err)
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(tenantID)
	a.text(revision.DefinitionID)
	a.int8(int64(revision.Revision))
	a.text(revision.ContentDigest)
	a.text(content)
	a.text(revision.SpecID)
	a.raw(revision.Spec)
	a.text(revision.KernelABIVersion)
	a.raw(capabilities)
	a.raw(expressions)
	a.text(revision.DependencySetDigest)
	found, same := false, false
	for n := 0; !found; n++ {
		err := q.store.do(ctx, q.pool, q.store.statements.publish, a, func(c *cells) error {
			digest, stored := c.text(), c.text()
			found, same = true, digest == revision.ContentDigest && stored == content
			return nil
		})
		// A transaction that published it meanwhile was not visible yet.
		if err == nil && !found && n == conflictRepeats {
			err = errRaced
		}
		if err != nil {
			return q.wrap(ctx, "publish revision", err)
		}
	}
	if !same {
		return fmt.Errorf("pgqueue: revision %d of %q is published with other content: %w",
			revision.Revision, shorten(revision.DefinitionID), supervisor.ErrStateConflict)
	}
	return nil
}

// LoadRevision implements [supervisor.WorkQueue].
func (q *Queue) LoadRevision(ctx context.Context, item *supervisor.WorkItem) (*supervisor.Revision, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(storable(item.TenantID))
	a.text(storable(item.DefinitionID))
	a.int8(int64(item.WorkflowRevision))
	a.text(storable(item.WorkflowRevisionDigest))
	var revision *supervisor.Revision
	err := q.store.do(ctx, q.own, q.store.statements.loadRevision, a, func(c *cells) error {
		revision = &supervisor.Revision{
			DefinitionID:  item.DefinitionID,
			Revision:      item.WorkflowRevision,
			ContentDigest: item.WorkflowRevisionDigest,
			SpecID:        c.text(),
		}
		revision.Spec, _ = keep(nil, c.next())
		revision.KernelABIVersion = c.text()
		if capabilities := c.next(); capabilities != nil {
			if err := json.Unmarshal(capabilities, &revision.Capabilities); err != nil {
				return fmt.Errorf("capabilities: %w", err)
			}
		}
		if expressions := c.next(); expressions != nil {
			if err := json.Unmarshal(expressions, &revision.ExpressionVersions); err != nil {
				return fmt.Errorf("expression_versions: %w", err)
			}
		}
		revision.DependencySetDigest = c.text()
		return nil
	})
	if err != nil {
		return nil, q.wrap(ctx, "load revision", err)
	}
	if revision == nil {
		return nil, fmt.Errorf("pgqueue: revision %d of %q with digest %q: %w", item.WorkflowRevision,
			shorten(item.DefinitionID), shorten(item.WorkflowRevisionDigest), supervisor.ErrRevisionUnavailable)
	}
	return revision, nil
}

// AdmitEvaluation implements [supervisor.WorkQueue] by Options.Admit.
func (q *Queue) AdmitEvaluation(ctx context.Context, item *supervisor.WorkItem) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if q.options.Admit == nil {
		return nil
	}
	if err := q.options.Admit(ctx, item); err != nil {
		return fmt.Errorf("pgqueue: %w: %w", supervisor.ErrNotAdmitted, err)
	}
	return nil
}
