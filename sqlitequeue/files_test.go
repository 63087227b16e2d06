package sqlitequeue

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// What is written to a file that nobody finds again is refused instead.
func TestFileThatIsGone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files in use cannot be deleted or replaced")
	}
	remove := func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) }
	replace := func(t *testing.T, path string) {
		other := filepath.Join(t.TempDir(), "other.db")
		require.NoError(t, openFile(t, other, Options{}).Close())
		require.NoError(t, os.Rename(other, path))
	}
	for name, test := range map[string]struct {
		suffix string
		spoil  func(t *testing.T, path string)
	}{
		"deleted":      {"", remove},
		"replaced":     {"", replace},
		"log deleted":  {logSuffix, remove},
		"log replaced": {logSuffix, replace},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "queue.db")
			q := openFile(t, path, Options{})
			startDue(t, q, "a")
			item := claimAll(t, q, 1)[0]
			spoilt, kept := path+test.suffix, filepath.Join(t.TempDir(), "kept")
			require.NoError(t, os.Link(spoilt, kept))
			test.spoil(t, spoilt)

			_, err := q.Start(t.Context(), testInstance(t, "b"), time.Time{})
			require.ErrorIs(t, err, ErrFileGone)
			require.ErrorIs(t, err, supervisor.ErrUnavailable)
			err = q.CommitCommand(t.Context(), &item, step(t, &item, `1`, supervisor.Complete{}))
			require.ErrorIs(t, err, ErrFileGone)
			require.NotErrorIs(t, err, supervisor.ErrCommitUnknown)

			require.NoError(t, os.Rename(kept, spoilt))
			require.NoError(t, q.CommitCommand(t.Context(), &item, step(t, &item, `1`, supervisor.Complete{})))
			_, err = q.Get(t.Context(), supervisor.DefaultTenantID, "b")
			require.ErrorIs(t, err, supervisor.ErrNotFound)
		})
	}
}

// A new connection of the writer does not take another file for the queue's.
func TestReconnectingToAnotherFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files in use cannot be deleted or replaced")
	}
	path := filepath.Join(t.TempDir(), "queue.db")
	q, store := openFaulty(t, path)
	disarm := store.failWrite(1)
	store.sticky = true // also the rollback, so that the connection is given up
	_, err := q.Start(t.Context(), testInstance(t, "a"), time.Time{})
	require.ErrorIs(t, err, supervisor.ErrUnavailable)
	store.sticky = false
	require.True(t, disarm())
	require.NoError(t, os.Remove(path))
	openFile(t, path, Options{})
	_, err = q.Start(t.Context(), testInstance(t, "a"), time.Time{})
	require.ErrorIs(t, err, ErrFileGone)
}

// A file that can only be read is refused at once, not with the first write.
func TestOpenRefusesFileThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	openFile(t, path, Options{})
	_, err := tryOpen(t.Context(), t, &faultyStore{path: path, readOnly: true}, Options{})
	require.ErrorContains(t, err, "readonly")
}

// A full file refuses what has no room, says so, keeps what it has and goes on
// when there is room again.
func TestFullFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	roomy := openFile(t, path, Options{})
	startDue(t, roomy, "first")
	item := claimAll(t, roomy, 1)[0]
	large := testInstance(t, "large")
	large.Config = json.RawMessage(`"` + strings.Repeat("x", 40_000) + `"`)
	command := step(t, &item, string(large.Config), supervisor.Continue{Delay: time.Hour})

	full := openStore(t, &faultyStore{path: path, full: true}, Options{})
	for range 3 {
		_, err := full.Start(t.Context(), large, time.Time{})
		require.ErrorIs(t, err, supervisor.ErrUnavailable)
		require.ErrorContains(t, err, "full")
		require.ErrorIs(t, full.CommitCommand(t.Context(), &item, command), supervisor.ErrUnavailable)
	}
	snapshot, err := full.Get(t.Context(), item.TenantID, item.ID)
	require.NoError(t, err)
	require.Zero(t, snapshot.StateVersion)

	require.NoError(t, roomy.CommitCommand(t.Context(), &item, command))
	startDue(t, roomy, "second")
}
