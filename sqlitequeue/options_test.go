package sqlitequeue

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

func TestOpenRefuses(t *testing.T) {
	for _, test := range []struct {
		name, path string
		options    Options
		texts      []string
	}{
		{"no path", "", Options{}, []string{"path is empty", "MemoryWorkQueue"}},
		{"memory", ":memory:", Options{}, []string{":memory:", "every connection would get a database of its own", "MemoryWorkQueue"}},
		{"memory as URI", "file::memory:?cache=shared", Options{}, []string{"file::memory:"}},
		{"URI", "file:queue.db", Options{}, []string{"file:queue.db", "not a URI"}},
		{"NUL", "a\x00b", Options{}, []string{"NUL"}},
		{"prefix", "queue.db", Options{TablePrefix: "a-b"}, []string{"TablePrefix", "a-b"}},
		{"prefix with digit", "queue.db", Options{TablePrefix: "1a"}, []string{"TablePrefix"}},
		{"long prefix", "queue.db", Options{TablePrefix: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, []string{"TablePrefix", "33 bytes"}},
		{"everything at once", "", Options{ReadConnections: -1, PollInterval: -time.Second},
			[]string{"path", "ReadConnections is -1", "PollInterval is -1s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			q, err := Open(t.Context(), test.path, test.options)
			require.Nil(t, q)
			for _, text := range test.texts {
				require.ErrorContains(t, err, text)
			}
			files, err := os.ReadDir(".")
			require.NoError(t, err)
			require.Empty(t, files)
		})
	}
}

func TestOpenRefusesHandedInPool(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	db := (&faultyStore{path: path}).pool()
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err := Open(t.Context(), path, Options{DB: db})
	require.ErrorContains(t, err, "only one may be")
	db.SetMaxOpenConns(1)
	_, err = Open(t.Context(), "", Options{DB: db})
	require.ErrorContains(t, err, "DB allows 1 connection")

	memory := sql.OpenDB(&faultyStore{path: ":memory:"})
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	_, err = Open(t.Context(), "", Options{DB: memory, IsBusy: testIsBusy})
	require.ErrorContains(t, err, "in memory")
}

func TestOpenMissingDirectory(t *testing.T) {
	_, err := Open(t.Context(), filepath.Join(t.TempDir(), "missing", "queue.db"), Options{})
	require.ErrorContains(t, err, "missing")
}

// Any name that a file may have is the name of the file.
func TestOpenOddNames(t *testing.T) {
	for _, name := range []string{"with space.db", "a?b.db", "a%20b.db", "a#b.db", "größe.db", "a:b.db", "a&b=c.db"} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			q, err := Open(t.Context(), name, Options{})
			require.NoError(t, err)
			require.FileExists(t, name)
			require.NoError(t, q.Close())
		})
	}
}

// Defaults fill what is zero and leave everything else alone.
func TestOptionsDefaults(t *testing.T) {
	defaults, err := Options{}.withDefaults("queue.db")
	require.NoError(t, err)
	require.Equal(t, "supervisor_", defaults.TablePrefix)
	require.Equal(t, DefaultReadConnections, defaults.ReadConnections)
	require.Equal(t, DefaultPollInterval, defaults.PollInterval)

	set := Options{
		IsBusy: func(error) bool { return true }, TablePrefix: "p_", ReadConnections: 9, PollInterval: time.Hour,
		Admit: func(context.Context, *supervisor.WorkItem) error { return nil }, DB: new(sql.DB),
	}
	kept, err := set.withDefaults("")
	require.NoError(t, err)
	for n := range reflect.TypeFor[Options]().NumField() {
		field := reflect.TypeFor[Options]().Field(n)
		require.False(t, reflect.ValueOf(set).Field(n).IsZero(), field.Name)
		if field.Type.Kind() == reflect.Func {
			require.Equal(t, reflect.ValueOf(set).Field(n).Pointer(), reflect.ValueOf(kept).Field(n).Pointer(), field.Name)
		} else {
			require.Equal(t, reflect.ValueOf(set).Field(n).Interface(), reflect.ValueOf(kept).Field(n).Interface(), field.Name)
		}
	}
}

// Two queues with different prefixes share a file and nothing else.
func TestTablePrefix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	one, other := openFile(t, path, Options{}), openFile(t, path, Options{TablePrefix: "other_"})
	startDue(t, one, "a")
	startDue(t, other, "a", "b")
	require.Len(t, claimAll(t, one, 5), 1)
	require.Len(t, claimAll(t, other, 5), 2)
}

func TestAdmit(t *testing.T) {
	refusal := errors.New("not today")
	var answer error
	q := open(t, Options{Admit: func(context.Context, *supervisor.WorkItem) error { return answer }})
	item := new(supervisor.WorkItem)
	require.NoError(t, q.AdmitEvaluation(t.Context(), item))
	answer = refusal
	err := q.AdmitEvaluation(t.Context(), item)
	require.ErrorIs(t, err, supervisor.ErrNotAdmitted)
	require.ErrorIs(t, err, refusal)
	answer = supervisor.ErrUnavailable
	require.NotErrorIs(t, q.AdmitEvaluation(t.Context(), item), supervisor.ErrNotAdmitted)
}
