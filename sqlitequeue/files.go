package sqlitequeue

import (
	"fmt"
	"os"
)

// files are those of an open database, to notice when they are deleted or
// replaced: what is written to them then is gone with the process.
type files struct {
	path string
	// main and log are what was opened; nil where the driver keeps the database
	// elsewhere than in the file system.
	main, log os.FileInfo
}

// logSuffix names the log beside a database.
const logSuffix = "-wal"

// filesAt returns the database at a path, which is open.
func filesAt(path string) files {
	f := files{path: path}
	f.main, _ = os.Stat(path)
	return f
}

// opened returns the files of a connection that has been used.
func (f files) opened() (files, error) {
	f.log = nil
	if err := f.check(); err != nil || f.main == nil {
		return f, err
	}
	f.log, _ = os.Stat(f.path + logSuffix)
	return f, nil
}

// check returns [ErrFileGone] where a file is not the one that was opened.
func (f *files) check() error {
	if err := same(f.path, f.main); err != nil {
		return err
	}
	return same(f.path+logSuffix, f.log)
}

func same(path string, opened os.FileInfo) error {
	if opened == nil {
		return nil
	}
	found, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrFileGone, err)
	case !os.SameFile(found, opened):
		return fmt.Errorf("%w: another is at %q", ErrFileGone, path)
	}
	return nil
}
