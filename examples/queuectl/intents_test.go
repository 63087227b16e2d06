package main

import (
	"context"
	"encoding/json"
	"errors"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/sqlitequeue"
)

// What the instances of fillIntents may have done.
var (
	bank    = supervisor.CapabilityPin{ID: "bank", ContractVersion: "1", ContentDigest: "code:bank@1"}
	printer = supervisor.CapabilityPin{ID: "printer", ContractVersion: "1", ContentDigest: "code:printer@1"}
)

type bankServer struct{}

func (bankServer) Dispatch(context.Context, *supervisor.Handoff) (supervisor.Receipt, error) {
	return supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderSucceeded}}, nil
}

// jammed is a printer of which nobody knows what it did.
type jammed struct{}

func (jammed) Dispatch(context.Context, *supervisor.Handoff) (supervisor.Receipt, error) {
	return supervisor.Receipt{}, errors.New("connection reset")
}

// fillIntents makes a file with intents: "pay" has succeeded, "large" and "huge"
// await confirmation, and nobody knows what became of the labels.
func fillIntents(t *testing.T) (db string) {
	t.Helper()
	db = filepath.Join(t.TempDir(), "intents.db")
	queue, err := sqlitequeue.Open(t.Context(), db, sqlitequeue.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, queue.Close()) }()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	require.NoError(t, drivers.Register(supervisor.NewDriver("job", 1, ask)))
	for _, instanceID := range []string{"other/a", "default/a", "default/b"} {
		instance, err := supervisor.NewInstance("job", 1, nil)
		require.NoError(t, err)
		instance.TenantID, instance.ID, _ = strings.Cut(instanceID, "/")
		instance.CapabilityPins = []supervisor.CapabilityPin{bank, printer}
		_, err = queue.Start(t.Context(), instance, time.Time{})
		require.NoError(t, err)
	}
	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	_, err = supervisor.RunDuePass(t.Context(), queue, drivers, supervisor.Settings{WorkerID: "w"}, noContext)
	require.NoError(t, err)
	dispatchPass(t, queue)
	return db
}

// ask asks for what fillIntents promises.
func ask(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	var intents []supervisor.ActionIntent
	add := func(id string, capability supervisor.CapabilityPin) {
		intent, err := supervisor.NewIntent(item, id, capability, nil)
		if err != nil {
			panic(err)
		}
		intent.RequiresConfirmation = id == "large" || id == "huge"
		intents = append(intents, intent)
	}
	switch item.TenantID + "/" + item.ID {
	case "default/a":
		add("pay", bank)
		add("large", bank)
		add("huge", bank)
	case "default/b":
		add("label", printer)
		add("label2", printer)
		add("label3", printer)
	default:
		add("pay", bank)
	}
	command, err := supervisor.NewCommand(item, "asked", nil, nil, supervisor.Continue{Delay: time.Hour})
	command.ActionIntents = intents
	return command, err
}

func dispatchPass(t *testing.T, queue supervisor.IntentQueue) {
	t.Helper()
	providers := supervisor.NewProviderRegistry()
	require.NoError(t, providers.Register(bank, bankServer{}, supervisor.ProviderOptions{}))
	require.NoError(t, providers.Register(printer, jammed{}, supervisor.ProviderOptions{}))
	_, err := supervisor.RunDispatchPass(t.Context(), queue, providers, supervisor.Settings{WorkerID: "w"})
	require.NoError(t, err)
}

// records returns what intents lists as JSON.
func records(t *testing.T, db string, args ...string) (records []supervisor.IntentRecord) {
	t.Helper()
	status, stdout, stderr := callOn(t, db, append([]string{"intents", "-json"}, args...)...)
	require.Equal(t, exitDone, status, stderr)
	for line := range strings.Lines(stdout) {
		var record supervisor.IntentRecord
		require.NoError(t, json.Unmarshal([]byte(line), &record))
		records = append(records, record)
	}
	return records
}

// record returns an intent of the default tenant.
func record(t *testing.T, db, instanceID, intentID string) supervisor.IntentRecord {
	t.Helper()
	for _, r := range records(t, db, "-instance", instanceID) {
		if r.Intent.ID == intentID {
			return r
		}
	}
	require.Fail(t, "no such intent", "%s %s", instanceID, intentID)
	return supervisor.IntentRecord{}
}

