package pgqueue

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/workflow-supervisor/supervisor"
)

// capabilityCache remembers the numbers of capabilities, which never change. It is
// bounded: beyond its size it starts over.
type capabilityCache struct {
	mu      sync.RWMutex
	numbers map[supervisor.CapabilityPin]int64
}

const capabilityCacheSize = 1 << 12

const (
	sqlFindCapability = `
SELECT c.capability_no FROM {{schema}}.capability c
WHERE c.id = $1 AND c.contract_version = $2 AND c.content_digest = $3`

	sqlEnsureCapability = `
INSERT INTO {{schema}}.capability (id, contract_version, content_digest) VALUES ($1, $2, $3)
ON CONFLICT (id, contract_version, content_digest) DO NOTHING`
)

// capability returns the number of a capability and adds it where it is missing,
// in a transaction of its own, so that nobody waits for it.
func (q *Queue) capability(ctx context.Context, pin supervisor.CapabilityPin) (no int64, err error) {
	q.capabilities.mu.RLock()
	no, found := q.capabilities.numbers[pin]
	q.capabilities.mu.RUnlock()
	if found {
		return no, nil
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(pin.ID)
	a.text(pin.ContractVersion)
	a.text(pin.ContentDigest)
	find := func() error {
		return q.store.do(ctx, q.own, q.store.statements.findCapability, a, func(c *cells) error {
			no = c.int8()
			return nil
		})
	}
	if err := find(); err != nil {
		return 0, err
	}
	if no == 0 {
		if err := q.store.do(ctx, q.own, q.store.statements.ensureCapability, a, nil); err != nil {
			return 0, err
		}
		if err := find(); err != nil {
			return 0, err
		}
	}
	q.capabilities.mu.Lock()
	if q.capabilities.numbers == nil || len(q.capabilities.numbers) >= capabilityCacheSize {
		q.capabilities.numbers = make(map[supervisor.CapabilityPin]int64)
	}
	q.capabilities.numbers[pin] = no
	q.capabilities.mu.Unlock()
	return no, nil
}

// pins writes capabilities as three arrays, NULL for none, which means all.
func (a *args) pins(pins []supervisor.CapabilityPin) {
	for _, part := range [...]func(p *supervisor.CapabilityPin) string{
		func(p *supervisor.CapabilityPin) string { return p.ID },
		func(p *supervisor.CapabilityPin) string { return p.ContractVersion },
		func(p *supervisor.CapabilityPin) string { return p.ContentDigest },
	} {
		if len(pins) == 0 {
			a.null(pgtype.TextArrayOID)
			continue
		}
		a.array(pgtype.TextOID, len(pins))
		for n := range pins {
			a.text(part(&pins[n]))
		}
	}
}
