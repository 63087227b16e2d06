// Command queuectl looks at the instances in an SQLite file and acts on them:
// what a service of yours would offer its operators. It embeds the queue, so
// that it needs no server, and may run beside the service.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/sqlitequeue"
)

const usage = `usage: queuectl -db file [flags] command [id...]

  list           the instances, one a line
  history id     what has happened to an instance
  explain id...  why instances are not running now
  cancel id...   ask instances to end; their drivers have the last word
  retry id...    run instances that failed or back off at once

The exit status is 1 where something could not be done, 2 for a wrong call.

flags:
`

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// call is what the command line asks for.
type call struct {
	db      string
	tenant  string
	filter  supervisor.Filter
	json    bool
	command func(context.Context, *tool, []string) error
	ids     []string
}

// errUsage is a wrong call, about which everything has been said.
var errUsage = errors.New("usage")

func parse(args []string, stderr io.Writer) (*call, error) {
	c := new(call)
	flags := flag.NewFlagSet("queuectl", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	status := ""
	flags.StringVar(&c.db, "db", "", "the SQLite `file`; required")
	flags.StringVar(&c.tenant, "tenant", supervisor.DefaultTenantID, "the tenant whose instances are meant; list: empty means all")
	flags.StringVar(&c.filter.SpecID, "spec", "", "list: only instances of this spec")
	flags.StringVar(&status, "status", "", "list: only instances that are active, completed, failed or cancelled")
	flags.BoolVar(&c.json, "json", false, "list, history and explain: JSON, one value a line")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil, err
	case err != nil:
		return nil, errUsage
	}
	c.filter.TenantID, c.filter.Status = c.tenant, supervisor.Status(status)

	name := flags.Arg(0)
	c.ids = flags.Args()[min(1, flags.NArg()):]
	command, known := commands()[name]
	problem := ""
	switch {
	case name == "":
		problem = "no command"
	case !known:
		problem = fmt.Sprintf("there is no command %q", name)
	case c.db == "":
		problem = "-db is missing"
	case status != "" && !slices.Contains(statuses(), c.filter.Status):
		problem = fmt.Sprintf("-status is %q, must be one of %v", status, statuses())
	case len(c.ids) < command.least || len(c.ids) > command.most:
		problem = fmt.Sprintf("%s takes %s", name, command.takes)
	}
	if problem != "" {
		fmt.Fprintf(stderr, "queuectl: %s; -h tells more\n", problem)
		return nil, errUsage
	}
	c.command = command.run
	return c, nil
}

func statuses() []supervisor.Status {
	return []supervisor.Status{
		supervisor.StatusActive, supervisor.StatusCompleted, supervisor.StatusFailed, supervisor.StatusCancelled,
	}
}

// run is the whole program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (status int) {
	call, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return exitUsage
	}
	if err := act(ctx, call, stdout); err != nil {
		fmt.Fprintf(stderr, "queuectl: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// act opens the queue, carries the call out and closes the queue.
func act(ctx context.Context, call *call, stdout io.Writer) (err error) {
	if err := checkQueue(ctx, call.db); err != nil {
		return err
	}
	queue, err := sqlitequeue.Open(ctx, call.db, sqlitequeue.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, queue.Close()) }()
	return call.command(ctx, &tool{queue: queue, call: call, out: stdout}, call.ids)
}

// checkQueue refuses what holds no queue: Open would make the file, or add its
// tables to those of somebody else, and a wrong name shall do neither.
func checkQueue(ctx context.Context, path string) (err error) {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	// The driver is sqlitequeue's.
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=rw&_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	found := 0
	const query = `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'supervisor_schema'`
	if err := db.QueryRowContext(ctx, query).Scan(&found); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if found == 0 {
		return fmt.Errorf("%s holds no queue", path)
	}
	return nil
}
