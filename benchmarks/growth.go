package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// growthCase is a queue of a size.
type growthCase struct {
	waiting, tenants int
	// held: another session holds a snapshot open all the time, as a dump or a
	// forgotten transaction does.
	held bool
}

// name is how the results call it.
func (c growthCase) name(system string) string {
	name := fmt.Sprintf("%s: %s waiting, 1 tenant", system, grouped(float64(c.waiting)))
	if c.tenants > 1 {
		name = fmt.Sprintf("%s: %s waiting, %s tenants", system, grouped(float64(c.waiting)), grouped(float64(c.tenants)))
	}
	if c.held {
		name += ", snapshot held"
	}
	return name
}

// Systems whose growth is measured.
const (
	growthHand    = "by hand"
	growthPgqueue = "pgqueue"
)

const (
	// growthDue is how many instances are due at least, beside those that wait.
	growthDue = 2_000
	// growthUnits is how many transitions a round takes at scale 1.
	growthUnits = 20_000
)

// growthCases are all sizes with one tenant, the largest with each number of
// tenants, and the middle one with a snapshot held.
func (b *bench) growthCases() []growthCase {
	var cases []growthCase
	for _, tenants := range b.tenants {
		for _, waiting := range b.waiting {
			cases = append(cases, growthCase{waiting: waiting, tenants: tenants})
		}
	}
	return append(cases, growthCase{waiting: b.waiting[len(b.waiting)/2], tenants: b.tenants[0], held: true})
}

// growth measures what a claim and a commit cost beside instances that wait, in
// turns with the loop by hand beside as many rows.
func (b *bench) growth(ctx context.Context) error {
	for _, c := range b.growthCases() {
		if !b.wanted(c.name(growthPgqueue)) {
			continue
		}
		if err := b.growthOnce(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name(growthPgqueue), err)
		}
	}
	return nil
}

func (b *bench) growthOnce(ctx context.Context, c growthCase) (err error) {
	byHand, err := newStage(ctx, b.db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, byHand.close(ctx)) }()
	ours, err := newStage(ctx, b.db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.close(ctx)) }()
	due := max(growthDue, 2*c.tenants)
	hand, err := newHandLoop(ctx, byHand, due, c.waiting, true)
	if err != nil {
		return err
	}
	hand.target = b.scaled(growthUnits)
	q, pool, err := openPgqueue(ctx, ours, pgSeed{due: due, waiting: c.waiting, tenants: c.tenants})
	if err != nil {
		return err
	}
	defer q.Close()
	run := newSupervised(q, false, 0, b.scaled(growthUnits))
	if c.held {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			return err
		}
		// The first statement takes the snapshot.
		if _, err := tx.Exec(ctx, "SELECT"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, tx.Rollback(context.WithoutCancel(ctx))) }()
	}
	m := meter{db: b.db}
	for round := range b.rounds {
		reference, err := m.measure(ctx, hand.run)
		if err != nil {
			return err
		}
		b.record("growth", Measurement{c.name(growthHand), round, reference})
		values, err := m.measure(ctx, run.run)
		if err != nil {
			return err
		}
		values[ratio] = values[perSecond] / reference[perSecond]
		b.record("growth", Measurement{c.name(growthPgqueue), round, values})
	}
	return nil
}
