// Command orders supervises the orders of a make-believe shop: one workflow
// instance for each line of a file, from its validation to its shipping. It is
// the library at work in one small program; workflow.go is the place to begin.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

const usage = `usage: orders [flags] [file]
       orders -serve ADDRESS [-db file] [-faults]

Supervises the orders of a file, one JSON object a line, to their end. Without a
file it takes those shipped with it; "-" is the standard input.

  {"id":"A-1","customer":"Ada","country":"GB","cents":4990,"card":"busy","stock":"late"}

  id        names the order; required
  customer  any text
  country   CH, DE, GB, NL or US; an order to elsewhere fails
  cents     the price of the goods, at least 1
  card      busy: charging is tried three times; declined: the order fails
  stock     late: the order waits for a delivery; never: its customer cancels

An order that comes again, with the same content, is the same order: with -db for
good, without it until the queue in memory has forgotten it. With -db a run that
was interrupted or killed is gone on with by giving the same command again.

Cards are charged by a payment server: one within the program, whose ledger is
kept beside the file of -db, or that of -payments. At the end its ledger proves
that no order was charged twice and none was lost. With -faults it fails in every
way; kill the program as often as you like besides.

Progress and problems go to the standard error, the summary to the standard
output. The exit status is 0 where every order ended as its data foretells
and was paid once, 1 where one did not, where a line was refused or the run was interrupted, and
2 for a wrong call.

flags:
`

// Exit statuses.
const (
	exitFine  = 0
	exitWrong = 1
	exitUsage = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, loopback(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// options are what the command line says.
type options struct {
	workers, window int
	pace            time.Duration
	verbose, faults bool
	payments, serve string
	db, file        string
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.db, "db", "", "keep the orders in this SQLite `file`, which a later run goes on with")
	flags.IntVar(&o.workers, "workers", 16, "orders that are evaluated at one time")
	flags.IntVar(&o.window, "window", 10000, "orders on the way at one time; reading waits for room")
	flags.DurationVar(&o.pace, "pace", 0, "time from one step of an order to the next, such as 500ms")
	flags.BoolVar(&o.faults, "faults", false, "let the payment server fail in every way, most of the time; with -payments, expect it to")
	flags.StringVar(&o.payments, "payments", "", "charge cards by the payment server at this `URL` instead of one within the program")
	flags.StringVar(&o.serve, "serve", "", "be a payment server at this `address`, such as 127.0.0.1:7070, and nothing else")
	flags.BoolVar(&o.verbose, "v", false, "log everything that the supervisor does")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	problem := ""
	switch {
	case o.workers < 1:
		problem = fmt.Sprintf("-workers is %d, must be at least 1", o.workers)
	case o.window < 1:
		problem = fmt.Sprintf("-window is %d, must be at least 1", o.window)
	case o.pace < 0:
		problem = fmt.Sprintf("-pace is %v, must not be negative", o.pace)
	case o.serve != "" && (o.payments != "" || flags.NArg() > 0):
		problem = "-serve goes with -db and -faults alone"
	case o.payments != "" && !strings.HasPrefix(o.payments, "http://"):
		problem = fmt.Sprintf("-payments is %q, must begin with http://", o.payments)
	case flags.NArg() > 1:
		problem = fmt.Sprintf("one file at most, not %d", flags.NArg())
	}
	if problem != "" {
		fmt.Fprintf(stderr, "orders: %s; -h tells more\n", problem)
		return o, errors.New(problem)
	}
	o.file = flags.Arg(0)
	return o, nil
}

// open returns the input.
func (o *options) open(stdin io.Reader) (io.ReadCloser, error) {
	switch o.file {
	case "":
		return io.NopCloser(bytes.NewReader(sample)), nil
	case "-":
		return io.NopCloser(stdin), nil
	}
	return os.Open(o.file)
}

// run is the whole program. It ends early, in good order, when ctx does.
func run(ctx context.Context, over network, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	options, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitFine
	case err != nil:
		return exitUsage
	}
	if options.serve != "" {
		if err := serve(ctx, &options, stdout); err != nil {
			fmt.Fprintf(stderr, "orders: %v\n", err)
			return exitWrong
		}
		return exitFine
	}
	input, err := options.open(stdin)
	if err != nil {
		fmt.Fprintf(stderr, "orders: %v\n", err)
		return exitUsage
	}
	defer input.Close()

	report := newReport(stdout, stderr)
	book := newBook(options.window)
	startedAt := time.Now()
	proof, err := supervise(ctx, over, &options, input, book, report)
	if err != nil {
		report.problemf("%v", err)
	}
	counts := book.snapshot()
	fine := err == nil && counts.fine() && proof.fine()
	report.summary(&counts, proof, time.Since(startedAt), fine)
	if !fine {
		return exitWrong
	}
	return exitFine
}

