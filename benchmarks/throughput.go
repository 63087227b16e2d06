package main

import "context"

// group is a set of contenders with the reference that they are measured against.
type group struct {
	reference  *contender
	contenders []*contender
}

// postgresGroup are the contenders on one PostgreSQL.
func postgresGroup() group {
	return group{
		reference: handContender("by hand, pgx", false),
		contenders: []*contender{
			handContender("by hand, pgx, moving due times", true),
			pgqueueContender("pgqueue, a claim each", false),
			pgqueueContender("pgqueue", true),
			riverContender("River", "as its own benchmark program: 2,000 workers, FetchCooldown 2 ms, FetchPollInterval 20 ms", riverTuned, 40_000),
			riverContender("River, defaults", "100 workers, FetchCooldown 100 ms", riverDefault, 2_000),
			gueContender("gue"),
			dbosDirectContender("DBOS"),
			dbosQueueContender("DBOS, queue"),
		},
	}
}

// sqliteGroup are those on a file of SQLite.
func sqliteGroup() group {
	return group{
		reference: sqliteHandContender("by hand, SQLite"),
		contenders: []*contender{
			sqlitequeueContender("sqlitequeue, a claim each", false),
			sqlitequeueContender("sqlitequeue", true),
			goWorkflowsContender("go-workflows"),
		},
	}
}

// memoryGroup are those in memory.
func memoryGroup() group {
	return group{
		reference: memoryHandContender("by hand, memory"),
		contenders: []*contender{
			memoryContender("MemoryWorkQueue, a claim each", false),
			memoryContender("MemoryWorkQueue", true),
		},
	}
}

// all returns the reference and the contenders.
func (g group) all() []*contender { return append([]*contender{g.reference}, g.contenders...) }

// throughput measures the contenders in turns, each behind a run of the
// reference: what disturbs the machine for longer disturbs both.
func (b *bench) throughput(ctx context.Context, part string, db *database, g group) error {
	for round := range b.rounds {
		for _, c := range g.contenders {
			if !b.wanted(c.name) {
				continue
			}
			reference, values, err := calmest(b.quiet, b.times, func() (map[string]float64, map[string]float64, error) {
				reference, err := g.reference.once(ctx, db, b.scaled(g.reference.units))
				if err != nil {
					return nil, nil, err
				}
				values, err := c.once(ctx, db, b.scaled(c.units))
				return reference, values, err
			})
			if err != nil {
				return err
			}
			values[ratio] = values[perSecond] / reference[perSecond]
			b.record(part, Measurement{g.reference.name, round, reference})
			b.record(part, Measurement{c.name, round, values})
		}
	}
	return nil
}
