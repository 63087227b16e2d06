// Command queuectl looks at the instances in an SQLite file and at their intents,
// and acts on them: what a service of yours would offer its operators. It embeds
// the queue, so that it needs no server, and may run beside the service.
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

instances:
  list           the instances, one a line
  history id     what has happened to an instance
  explain id...  why instances are not running now
  cancel id...   ask instances to end; their drivers have the last word
  retry id...    run instances that failed or back off at once

intents, each named by the id of its instance and its own:
  intents                  the intents, one a line; -state awaiting_confirmation
                           shows those to confirm, -state unknown those to resolve
  confirm id intent...     allow intents that await confirmation
  reject id intent...      refuse them, with a -reason for their instance
  resolve answer id intent
                           say what became of an intent whose outcome is unknown:
                           succeeded (-output is what its instance gets), failed
                           (-reason likewise) or repeat, which sends it again

Who confirms, rejects or resolves is kept: -by, or else the user who calls. Flags
may stand anywhere before "--", behind which an id may begin with "-".

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
	intents supervisor.IntentFilter
	answer  answer
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
	status, state := "", ""
	flags.StringVar(&c.db, "db", "", "the SQLite `file`; required")
	flags.StringVar(&c.tenant, "tenant", supervisor.DefaultTenantID, "the tenant whose instances are meant; list and intents: empty means all")
	flags.StringVar(&c.filter.SpecID, "spec", "", "list: only instances of this spec")
	flags.StringVar(&status, "status", "", "list: only instances that are active, completed, failed or cancelled")
	flags.StringVar(&c.intents.InstanceID, "instance", "", "intents: only those of the instance with this id")
	flags.StringVar(&c.intents.CapabilityID, "capability", "", "intents: only those of the capability with this id, in all its versions")
	flags.StringVar(&state, "state", "", "intents: only those in this state, such as awaiting_confirmation or unknown")
	flags.StringVar(&c.answer.by, "by", "", "confirm, reject and resolve: who decides; empty means the user who calls")
	flags.StringVar(&c.answer.reason, "reason", "", "reject and resolve: why; required for reject")
	flags.StringVar(&c.answer.output, "output", "", "resolve succeeded: what the action has produced, in `JSON`")
	flags.IntVar(&c.answer.attempt, "attempt", 0, "resolve: only if this is the latest hand-off; 0 means whichever is")
	flags.BoolVar(&c.json, "json", false, "list, history, explain and intents: JSON, one value a line")
	words, err := parseWords(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil, err
	case err != nil:
		return nil, errUsage
	}
	c.filter.TenantID, c.filter.Status = c.tenant, supervisor.Status(status)
	c.intents.TenantID, c.intents.State = c.tenant, supervisor.ActionState(state)

	name := ""
	if len(words) > 0 {
		name, c.ids = words[0], words[1:]
	}
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
	case command.check != nil:
		problem = command.check(c)
	}
	if problem != "" {
		fmt.Fprintf(stderr, "queuectl: %s; -h tells more\n", problem)
		return nil, errUsage
	}
	c.command = command.run
	return c, nil
}

// parseWords returns what is no flag. Flags may stand anywhere before "--".
func parseWords(flags *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		rest := flags.Args()
		if parsed := len(args) - len(rest); len(rest) == 0 || parsed > 0 && args[parsed-1] == "--" {
			return append(words, rest...), nil
		}
		words, args = append(words, rest[0]), rest[1:]
	}
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