// serve is the payment server alone. It says where it is once it can be reached.
func serve(ctx context.Context, options *options, stdout io.Writer) error {
	path := ""
	if options.db != "" {
		path = ledgerOf(options.db)
	}
	ledger, err := openLedger(ctx, path)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", options.serve)
	if err != nil {
		return errors.Join(err, ledger.close())
	}
	fmt.Fprintf(stdout, "http://%s\n", listener.Addr())
	stop := servePayments(context.WithoutCancel(ctx), listener, ledger, options.faults)
	<-ctx.Done()
	return stop()
}

// service is what a program with workflows and effects has in its main function:
// a supervisor and a dispatcher of one queue.
type service struct {
	loop       *supervisor.Supervisor[shop]
	dispatcher *supervisor.Dispatcher
}

func newService(store *store, bank *bank, options *options, book *book, log io.Writer) (*service, error) {
	drivers := supervisor.NewDriverRegistry[shop]()
	if err := drivers.Register(supervisor.NewDriver(specID, revision, evaluate)); err != nil {
		return nil, err
	}
	providers, err := bank.providers(options.faults)
	if err != nil {
		return nil, err
	}
	settings := supervisor.Settings{
		Concurrency: options.workers,
		// What a killed process held is taken up again when its lease has ended.
		LeaseDuration: 5 * time.Second,
		RequeueDelay:  time.Second,
		Observer:      &supervisor.Observer{Commit: book.committed, IntentStored: book.settled},
	}
	if options.verbose {
		settings.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	newShop := func(context.Context) (shop, error) { return openShop(options.pace), nil }
	loop, err := supervisor.New(store.queue, drivers, settings, newShop)
	if err != nil {
		return nil, err
	}
	dispatcher, err := supervisor.NewDispatcher(store.queue, providers, settings)
	return &service{loop, dispatcher}, err
}

// supervise brings the orders of the input to their end. The proof is nil where
// there is none to be had, and then there is an error.
func supervise(ctx context.Context, over network, options *options, input io.Reader, book *book, report *report) (_ *proof, err error) {
	store, err := openStore(ctx, options.db)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.close()) }()
	bank, err := openBank(ctx, options, over)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bank.close()) }()
	service, err := newService(store, bank, options, book, report)
	if err != nil {
		return nil, err
	}
	desk := &desk{queue: store.queue, forget: store.forget, book: book, report: report}
	if err := desk.adopt(ctx); err != nil {
		return nil, err
	}
	desk.startedAt = time.Now()

	running, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	var loopErr, dispatchErr error
	// All end with running; should a loop ever end by itself, so does the rest.
	beside.Go(func() {
		defer stop()
		loopErr = service.loop.Run(running)
	})
	beside.Go(func() {
		defer stop()
		dispatchErr = service.dispatcher.Run(running)
	})
	beside.Go(func() { report.follow(running, book) })

	err = desk.serve(running, input)
	stop()
	beside.Wait()
	if ctx.Err() != nil {
		err = errors.New("interrupted" + store.afterInterrupt)
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	proof, proofErr := bank.prove(patience, book.dues())
	return proof, errors.Join(loopErr, dispatchErr, err, proofErr)
}
