//go:build !race

package sqlitequeue

import (
	"database/sql/driver"
	"time"

	"modernc.org/sqlite"
)

// testLease is the shortest lease that tests rely on.
const testLease = time.Second

// testDriver is the driver that tests run on.
var testDriver driver.Driver = new(sqlite.Driver)

var testSource = dataSource

var testIsBusy = isBusy
