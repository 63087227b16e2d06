package queuetest

import "testing"

// broken are the switches that break a model, each in one rule. The comments say
// what a broken queue does.
type broken struct {
	// Claims.
	leaseIgnored      bool // hands out what is held
	lapsedStays       bool // never hands out what lapsed
	versionKept       bool // acquires without raising the lease version
	beyondLimit       bool // hands out one more than asked for
	overLease         bool // leases more than it hands out
	specsIgnored      bool // hands out any spec
	specsSorted       bool // sorts the caller's spec ids
	requestUnchecked  bool // serves any request
	sharesMemory      bool // hands out its own memory
	sharesArguments   bool // keeps the caller's memory
	brokenRowFailsAll bool // fails a batch for one broken row
	attemptOnClaim    bool // counts an attempt at the claim
	// Clocks.
	hostClock      bool // judges due times and leases by the host's clock
	delayFromClaim bool // takes an hour off every delay

	// Order and fairness.
	orderByID       bool // orders by id
	againKeepsPlace bool // lets what is due again at once keep its place
	unfair          bool // serves strictly by due time across tenants
	turnsForgotten  bool // forgets who was served

	// Renewals.
	revives           bool // renews what has ended
	renewsAnyTenant   bool // renews the same id in any tenant
	zeroRowsFine      bool // takes no row for success
	renewIsNothing    bool // renews nothing
	renewFromEnd      bool // extends from the old end
	anyWorker         bool // renews for any worker that knows the version
	anyDuration       bool // takes any duration
	renewEpochIgnored bool // renews under stale epochs

	// Fences.
	noFence          bool // compares no lease version
	nameAsFence      bool // takes the worker's name for the fence
	lapsedRefused    bool // lets the clock decide at the commit
	noCompare        bool // compares no state version
	commitKeepsLease bool // keeps the lease at a commit
	notAtomic        bool // leaves half of a refused commit
	notAtomicOnFault bool // leaves half of a commit whose write failed
	epochsFirst      bool // checks epochs before versions
	epochsLast       bool // checks epochs after the intents

	// Keys.
	keysIgnored       bool // knows no delivery keys
	digestIgnored     bool // takes another digest for a repeat
	plainConflict     bool // does not tell what collided
	keyVersionIgnored bool // takes the key of the step before for a repeat
	keyAfterFence     bool // checks the key after the lease
	keysFolded        bool // compares keys without case

	// Commits.
	contentUnchecked   bool // takes any command
	failedKeepsState   bool // drops the state of a failure
	attemptNotCounted  bool // counts no attempts
	attemptKept        bool // keeps the attempt after a success
	failedStaysDue     bool // leaves what failed for good due
	countsFailures     bool // adds failures to the counters
	intentsDropped     bool // stores no intents
	intentsRepeat      bool // takes a known intent id again
	intentsAfterExpiry bool // takes intents after expiry

	// Identifiers and fidelity.
	tenantIgnored    bool // keys by id alone
	idsFolded        bool // compares ids without case
	jsonThroughFloat bool // decodes numbers to floats
	jsonCompacted    bool // rewrites JSON without white space
	textTrimmed      bool // trims text

	// Epochs.
	epochIgnored         bool // commits under stale epochs
	tenantEpochIgnored   bool // commits after a pause of the tenant
	resourceEpochIgnored bool // takes intents of a resource paused since
	resourceEpochPaused  bool // compares only the resources that are still paused

	// Pauses.
	pauseIgnored        bool // claims what is paused
	pauseAgainRaises    bool // raises the epoch by every pause
	resumeRaises        bool // raises the epoch by a resume
	resumeLiftsAll      bool // ends an instance's pause with its tenant's
	pausedByNarrowest   bool // names the narrowest pause
	resourceStopsTenant bool // stops claims for a resource
	resumeTenantLifts   bool // lifts retry times by the resume of a tenant
	resumeRetries       bool // makes every resumed instance due
	scopeUnchecked      bool // takes any scope

	// Cancellation and retry.
	cancelWaits       bool // leaves a cancelled instance waiting
	cancelKeepsEpoch  bool // cancels without raising the epoch
	cancelAgainRaises bool // raises the epoch by every cancel
	cancelsFinished   bool // cancels what is completed
	cancelOverwritten bool // completes what was cancelled
	retriesAnything   bool // retries anything
	retryKeepsAttempt bool // keeps the attempt over a retry
	retryFromStart    bool // retries from the configuration

	// Wakeups.
	earlyWakeups       bool // hands out wakeups that are not due
	newestFirst        bool // hands out the newest first
	wakeupsUnbounded   bool // hands out any number of wakeups
	kindsIgnored       bool // lets notes crowd out the rest
	neverConsumes      bool // hands out consumed wakeups again
	failureConsumes    bool // loses the wakeups of a failed evaluation
	lateWakeupLost     bool // lets a wakeup that came during an evaluation wait
	claimedWakeupsPull bool // spins on a wakeup that was left for later

	// Deliveries.
	wakeupPullsNothing    bool // does not wake for a delivery
	wakeupPushesBack      bool // lets a later delivery postpone
	retryFloorIgnored     bool // lets a delivery come before the retry time
	deliverIgnoresContent bool // takes other content for a repeat
	forgetsConsumed       bool // forgets ids at consumption
	deliversToFinished    bool // takes deliveries for what is finished
	failedWoken           bool // wakes what failed for good
	failedForgetsWakeups  bool // drops deliveries to what failed for good
	wakeupUnchecked       bool // takes any wakeup

	// Lifecycles.
	startsAtIgnored bool // starts before its time
	timersIgnored   bool // raises no timers
	raisesTwice     bool // raises a timer at every claim

	// Starts.
	startReplaces  bool // replaces what was started
	startSaysTrue  bool // says true for what was started before
	startUnchecked bool // starts anything
	anyYear        bool // takes any year

	// Revisions and admission.
	revisionDigestIgnored bool // finds revisions by their number alone
	revisionTenantIgnored bool // finds revisions of any tenant
	revisionReplaced      bool // replaces published revisions
	revisionUnchecked     bool // publishes anything
	wrongDenial           bool // refuses with another error

	// Releases.
	releasesAny           bool // releases for anybody
	releasesAfterCommit   bool // releases what a commit released
	reasonStays           bool // keeps the reason over the next claim
	releaseKeepsVersion   bool // keeps the lease version
	releaseBurnsAttempt   bool // counts an attempt
	releaseDelays         bool // puts a delay on what was given back
	releaseChecksEpochs   bool // refuses a revoked holder
	explainForgetsRelease bool // forgets the reason

	// Waits.
	lostWakeup          bool // misses what came before the wait
	neverWakes          bool // sees nothing that comes during the wait
	waitTooLate         bool // oversleeps the next due time
	waitForgetsLeases   bool // sleeps through the end of a lease
	waitSwallowsContext bool // returns nil when its context ends
	spins               bool // returns at once, always

	// Keeping.
	keepsAlways      bool // keeps what is not due
	keepForgotten    bool // forgets what it kept
	keepWithoutLease bool // keeps without a lease
	keepStale        bool // keeps an item with consumed wakeups
	keepEpochsMove   bool // returns what it kept again with all epochs of now
	keepEpochsStay   bool // returns what it kept again with the resource epoch of then

	// Views.
	listUnstable          bool // lists by age
	listIgnoresTenant     bool // lists all tenants
	listIgnoresStatus     bool // lists every status
	listFirstPageOnly     bool // lists one page
	pageRepeats           bool // lists the ends of pages twice
	listHoldsLock         bool // holds its lock while it yields
	historyNewestFirst    bool // yields the newest event first
	historyOfUnknownEmpty bool // yields nothing for an unknown instance
	errorStays            bool // keeps the last error over a success
	showsEndedLease       bool // shows a lease that has ended
	explainForgetsClass   bool // forgets the class of a failure

	// Pruning.
	prunesActive       bool // removes what is active
	prunesLate         bool // removes all that is finished
	prunesNotFailed    bool // keeps what failed for good
	prunesLatestEvent  bool // removes the latest event
	prunesActiveEvents bool // keeps the events of what finished later
	prunesNoEvents     bool // removes no events
	prunesFreshIDs     bool // forgets ids before their time

	// Intents: claims and leases.
	intentsByID        bool // claims intents by id
	capabilityStarves  bool // claims intents strictly by due time across capabilities
	pinsByID           bool // takes a capability's id for its pin
	intentLeaseIgnored bool // claims intents that are held
	intentVersionKept  bool // claims again under the same lease version
	renewsAnyIntent    bool // renews any lease of an intent
	marksUnrepeatable  bool // marks at the claim what must not be repeated
	marksUnasked       bool // marks at the claim without being asked
	claimIgnoresPause  bool // claims intents of what is paused

	// Intents: marks.
	markUnfenced        bool // marks for anybody
	markIgnoresPause    bool // marks what is paused
	markIgnoresEpochs   bool // marks under stale epochs
	markIgnoresDeadline bool // marks after the deadline
	markIgnoresLimit    bool // marks beyond the limit
	markAgainCounts     bool // counts a repeated mark
	instanceVoids       bool // voids intents by the next claim of their instance
	refusalForgotten    bool // stores nothing of a refusal
	markNotTakenBack    bool // takes no mark back

	// Intents: receipts and outcomes.
	receiptFenced       bool // drops the receipt of a lost lease
	receiptKeepsLease   bool // keeps the lease over a receipt
	contradictionTaken  bool // takes a receipt that contradicts
	evidenceDropped     bool // keeps no evidence
	lateReceiptIgnored  bool // ignores receipts of unknown outcomes
	settleUnfenced      bool // settles for anybody
	settleConflictTaken bool // takes a contradicting outcome for a repeat
	proofIgnored        bool // asks for no proof
	delayIgnored        bool // retries at once
	untold              bool // tells no outcome
	tellsAgain          bool // tells a repeated settlement again
	tellsSilently       bool // tells without waking
	tellsFinished       bool // tells what is finished
	wakeupOutside       bool // tells outside the transaction

	// Intents: control and operators.
	intentResourceIgnored bool // ignores pauses of resources
	pausedForEver         bool // leaves what was paused parked
	cancelLeaves          bool // leaves unmarked intents of what is cancelled
	cancelNotAsked        bool // asks for no cancellation of marked ones
	cancelForgotten       bool // takes every look for an acknowledgement
	lateSuccessLost       bool // settles a late success as cancelled
	awaitsForEver         bool // awaits confirmation beyond the deadline
	confirmsAgain         bool // lets a second confirmation replace the first
	resolvesAgain         bool // takes a second answer
	limitIgnored          bool // knows no limits
	tenantLimitIgnored    bool // takes a tenant's limit for everybody's
	limitForgetsInFlight  bool // counts what was marked since the limit was set
	limitStays            bool // wakes nothing by a changed limit
	unknownHolds          bool // counts unknown outcomes
	parkedForEver         bool // wakes nothing that waits for a slot
	newestIn              bool // gives slots to the newest first
	intentTenantIgnored   bool // lists the intents of all tenants
	intentsUnsorted       bool // lists intents by their id alone
	intentsFirstPage      bool // lists one page of intents
	intentNeverWakes      bool // wakes nobody who waits for intents
	intentWaitTooLate     bool // oversleeps the due time of an intent
	prunesMarked          bool // removes instances with intents in flight
	prunesRepeating       bool // removes instances with intents that are in doubt
	withdrawsAnyway       bool // withdraws what may have happened
	receiptAgainWakes     bool // makes work due by a repeated receipt
}