func TestIntents(t *testing.T) {
	db := fillIntents(t)
	for args, want := range map[string]string{
		"":                             "default/a/huge default/a/large default/a/pay default/b/label default/b/label2 default/b/label3",
		"-tenant other":                "other/a/pay",
		"-tenant= -capability bank":    "default/a/huge default/a/large default/a/pay other/a/pay",
		"-tenant= -instance a":         "default/a/huge default/a/large default/a/pay other/a/pay",
		"-state awaiting_confirmation": "default/a/huge default/a/large",
		"-state unknown":               "default/b/label default/b/label2 default/b/label3",
		"-state unknown -instance a":   "",
		"-capability other":            "",
	} {
		var keys []string
		for _, r := range records(t, db, strings.Fields(args)...) {
			keys = append(keys, r.Intent.TenantID+"/"+r.Intent.InstanceID+"/"+r.Intent.ID)
		}
		require.Equal(t, want, strings.Join(keys, " "), args)
	}

	status, stdout, stderr := callOn(t, db, "intents")
	require.Equal(t, exitDone, status, stderr)
	lines := strings.Split(stdout, "\n")
	require.Regexp(t, `^TENANT +INSTANCE +INTENT +CAPABILITY +STATE +ATTEMPT +OUTCOME +SINCE +LAST TROUBLE +EVIDENCE$`, lines[0])
	require.Regexp(t, `^default +a +huge +bank +awaiting_confirmation +0 +- +20\S+Z +- +0$`, lines[1])
	require.Regexp(t, `^default +a +pay +bank +succeeded +1 +succeeded/reported +20\S+Z +- +0$`, lines[3])
	require.Regexp(t, `^default +b +label +printer +unknown +1 +unknown/ambiguous +20\S+Z +error in dispatch 20\S+Z +0$`, lines[4])
}

// A late answer of the provider that contradicts an operator's is evidence.
func TestIntentsCountEvidence(t *testing.T) {
	db := fillIntents(t)
	status, _, stderr := callOn(t, db, "resolve", "failed", "b", "label")
	require.Equal(t, exitDone, status, stderr)
	queue, err := sqlitequeue.Open(t.Context(), db, sqlitequeue.Options{})
	require.NoError(t, err)
	work := supervisor.IntentWork{IntentRecord: record(t, db, "b", "label")}
	late := supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderSucceeded}}
	require.ErrorIs(t, queue.RecordReceipt(t.Context(), &work, late), supervisor.ErrReceiptConflict)
	require.NoError(t, queue.Close())
	_, stdout, _ := callOn(t, db, "intents", "-state", "reconciled")
	require.Regexp(t, `\n\S+ +b +label +printer +reconciled +1 +failed/resolved +20\S+Z +error in dispatch 20\S+Z +1\n$`, stdout)
}

