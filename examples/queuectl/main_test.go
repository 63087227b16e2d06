package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/sqlitequeue"
)

// fill makes a file with an instance of each kind.
func fill(t *testing.T) (db string) {
	t.Helper()
	db = filepath.Join(t.TempDir(), "instances.db")
	queue, err := sqlitequeue.Open(t.Context(), db, sqlitequeue.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, queue.Close()) }()
	start := func(tenant, id string) {
		instance, err := supervisor.NewInstance("job", 1, nil)
		require.NoError(t, err)
		instance.TenantID, instance.ID = tenant, id
		_, err = queue.Start(t.Context(), instance, time.Time{})
		require.NoError(t, err)
	}
	for _, id := range []string{"done", "later", "broken", "busy"} {
		start(supervisor.DefaultTenantID, id)
	}
	drivers := supervisor.NewDriverRegistry[struct{}]()
	require.NoError(t, drivers.Register(supervisor.NewDriver("job", 1,
		func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			switch item.ID {
			case "broken":
				return supervisor.TransitionCommand{}, supervisor.Permanent(errors.New("no\tpaper\x1b[2J left"))
			case "busy":
				return supervisor.TransitionCommand{}, supervisor.RetryAfter(errors.New(strings.Repeat("busy ", 100)), time.Hour)
			case "later":
				return supervisor.NewCommand(item, "job.begun", "x", nil, supervisor.Continue{Delay: time.Hour})
			}
			return supervisor.NewCommand(item, "job.done", nil, nil, supervisor.Complete{})
		})))
	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	_, err = supervisor.RunDuePass(t.Context(), queue, drivers, supervisor.Settings{WorkerID: "w"}, noContext)
	require.NoError(t, err)
	start("other", "done")
	return db
}

// call runs the program on a file.
func callOn(t *testing.T, db string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), append([]string{"-db", db}, args...), &out, &errs)
	return status, out.String(), errs.String()
}

func TestList(t *testing.T) {
	db := fill(t)
	ids := func(args ...string) string {
		status, stdout, stderr := callOn(t, db, append(append([]string{"-json"}, args...), "list")...)
		require.Equal(t, exitDone, status, stderr)
		var ids []string
		for line := range strings.Lines(stdout) {
			var snapshot supervisor.Snapshot
			require.NoError(t, json.Unmarshal([]byte(line), &snapshot))
			ids = append(ids, snapshot.TenantID+"/"+snapshot.ID)
		}
		return strings.Join(ids, " ")
	}
	require.Equal(t, "default/broken default/busy default/done default/later", ids())
	require.Equal(t, "other/done", ids("-tenant", "other"))
	require.Equal(t, "default/broken default/busy default/done default/later other/done", ids("-tenant", ""))
	require.Equal(t, "default/broken", ids("-status", "failed"))
	require.Empty(t, ids("-spec", "another"))

	status, stdout, _ := callOn(t, db, "list")
	require.Equal(t, exitDone, status)
	lines := strings.Split(stdout, "\n")
	require.Regexp(t, `^TENANT +ID +SPEC +STATUS +VERSION +DUE +ATTEMPT +LAST ERROR$`, lines[0])
	require.Regexp(t, `^default +broken +job +failed +1 +- +1 +no paper \[2J left$`, lines[1])
	require.Regexp(t, `^default +busy +job +active +1 +20\d\d-.*Z +1 +(busy )+busy\.\.\.$`, lines[2])
	require.Regexp(t, `^default +done +job +completed +1 +- +0 +-$`, lines[3])
}

func TestHistory(t *testing.T) {
	db := fill(t)
	status, stdout, _ := callOn(t, db, "history", "later")
	require.Equal(t, exitDone, status)
	require.Regexp(t, `^AT +VERSION +EVENT +WORKER +PAYLOAD\n20\d\d-.*Z +1 +job\.begun +w +"x"\n$`, stdout)

	status, stdout, _ = callOn(t, db, "-json", "history", "later")
	require.Equal(t, exitDone, status)
	require.Contains(t, stdout, `"type":"job.begun"`)

	status, _, stderr := callOn(t, db, "history", "nobody")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "not found")
}

func TestExplain(t *testing.T) {
	status, stdout, stderr := callOn(t, fill(t), "explain", "done", "nobody", "later", "busy")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "queuectl: nobody: ")
	require.Regexp(t, `^ID +REASON +UNTIL +BY +DETAIL
done +completed +- +- +-
later +not_due +20\d\d-.*Z +- +-
busy +backing_off +20\d\d-.*Z +- +busy.*
$`, stdout, "the others are explained all the same")
}

func TestCancelAndRetry(t *testing.T) {
	db := fill(t)
	for _, step := range []struct {
		args           string
		status         int
		stdout, stderr string
	}{
		{"cancel later", exitDone, "later: cancelling\n", ""},
		{"cancel broken", exitDone, "broken: cancelled\n", ""},
		{"cancel done", exitDone, "done: completed\n", ""},
		{"retry busy", exitDone, "busy: due\n", ""},
		{"retry done busy broken", exitFailed, "", "state conflict"},
		{"retry nobody", exitFailed, "", "not found"},
		{"-tenant other cancel done", exitDone, "done: cancelling\n", ""},
	} {
		status, stdout, stderr := callOn(t, db, strings.Fields(step.args)...)
		require.Equal(t, step.status, status, step.args)
		require.Equal(t, step.stdout, stdout, step.args)
		require.Contains(t, stderr, step.stderr, step.args)
	}
}

func TestWrongCalls(t *testing.T) {
	db := fill(t)
	for args, want := range map[string]string{
		"":                    "no command",
		"drop":                `there is no command "drop"`,
		"list x":              "list takes no ids",
		"history":             "history takes one id",
		"history a b":         "history takes one id",
		"explain":             "explain takes at least one id",
		"cancel":              "cancel takes at least one id",
		"retry":               "retry takes at least one id",
		"-status asleep list": `-status is "asleep", must be one of [active completed failed cancelled]`,
		"-no-such-flag":       "flag provided but not defined",
		"-db= list":           "-db is missing",
	} {
		status, stdout, stderr := callOn(t, db, strings.Fields(args)...)
		require.Equal(t, exitUsage, status, args)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
	}
	status, _, stderr := callOn(t, db, "-h")
	require.Equal(t, exitDone, status)
	require.Contains(t, stderr, "usage: queuectl")

	missing := db + ".missing"
	status, _, stderr = callOn(t, missing, "list")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "no such file")
	require.NoFileExists(t, missing)

	// Files that hold something else stay as they are.
	for content, want := range map[string]string{
		"": "holds no queue",
		"surely no database at all, but long enough to be taken for the header of one; it has to have a hundred bytes": "not a database",
	} {
		other := filepath.Join(t.TempDir(), "other")
		require.NoError(t, os.WriteFile(other, []byte(content), 0o600))
		status, _, stderr := callOn(t, other, "list")
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, want)
		left, err := os.ReadFile(other)
		require.NoError(t, err)
		require.Equal(t, content, string(left))
	}
}