// TestBrokenQueuesAreCaught proves the suite: each of these queues breaks one
// rule, and the case that is named beside it has to fail.
func TestBrokenQueuesAreCaught(t *testing.T) {
	caught := map[string]bool{}
	for _, queue := range []struct {
		name, by string
		fault    func(*broken)
	}{
		{"hands out what is held", "claim/held-is-not-due", func(b *broken) { b.leaseIgnored = true }},
		{"never hands out what lapsed", "claim/lapsed-is-due-again", func(b *broken) { b.lapsedStays = true }},
		{"acquires without raising the lease version", "claim/raises-lease-version", func(b *broken) { b.versionKept = true }},
		{"hands out one more than asked for", "claim/limit", func(b *broken) { b.beyondLimit = true }},
		{"leases more than it hands out", "claim/limit-is-what-is-leased", func(b *broken) { b.overLease = true }},
		{"hands out any spec", "claim/wanted-specs", func(b *broken) { b.specsIgnored = true }},
		{"sorts the caller's spec ids", "claim/arguments-belong-to-caller", func(b *broken) { b.specsSorted = true }},
		{"serves any request", "claim/invalid-request", func(b *broken) { b.requestUnchecked = true }},
		{"hands out its own memory", "claim/results-belong-to-caller", func(b *broken) { b.sharesMemory = true }},
		{"keeps the caller's memory", "claim/arguments-belong-to-caller", func(b *broken) { b.sharesArguments = true }},
		{"fails a batch for one broken row", "claim/broken-row", func(b *broken) { b.brokenRowFailsAll = true }},
		{"counts an attempt at the claim", "claim/lapsed-is-due-again", func(b *broken) { b.attemptOnClaim = true }},
		{"judges due times and leases by the host's clock", "clock/wrong-host-clock", func(b *broken) { b.hostClock = true }},
		{"takes an hour off every delay", "commit/continue", func(b *broken) { b.delayFromClaim = true }},
		{"orders by id", "order/due-time", func(b *broken) { b.orderByID = true }},
		{"lets what is due again at once keep its place", "order/again-at-once-goes-behind", func(b *broken) { b.againKeepsPlace = true }},
		{"serves strictly by due time across tenants", "fairness/flood", func(b *broken) { b.unfair = true }},
		{"forgets who was served", "fairness/least-recently-served-first", func(b *broken) { b.turnsForgotten = true }},
		{"renews what has ended", "renew/ended-lease", func(b *broken) { b.revives = true }},
		{"renews the same id in any tenant", "renew/unknown", func(b *broken) { b.renewsAnyTenant = true }},
		{"takes no row for success", "renew/unknown", func(b *broken) { b.zeroRowsFine = true }},
		{"renews nothing", "renew/extends", func(b *broken) { b.renewIsNothing = true }},
		{"extends from the old end", "renew/new-end", func(b *broken) { b.renewFromEnd = true }},
		{"renews for any worker that knows the version", "renew/other-worker", func(b *broken) { b.anyWorker = true }},
		{"takes any duration", "renew/duration", func(b *broken) { b.anyDuration = true }},
		{"renews under stale epochs", "renew/paused", func(b *broken) { b.renewEpochIgnored = true }},
		{"compares no lease version", "fencing/frozen-holder", func(b *broken) { b.noFence = true }},
		{"takes the worker's name for the fence", "fencing/same-worker-name", func(b *broken) { b.nameAsFence = true }},
		{"lets the clock decide at the commit", "fencing/ended-but-not-taken", func(b *broken) { b.lapsedRefused = true }},
		{"compares no state version", "refusal/state-version", func(b *broken) { b.noCompare = true }},
		{"keeps the lease at a commit", "commit/applies", func(b *broken) { b.commitKeepsLease = true }},
		{"leaves half of a refused commit", "refusal/known-intent", func(b *broken) { b.notAtomic = true }},
		{"leaves half of a commit whose write failed", "atomicity/commit", func(b *broken) { b.notAtomicOnFault = true }},
		{"checks epochs before versions", "refusal/state-before-epochs", func(b *broken) { b.epochsFirst = true }},
		{"checks epochs after the intents", "refusal/epochs-before-intents", func(b *broken) { b.epochsLast = true }},
		{"knows no delivery keys", "keys/lost-acknowledgement", func(b *broken) { b.keysIgnored = true }},
		{"takes another digest for a repeat", "keys/other-digest", func(b *broken) { b.digestIgnored = true }},
		{"does not tell what collided", "keys/other-digest", func(b *broken) { b.plainConflict = true }},
		{"takes the key of the step before for a repeat", "keys/other-state-version", func(b *broken) { b.keyVersionIgnored = true }},
		{"checks the key after the lease", "keys/repeated-when-held-by-another", func(b *broken) { b.keyAfterFence = true }},
		{"compares keys without case", "keys/compared-exactly", func(b *broken) { b.keysFolded = true }},
		{"takes any command", "hostile/commands", func(b *broken) { b.contentUnchecked = true }},
		{"drops the state of a failure", "commit/failed-writes-state", func(b *broken) { b.failedKeepsState = true }},
		{"counts no attempts", "commit/failed-with-retry", func(b *broken) { b.attemptNotCounted = true }},
		{"keeps the attempt after a success", "commit/success-resets-attempt", func(b *broken) { b.attemptKept = true }},
		{"leaves what failed for good due", "commit/failed-for-good", func(b *broken) { b.failedStaysDue = true }},
		{"adds failures to the counters", "lifecycle/failures-do-not-count", func(b *broken) { b.countsFailures = true }},
		{"stores no intents", "commit/many-intents", func(b *broken) { b.intentsDropped = true }},
		{"takes a known intent id again", "refusal/known-intent", func(b *broken) { b.intentsRepeat = true }},
		{"takes intents after expiry", "lifecycle/no-intents-after-expiry", func(b *broken) { b.intentsAfterExpiry = true }},
		{"keys by id alone", "identifiers/same-id-in-two-tenants", func(b *broken) { b.tenantIgnored = true }},
		{"compares ids without case", "identifiers/look-alikes", func(b *broken) { b.idsFolded = true }},
		{"decodes numbers to floats", "fidelity/json-state", func(b *broken) { b.jsonThroughFloat = true }},
		{"rewrites JSON without white space", "fidelity/json-state", func(b *broken) { b.jsonCompacted = true }},
		{"trims text", "fidelity/text", func(b *broken) { b.textTrimmed = true }},
		{"commits under stale epochs", "epochs/cancelled", func(b *broken) { b.epochIgnored = true }},
		{"commits after a pause of the tenant", "epochs/paused-tenant", func(b *broken) { b.tenantEpochIgnored = true }},
		{"takes intents of a resource paused since", "epochs/paused-resource", func(b *broken) { b.resourceEpochIgnored = true }},
		{"claims what is paused", "pause/tenant", func(b *broken) { b.pauseIgnored = true }},
		{"raises the epoch by every pause", "pause/raises-once", func(b *broken) { b.pauseAgainRaises = true }},
		{"raises the epoch by a resume", "pause/raises-once", func(b *broken) { b.resumeRaises = true }},
		{"ends an instance's pause with its tenant's", "pause/adds-up", func(b *broken) { b.resumeLiftsAll = true }},
		{"names the narrowest pause", "pause/adds-up", func(b *broken) { b.pausedByNarrowest = true }},
		{"compares only the resources that are still paused", "epochs/resumed-resource", func(b *broken) { b.resourceEpochPaused = true }},
		{"stops claims for a resource", "pause/resource", func(b *broken) { b.resourceStopsTenant = true }},
		{"lifts retry times by the resume of a tenant", "pause/resume-lifts-retry-floor", func(b *broken) { b.resumeTenantLifts = true }},
		{"makes every resumed instance due", "pause/resume-is-no-retry", func(b *broken) { b.resumeRetries = true }},
		{"takes any scope", "pause/invalid-scope", func(b *broken) { b.scopeUnchecked = true }},
		{"leaves a cancelled instance waiting", "cancel/makes-due", func(b *broken) { b.cancelWaits = true }},
		{"cancels without raising the epoch", "epochs/cancelled", func(b *broken) { b.cancelKeepsEpoch = true }},
		{"raises the epoch by every cancel", "cancel/repeated", func(b *broken) { b.cancelAgainRaises = true }},
		{"cancels what is completed", "cancel/finished", func(b *broken) { b.cancelsFinished = true }},
		{"completes what was cancelled", "cancel/ends-as-cancelled", func(b *broken) { b.cancelOverwritten = true }},
		{"retries anything", "retry/others", func(b *broken) { b.retriesAnything = true }},
		{"keeps the attempt over a retry", "retry/backing-off", func(b *broken) { b.retryKeepsAttempt = true }},
		{"retries from the configuration", "retry/failed-for-good", func(b *broken) { b.retryFromStart = true }},
		{"hands out wakeups that are not due", "wakeups/due-only", func(b *broken) { b.earlyWakeups = true }},
		{"hands out the newest first", "wakeups/arrival-order", func(b *broken) { b.newestFirst = true }},
		{"hands out any number of wakeups", "wakeups/bounded", func(b *broken) { b.wakeupsUnbounded = true }},
		{"lets notes crowd out the rest", "wakeups/bounded", func(b *broken) { b.kindsIgnored = true }},
		{"hands out consumed wakeups again", "wakeups/consumed-once", func(b *broken) { b.neverConsumes = true }},
		{"loses the wakeups of a failed evaluation", "wakeups/kept-on-failure", func(b *broken) { b.failureConsumes = true }},
		{"lets a wakeup that came during an evaluation wait", "wakeups/during-evaluation", func(b *broken) { b.lateWakeupLost = true }},
		{"spins on a wakeup that was left for later", "wakeups/contained-does-not-pull", func(b *broken) { b.claimedWakeupsPull = true }},
		{"does not wake for a delivery", "deliver/pulls-due-time", func(b *broken) { b.wakeupPullsNothing = true }},
		{"lets a later delivery postpone", "deliver/never-pushes-back", func(b *broken) { b.wakeupPushesBack = true }},
		{"lets a delivery come before the retry time", "deliver/not-before-retry", func(b *broken) { b.retryFloorIgnored = true }},
		{"takes other content for a repeat", "deliver/conflict", func(b *broken) { b.deliverIgnoresContent = true }},
		{"forgets ids at consumption", "deliver/repeated-after-consumption", func(b *broken) { b.forgetsConsumed = true }},
		{"takes deliveries for what is finished", "deliver/finished", func(b *broken) { b.deliversToFinished = true }},
		{"wakes what failed for good", "deliver/failed-for-good", func(b *broken) { b.failedWoken = true }},
		{"drops deliveries to what failed for good", "deliver/failed-for-good", func(b *broken) { b.failedForgetsWakeups = true }},
		{"takes any wakeup", "deliver/invalid", func(b *broken) { b.wakeupUnchecked = true }},
		{"starts before its time", "lifecycle/starts-at", func(b *broken) { b.startsAtIgnored = true }},
		{"raises no timers", "lifecycle/expires", func(b *broken) { b.timersIgnored = true }},
		{"raises a timer at every claim", "lifecycle/raised-once", func(b *broken) { b.raisesTwice = true }},
		{"replaces what was started", "start/once", func(b *broken) { b.startReplaces = true }},
		{"says true for what was started before", "start/once", func(b *broken) { b.startSaysTrue = true }},
		{"starts anything", "hostile/instances", func(b *broken) { b.startUnchecked = true }},
		{"takes any year", "hostile/instants", func(b *broken) { b.anyYear = true }},
		{"finds revisions by their number alone", "revisions/found-by-every-pin", func(b *broken) { b.revisionDigestIgnored = true }},
		{"finds revisions of any tenant", "revisions/found-by-every-pin", func(b *broken) { b.revisionTenantIgnored = true }},
		{"replaces published revisions", "revisions/immutable", func(b *broken) { b.revisionReplaced = true }},
		{"publishes anything", "revisions/invalid", func(b *broken) { b.revisionUnchecked = true }},
		{"refuses with another error", "admission/denied", func(b *broken) { b.wrongDenial = true }},
		{"releases for anybody", "release/holder-only", func(b *broken) { b.releasesAny = true }},
		{"releases what a commit released", "release/after-commit", func(b *broken) { b.releasesAfterCommit = true }},
		{"keeps the reason over the next claim", "release/reason-is-explained", func(b *broken) { b.reasonStays = true }},
		{"keeps the lease version", "release/fences", func(b *broken) { b.releaseKeepsVersion = true }},
		{"counts an attempt", "release/claimable-at-once", func(b *broken) { b.releaseBurnsAttempt = true }},
		{"puts a delay on what was given back", "release/claimable-at-once", func(b *broken) { b.releaseDelays = true }},
		{"refuses a revoked holder", "release/never-checks-epochs", func(b *broken) { b.releaseChecksEpochs = true }},
		{"forgets the reason", "release/reason-is-explained", func(b *broken) { b.explainForgetsRelease = true }},
		{"misses what came before the wait", "wait/before-the-wait", func(b *broken) { b.lostWakeup = true }},
		{"sees nothing that comes during the wait", "wait/start", func(b *broken) { b.neverWakes = true }},
		{"oversleeps the next due time", "wait/next-due-time", func(b *broken) { b.waitTooLate = true }},
		{"sleeps through the end of a lease", "wait/lease-end", func(b *broken) { b.waitForgetsLeases = true }},
		{"returns nil when its context ends", "wait/context", func(b *broken) { b.waitSwallowsContext = true }},
		{"returns at once, always", "wait/untouched-does-not-wake", func(b *broken) { b.spins = true }},
		{"keeps what is not due", "keep/nothing-to-keep", func(b *broken) { b.keepsAlways = true }},
		{"forgets what it kept", "keep/repeated", func(b *broken) { b.keepForgotten = true }},
		{"keeps without a lease", "keep/due-at-once", func(b *broken) { b.keepWithoutLease = true }},
		{"returns what it kept with all epochs of now", "keep/repeated-after-a-pause", func(b *broken) { b.keepEpochsMove = true }},
		{"returns what it kept with the resource epoch of then", "keep/repeated-after-a-pause", func(b *broken) { b.keepEpochsStay = true }},
		{"keeps an item with consumed wakeups", "keep/pending-wakeups", func(b *broken) { b.keepStale = true }},
		{"lists by age", "list/everything", func(b *broken) { b.listUnstable = true }},
		{"lists all tenants", "list/filters", func(b *broken) { b.listIgnoresTenant = true }},
		{"lists every status", "list/filters", func(b *broken) { b.listIgnoresStatus = true }},
		{"lists one page", "list/pages", func(b *broken) { b.listFirstPageOnly = true }},
		{"lists the ends of pages twice", "list/pages", func(b *broken) { b.pageRepeats = true }},
		{"holds its lock while it yields", "list/stops-early", func(b *broken) { b.listHoldsLock = true }},
		{"yields the newest event first", "history/in-order", func(b *broken) { b.historyNewestFirst = true }},
		{"yields nothing for an unknown instance", "history/unknown", func(b *broken) { b.historyOfUnknownEmpty = true }},
		{"keeps the last error over a success", "get/last-error", func(b *broken) { b.errorStays = true }},
		{"shows a lease that has ended", "get/ended-lease", func(b *broken) { b.showsEndedLease = true }},
		{"forgets the class of a failure", "explain/failure-classes", func(b *broken) { b.explainForgetsClass = true }},
		{"removes what is active", "prune/active", func(b *broken) { b.prunesActive = true }},
		{"removes all that is finished", "prune/finished-later", func(b *broken) { b.prunesLate = true }},
		{"keeps what failed for good", "prune/finished", func(b *broken) { b.prunesNotFailed = true }},
		{"removes the latest event", "prune/active", func(b *broken) { b.prunesLatestEvent = true }},
		{"keeps the events of what finished later", "prune/events-of-finished-later", func(b *broken) { b.prunesActiveEvents = true }},
		{"removes no events", "prune/active", func(b *broken) { b.prunesNoEvents = true }},
		{"forgets ids before their time", "prune/consumed-ids", func(b *broken) { b.prunesFreshIDs = true }},
		{"claims intents by id", "intent-claim/order", func(b *broken) { b.intentsByID = true }},
		{"claims intents strictly by due time across capabilities", "intent-claim/turns", func(b *broken) { b.capabilityStarves = true }},
		{"takes a capability's id for its pin", "intent-claim/pins", func(b *broken) { b.pinsByID = true }},
		{"claims intents that are held", "intent-claim/held-is-not-due", func(b *broken) { b.intentLeaseIgnored = true }},
		{"claims intents again under the same lease version", "intent-lease/frozen-holder", func(b *broken) { b.intentVersionKept = true }},
		{"renews any lease of an intent", "intent-lease/other-versions", func(b *broken) { b.renewsAnyIntent = true }},
		{"marks at the claim what must not be repeated", "intent-claim/mark-repeatable", func(b *broken) { b.marksUnrepeatable = true }},
		{"marks at the claim without being asked", "intent-claim/mark-only-when-asked", func(b *broken) { b.marksUnasked = true }},
		{"claims intents of what is paused", "intent-pause/not-claimed", func(b *broken) { b.claimIgnoresPause = true }},
		{"marks for anybody", "intent-lease/frozen-holder", func(b *broken) { b.markUnfenced = true }},
		{"marks what is paused", "intent-pause/mark-refused", func(b *broken) { b.markIgnoresPause = true }},
		{"marks under stale epochs", "intent-mark/stale-epoch", func(b *broken) { b.markIgnoresEpochs = true }},
		{"marks after the deadline", "intent-mark/deadline", func(b *broken) { b.markIgnoresDeadline = true }},
		{"marks beyond the limit", "intent-limit/mark-refused", func(b *broken) { b.markIgnoresLimit = true }},
		{"counts a repeated mark", "intent-mark/repeated", func(b *broken) { b.markAgainCounts = true }},
		{"voids intents by the next claim of their instance", "intent-claim/own-progress-voids-nothing", func(b *broken) { b.instanceVoids = true }},
		{"stores nothing of a refusal", "intent-pause/mark-refused", func(b *broken) { b.refusalForgotten = true }},
		{"takes no mark back", "intent-release/not-handed-off", func(b *broken) { b.markNotTakenBack = true }},
		{"drops the receipt of a lost lease", "intent-receipt/from-a-lost-lease", func(b *broken) { b.receiptFenced = true }},
		{"keeps the lease over a receipt", "intent-receipt/running", func(b *broken) { b.receiptKeepsLease = true }},
		{"takes a receipt that contradicts", "intent-receipt/contradictions", func(b *broken) { b.contradictionTaken = true }},
		{"keeps no evidence", "intent-receipt/contradictions", func(b *broken) { b.evidenceDropped = true }},
		{"ignores receipts of unknown outcomes", "intent-receipt/of-an-unknown-outcome", func(b *broken) { b.lateReceiptIgnored = true }},
		{"settles for anybody", "intent-lease/frozen-after-the-mark", func(b *broken) { b.settleUnfenced = true }},
		{"takes a contradicting outcome for a repeat", "intent-settle/contradictions", func(b *broken) { b.settleConflictTaken = true }},
		{"asks for no proof", "intent-proof/no-repeat-without-proof", func(b *broken) { b.proofIgnored = true }},
		{"retries at once", "intent-settle/retryable", func(b *broken) { b.delayIgnored = true }},
		{"tells no outcome", "intent-settle/success", func(b *broken) { b.untold = true }},
		{"tells a repeated settlement again", "intent-settle/agreeing-repeats", func(b *broken) { b.tellsAgain = true }},
		{"tells without waking", "intent-settle/success", func(b *broken) { b.tellsSilently = true }},
		{"tells what is finished", "intent-told/finished-instance", func(b *broken) { b.tellsFinished = true }},
		{"tells outside the transaction", "intent-atomicity/settle", func(b *broken) { b.wakeupOutside = true }},
		{"ignores pauses of resources", "intent-pause/made-during-a-pause", func(b *broken) { b.intentResourceIgnored = true }},
		{"leaves what was paused parked", "intent-pause/made-during-a-pause", func(b *broken) { b.pausedForEver = true }},
		{"leaves unmarked intents of what is cancelled", "intent-cancel/withdraws-unmarked", func(b *broken) { b.cancelLeaves = true }},
		{"asks for no cancellation of marked ones", "intent-cancel/asks-for-marked", func(b *broken) { b.cancelNotAsked = true }},
		{"takes every look for an acknowledgement", "intent-cancel/asks-for-marked", func(b *broken) { b.cancelForgotten = true }},
		{"settles a late success as cancelled", "intent-cancel/late-success", func(b *broken) { b.lateSuccessLost = true }},
		{"awaits confirmation beyond the deadline", "intent-confirm/deadline", func(b *broken) { b.awaitsForEver = true }},
		{"lets a second confirmation replace the first", "intent-confirm/repeated", func(b *broken) { b.confirmsAgain = true }},
		{"takes a second answer", "intent-resolve/repeated", func(b *broken) { b.resolvesAgain = true }},
		{"knows no limits", "intent-concurrency/limit", func(b *broken) { b.limitIgnored = true }},
		{"takes a tenant's limit for everybody's", "intent-limit/scopes", func(b *broken) { b.tenantLimitIgnored = true }},
		{"counts what was marked since the limit was set", "intent-limit/in-flight-counts", func(b *broken) { b.limitForgetsInFlight = true }},
		{"wakes nothing by a changed limit", "intent-limit/raised-and-removed", func(b *broken) { b.limitStays = true }},
		{"counts unknown outcomes", "intent-limit/frees", func(b *broken) { b.unknownHolds = true }},
		{"wakes nothing that waits for a slot", "intent-limit/mark-refused", func(b *broken) { b.parkedForEver = true }},
		{"gives slots to the newest first", "intent-limit/first-parked-first", func(b *broken) { b.newestIn = true }},
		{"lists the intents of all tenants", "intent-list/filters", func(b *broken) { b.intentTenantIgnored = true }},
		{"lists intents by their id alone", "intent-list/filters", func(b *broken) { b.intentsUnsorted = true }},
		{"lists one page of intents", "intent-list/pages", func(b *broken) { b.intentsFirstPage = true }},
		{"wakes nobody who waits for intents", "intent-wait/freed-slot", func(b *broken) { b.intentNeverWakes = true }},
		{"oversleeps the due time of an intent", "intent-wait/due-time", func(b *broken) { b.intentWaitTooLate = true }},
		{"removes instances with intents that are in doubt", "intent-prune/keeps-what-is-in-flight", func(b *broken) { b.prunesRepeating = true }},
		{"withdraws what may have happened", "intent-ambiguous/cancelled", func(b *broken) { b.withdrawsAnyway = true }},
		{"makes work due by a repeated receipt", "intent-receipt/agreeing-repeats", func(b *broken) { b.receiptAgainWakes = true }},
		{"removes instances with intents in flight", "intent-prune/keeps-what-is-in-flight", func(b *broken) { b.prunesMarked = true }},
		{"decodes the numbers of inputs to floats", "intent-fidelity/input", func(b *broken) { b.jsonThroughFloat = true }},
	} {
		t.Run(queue.name, func(t *testing.T) {
			if caught[queue.name] {
				t.Fatal("there are two queues of this name")
			}
			caught[queue.name] = true
			var faults broken
			queue.fault(&faults)
			report := record(t, findCase(t, queue.by), func() Queue {
				m := newModel(faults)
				m.skew = -90 * 60e9
				return m.queue()
			})
			switch {
			case len(report.skipped) > 0:
				t.Errorf("case %s was skipped: %s", queue.by, report.skipped[0])
			case len(report.failed) == 0:
				t.Errorf("case %s does not catch a queue that %s", queue.by, queue.name)
			default:
				t.Logf("%s", report.failed[0])
			}
		})
	}
}
