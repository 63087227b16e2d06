package queuetest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// TestMemoryAgreesWithModel drives the memory queue and the model, which were
// written apart from each other, through the same random calls on one clock.
// QUEUETEST_SEED repeats one run.
func TestMemoryAgreesWithModel(t *testing.T) {
	first, runs := rand.Uint64(), uint64(40)
	if testing.Short() {
		runs = 10
	}
	if seed, err := strconv.ParseUint(os.Getenv("QUEUETEST_SEED"), 10, 64); err == nil {
		first, runs = seed, 1
	}
	for seed := first; seed < first+runs && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			memory, m := supervisor.NewMemoryWorkQueue(), newModel(broken{})
			a := &agreement{
				report: t.Errorf, unsupported: func(error) {}, ctx: t.Context(), seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), exact: true,
				sides: [2]side{
					{name: "memory", queue: memory, client: memory, release: memory, keep: memory, intents: memory, operator: memory, now: time.Now},
					{name: "model", queue: m, client: m, release: m, keep: m, intents: m, operator: m, now: time.Now},
				},
			}
			a.run(240)
		})
	}
}

// TestAgreementFindsFaults proves the random calls: each of these queues answers
// differently sooner or later.
func TestAgreementFindsFaults(t *testing.T) {
	for name, faults := range map[string]broken{
		"attemptNotCounted": {attemptNotCounted: true},
		"cancelKeepsEpoch":  {cancelKeepsEpoch: true},
		"digestIgnored":     {digestIgnored: true},
		"cancelLeaves":      {cancelLeaves: true},
		"proofIgnored":      {proofIgnored: true},
		"receiptFenced":     {receiptFenced: true},
		"tellsSilently":     {tellsSilently: true},
		"neverConsumes":     {neverConsumes: true},
		"noFence":           {noFence: true},
		"retryFloorIgnored": {retryFloorIgnored: true},
		"startsAtIgnored":   {startsAtIgnored: true},
	} {
		// One try finds the rarest of these with a chance of a tenth: so many that
		// none is ever missed, though a dozen is enough as a rule.
		const tries = 200
		for try := 1; ; try++ {
			report := record(t, findCase(t, "agreement/random-calls"), func() Queue { return newModel(faults).queue() })
			if len(report.skipped) > 0 {
				t.Fatalf("skipped: %s", report.skipped[0])
			}
			if len(report.failed) > 0 {
				break
			}
			if try == tries {
				t.Errorf("%d times the random calls did not find %s", tries, name)
				break
			}
		}
	}
}
