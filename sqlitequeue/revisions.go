package sqlitequeue

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/workflow-supervisor/supervisor"
)

const (
	insertRevision = `INSERT INTO supervisor_revisions (tenant_id, definition_id, revision, spec, content, published_at)
		VALUES (?, ?, ?, CAST(? AS TEXT), CAST(? AS TEXT), ?)`
	selectRevision = `SELECT CAST(spec AS BLOB), CAST(content AS BLOB) FROM supervisor_revisions WHERE tenant_id = ? AND definition_id = ? AND revision = ?`
)

// PublishRevision implements [supervisor.Instances].
func (q *Queue) PublishRevision(ctx context.Context, tenantID string, revision *supervisor.Revision) error {
	scope := supervisor.Scope{TenantID: tenantID}
	if err := scope.Validate(); err != nil {
		return err
	}
	if err := revision.Validate(); err != nil {
		return err
	}
	// Opaque digests may be equal for different content.
	computed, err := revision.ComputeDigest()
	if err != nil {
		return err
	}
	// The encoder would take the white space out of the spec.
	rest := *revision
	rest.Spec = nil
	content, err := json.Marshal(&rest)
	if err != nil {
		return fmt.Errorf("sqlitequeue: revision: %w", err)
	}
	return q.update(ctx, "publish", change{run: func(t *transaction) error {
		stored, err := t.session.revision(tenantID, revision.DefinitionID, revision.Revision)
		if err != nil {
			return err
		}
		if stored == nil {
			_, err := t.session.exec(insertRevision, tenantID, revision.DefinitionID, int64(revision.Revision),
				blob(revision.Spec), content, int64(t.now()))
			return err
		}
		if digest, err := stored.ComputeDigest(); err != nil || digest != computed || stored.ContentDigest != revision.ContentDigest {
			return fmt.Errorf("sqlitequeue: revision %d of %q is published with other content: %w",
				revision.Revision, shorten(revision.DefinitionID), supervisor.ErrStateConflict)
		}
		return nil
	}})
}

// LoadRevision implements [supervisor.WorkQueue].
func (q *Queue) LoadRevision(ctx context.Context, item *supervisor.WorkItem) (revision *supervisor.Revision, err error) {
	err = q.read(ctx, "load revision", func(s *session) (err error) {
		revision, err = s.revision(item.TenantID, item.DefinitionID, item.WorkflowRevision)
		return err
	})
	if err != nil {
		return nil, err
	}
	if revision == nil || revision.ContentDigest != item.WorkflowRevisionDigest {
		return nil, fmt.Errorf("sqlitequeue: revision %d of %q with digest %q: %w", item.WorkflowRevision,
			shorten(item.DefinitionID), shorten(item.WorkflowRevisionDigest), supervisor.ErrRevisionUnavailable)
	}
	return revision, nil
}

// revision reads a published revision, nil where there is none.
func (s *session) revision(tenantID, definitionID string, number uint64) (*supervisor.Revision, error) {
	rows, err := s.query(selectRevision, tenantID, definitionID, int64(number))
	if err != nil {
		return nil, err
	}
	var spec, content []byte
	if rows.next() {
		spec, content = rows.bytes(0), rows.bytes(1)
	}
	if err := rows.close(); err != nil || content == nil {
		return nil, err
	}
	revision := new(supervisor.Revision)
	if err := json.Unmarshal(content, revision); err != nil {
		return nil, fmt.Errorf("sqlitequeue: revision %d of %q: %w", number, shorten(definitionID), err)
	}
	revision.Spec = spec
	return revision, nil
}