func TestDecideAboutIntents(t *testing.T) {
	db := fillIntents(t)
	for _, step := range []struct {
		args           string
		status         int
		stdout, stderr string
	}{
		{"confirm a large -by Grace", exitDone, "large: authorized, confirmed by Grace\n", ""},
		{"confirm a large -by Ada", exitDone, "large: authorized, confirmed by Grace\n", ""},
		{
			"reject -reason dear a large huge -by Ada", exitFailed, "huge: rejected (withdrawn/denied), rejected by Ada\n",
			"does not wait for this answer: it is authorized, confirmed by Grace\n",
		},
		{"reject a huge -reason again -by Bob", exitDone, "huge: rejected (withdrawn/denied), rejected by Ada\n", ""},
		{"confirm a huge", exitFailed, "", "it is rejected (withdrawn/denied), rejected by Ada\n"},
		{"confirm a pay", exitFailed, "", "it is succeeded (succeeded/reported)\n"},
		{"confirm a nothing", exitFailed, "", "queuectl: nothing: sqlitequeue: confirm intent \"nothing\" of instance \"a\""},
		{"confirm a nothing", exitFailed, "", "not found"},
		{"confirm -tenant other a large", exitFailed, "", "not found"},
		{"reject nobody pay -reason x", exitFailed, "", "not found"},
		{"resolve repeat b nothing", exitFailed, "", "not found"},

		{"resolve failed b label -attempt 2", exitFailed, "", "it is unknown (unknown/ambiguous)\n"},
		{"resolve failed b label -attempt 1 -reason torn -by Grace", exitDone, "label: reconciled (failed/resolved), resolved as failed by Grace\n", ""},
		{"resolve failed b label -reason torn -by Ada", exitDone, "label: reconciled (failed/resolved), resolved as failed by Grace\n", ""},
		{"resolve repeat b label", exitFailed, "", "it is reconciled (failed/resolved), resolved as failed by Grace\n"},
		{"resolve succeeded b label2 -output {\"page\":1} -by Grace", exitDone, "label2: reconciled (succeeded/resolved), resolved as succeeded by Grace\n", ""},
		{"resolve repeat b label3 -by Grace", exitDone, "label3: retryable, resolved as repeat by Grace\n", ""},
		{"resolve succeeded a pay", exitFailed, "", "does not wait for this answer: it is succeeded"},
	} {
		status, stdout, stderr := callOn(t, db, strings.Fields(step.args)...)
		require.Equal(t, step.status, status, "%s: %s", step.args, stderr)
		require.Equal(t, step.stdout, stdout, step.args)
		require.Contains(t, stderr, step.stderr, step.args)
	}
	huge, label, label2 := record(t, db, "a", "huge"), record(t, db, "b", "label"), record(t, db, "b", "label2")
	require.Equal(t, "dear", huge.Reason)
	require.Equal(t, "torn", label.Reason)
	require.JSONEq(t, `{"page":1}`, string(label2.Output))
}

// Who decides is the user, where nothing else is said.
func TestDecideAsTheUser(t *testing.T) {
	db := fillIntents(t)
	current, err := user.Current()
	require.NoError(t, err)
	for _, args := range []string{"confirm a large", "reject a huge -reason dear", "resolve repeat b label"} {
		status, _, stderr := callOn(t, db, strings.Fields(args)...)
		require.Equal(t, exitDone, status, stderr)
	}
	large, huge, label := record(t, db, "a", "large"), record(t, db, "a", "huge"), record(t, db, "b", "label")
	require.Equal(t, current.Username, large.Intent.Confirmation.By)
	require.Equal(t, current.Username, huge.Intent.Confirmation.By)
	require.Equal(t, current.Username, label.Resolved.By)
}

func TestWrongCallsAboutIntents(t *testing.T) {
	db := fillIntents(t)
	for args, want := range map[string]string{
		"intents a":                           "intents takes no ids",
		"intents -state lost":                 `-state is "lost", must be one of [prepared awaiting_confirmation `,
		"confirm a":                           "confirm takes the id of an instance and at least one of its intents",
		"reject a -reason x":                  "reject takes the id of an instance and at least one of its intents",
		"reject a huge":                       "-reason is missing",
		"resolve repeat b":                    "resolve takes an answer, the id of an instance and that of an intent",
		"resolve repeat b label label2":       "resolve takes an answer, the id of an instance and that of an intent",
		"resolve done b label":                `the answer is "done", must be one of [succeeded failed repeat]`,
		"resolve failed b label -output 1":    `-output is given, but the answer is "failed"`,
		"resolve succeeded b label -output {": `-output is "{", must be JSON`,
		"resolve repeat b label -attempt -1":  "-attempt is -1, must not be negative",
		"confirm a -- -by":                    "", // an id, which is not there
	} {
		status, stdout, stderr := callOn(t, db, strings.Fields(args)...)
		if want == "" {
			require.Equal(t, exitFailed, status, args)
			want = `intent "-by"`
		} else {
			require.Equal(t, exitUsage, status, args)
		}
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
	}
	large, label := record(t, db, "a", "large"), record(t, db, "b", "label")
	require.Equal(t, supervisor.ActionAwaitingConfirmation, large.Intent.State)
	require.Equal(t, supervisor.ActionUnknown, label.Intent.State)
}
