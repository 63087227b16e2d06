//go:build race

package sqlitequeue

import (
	"database/sql/driver"
	"errors"
	"time"

	"github.com/mattn/go-sqlite3"
)

// The race detector watches every access to memory in the Go that the default
// driver's C was translated to, which makes it some thirty times slower and
// finds nothing. So it runs on the driver that is C, and with it the tests prove
// that other drivers do as well.

const testLease = time.Second

var testDriver driver.Driver = new(sqlite3.SQLiteDriver)

func testSource(path string) string {
	return "file:" + path + "?_txlock=immediate&_busy_timeout=10000&_journal_mode=WAL&_synchronous=FULL"
}

func testIsBusy(err error) bool {
	var refused sqlite3.Error
	return errors.As(err, &refused) && (refused.Code == sqlite3.ErrBusy || refused.Code == sqlite3.ErrLocked)
}
