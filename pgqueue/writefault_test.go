package pgqueue

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeFaults makes the server fail at a row that it writes: at every other one
// as on a full disk, at the others by ending the session.
type writeFaults struct {
	q       *Queue
	prepare sync.Once
}

// The number of rows that were written is a sequence, for a transaction that is
// undone must not undo it.
const sqlWriteFaults = `
CREATE SEQUENCE {{schema}}.fault_writes;
CREATE TABLE {{schema}}.fault (at bigint NOT NULL);
INSERT INTO {{schema}}.fault VALUES (0);
CREATE FUNCTION {{schema}}.fault() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_at bigint := (SELECT f.at FROM {{schema}}.fault f);
BEGIN
    IF v_at > 0 AND nextval('{{schema}}.fault_writes') = v_at THEN
        IF v_at % 2 = 0 THEN
            PERFORM pg_terminate_backend(pg_backend_pid());
            PERFORM pg_sleep(10);
        END IF;
        RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100';
    END IF;
    RETURN NULL;
END $$;`

func (f *writeFaults) failWrite(t testing.TB, n int) (disarm func() (reached bool)) {
	t.Helper()
	ctx := context.Background()
	f.prepare.Do(func() {
		_, err := f.q.pool.Exec(ctx, f.q.store.text(strings.ReplaceAll(sqlWriteFaults, "'{{schema}}", "'"+strings.ReplaceAll(f.q.store.schema, "'", "''"))))
		require.NoError(t, err)
		for _, table := range []string{"tenant", "resource", "lane", "lane_due", "instance", "run", "event", "wakeup", "intent", "revision"} {
			execute(t, f.q, "CREATE TRIGGER fault AFTER INSERT OR UPDATE OR DELETE ON {{schema}}."+table+
				" FOR EACH ROW EXECUTE FUNCTION {{schema}}.fault()")
		}
	})
	execute(t, f.q, "ALTER SEQUENCE {{schema}}.fault_writes RESTART")
	execute(t, f.q, "UPDATE {{schema}}.fault SET at = $1", n)
	return func() bool {
		execute(t, f.q, "UPDATE {{schema}}.fault SET at = 0")
		return number(t, f.q, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {{schema}}.fault_writes") >= int64(n)
	}
}
