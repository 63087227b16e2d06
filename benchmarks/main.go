package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Names of the parts.
const (
	partThroughput = "throughput"
	partLatency    = "latency"
	partGrowth     = "growth"
	partSustained  = "sustained"
	partSteady     = "steady"
	partSQLite     = "sqlite"
	partMemory     = "memory"
)

// allParts run in this order.
var allParts = []string{partThroughput, partLatency, partGrowth, partSteady, partSustained, partSQLite, partMemory}

// dsnVariable names the database where no flag does.
const dsnVariable = "SUPERVISOR_TEST_POSTGRES"

// bench is one run of this program.
type bench struct {
	dsn              string
	parts            []string
	rounds           int
	scale            float64
	cases            *regexp.Regexp
	starts           int
	quiet            float64
	times            int
	more, render     bool
	waiting, tenants []int
	lasting, window  time.Duration
	folder           string
	log              io.Writer

	db      *database
	results *Results
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if order := os.Getenv(starterVariable); order != "" {
		err = runStarter(ctx, order, os.Stdin, os.Stdout)
	} else {
		err = command(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

// command is the program.
func command(ctx context.Context, args []string, out io.Writer) error {
	b, err := parse(args, out)
	if err != nil {
		return err
	}
	return b.run(ctx)
}

// parse reads the flags.
func parse(args []string, out io.Writer) (*bench, error) {
	b := &bench{log: out}
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	flags.SetOutput(out)
	only := flags.String("only", "", "parts to run, of "+strings.Join(allParts, ", ")+"; none: all but sustained, which needs -lasting, too")
	cases := flags.String("cases", "", "regular expression of the cases to run")
	waiting := flags.String("waiting", "1000,100000,1000000", "how many instances wait in the cases of growth")
	tenants := flags.String("tenants", "1,1000", "how many tenants have due work in the cases of growth")
	flags.StringVar(&b.dsn, "dsn", os.Getenv(dsnVariable), "database of PostgreSQL; default: the environment's "+dsnVariable)
	flags.IntVar(&b.rounds, "rounds", 5, "rounds of each case")
	flags.Float64Var(&b.scale, "scale", 1, "factor of the units of a round")
	flags.IntVar(&b.starts, "starts", 100, "starts of a round of latency at scale 1")
	flags.Float64Var(&b.quiet, "quiet", 0.1, "share of the machine that other processes may use during a round; more, and it is repeated")
	flags.IntVar(&b.times, "times", 3, "how often a round is made at most; the least disturbed counts")
	flags.BoolVar(&b.more, "append", false, "add rounds to those in the results, instead of replacing them")
	flags.BoolVar(&b.render, "render", false, "measure nothing, write the report anew from the results")
	flags.DurationVar(&b.lasting, "lasting", 0, "how long each case of sustained lasts")
	flags.DurationVar(&b.window, "window", 30*time.Second, "window of sustained")
	flags.StringVar(&b.folder, "out", "results", "folder of the results; parts that are not run keep theirs")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	var errs []error
	check := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var err error
	b.cases, err = regexp.Compile(*cases)
	check(err)
	b.waiting, err = numbers("waiting", *waiting)
	check(err)
	b.tenants, err = numbers("tenants", *tenants)
	check(err)
	if !b.render {
		b.parts, err = b.choose(*only)
		check(err)
	}
	if b.rounds < 1 {
		check(fmt.Errorf("rounds is %d, must be positive", b.rounds))
	}
	if b.scale <= 0 {
		check(fmt.Errorf("scale is %v, must be positive", b.scale))
	}
	if b.starts < 1 {
		check(fmt.Errorf("starts is %d, must be positive", b.starts))
	}
	if b.window <= 0 {
		check(fmt.Errorf("window is %v, must be positive", b.window))
	}
	if flags.NArg() > 0 {
		check(fmt.Errorf("%q is no flag", flags.Arg(0)))
	}
	return b, errors.Join(errs...)
}

// numbers reads positive numbers between commas, in rising order.
func numbers(name, text string) ([]int, error) {
	var list []int
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s holds %q, which is no positive number", name, field)
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return list, nil
}

// choose returns the parts to run.
func (b *bench) choose(only string) ([]string, error) {
	var chosen []string
	if only == "" {
		for _, part := range allParts {
			if part != partSustained || b.lasting > 0 {
				chosen = append(chosen, part)
			}
		}
	} else {
		for part := range strings.SplitSeq(only, ",") {
			if !slices.Contains(allParts, part) {
				return nil, fmt.Errorf("%q is no part; there are: %s", part, strings.Join(allParts, ", "))
			}
			if part == partSustained && b.lasting <= 0 {
				return nil, errors.New("sustained needs -lasting, for example 5m")
			}
			chosen = append(chosen, part)
		}
	}
	if b.dsn == "" && slices.ContainsFunc(chosen, needsDatabase) {
		return nil, errors.New("dsn is empty: name a database of PostgreSQL, or choose parts that need none: -only sqlite,memory")
	}
	return chosen, nil
}

func needsDatabase(part string) bool { return part != partSQLite && part != partMemory }

// run measures part after part and writes the results after each, so that one
// that is broken off loses itself only.
func (b *bench) run(ctx context.Context) error {
	var err error
	if b.results, err = readResults(b.folder); err != nil {
		return err
	}
	if b.render {
		return b.results.write(b.folder)
	}
	if slices.ContainsFunc(b.parts, needsDatabase) {
		if b.db, err = openDatabase(ctx, b.dsn); err != nil {
			return err
		}
		defer b.db.close()
	}
	for _, name := range b.parts {
		if err := b.runPart(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *bench) runPart(ctx context.Context, name string) error {
	db := b.db
	if !needsDatabase(name) {
		db = nil
	}
	machine, err := describeMachine(ctx, db)
	if err != nil {
		return err
	}
	part := &Part{Began: time.Now(), Revision: revision(ctx, b.folder), Settings: b.settings(name), Scale: b.scale, Machine: machine}
	before := b.results.Parts[name]
	b.results.Parts[name] = part
	switch name {
	case partThroughput:
		err = b.throughput(ctx, name, db, postgresGroup())
	case partSQLite:
		err = b.throughput(ctx, name, db, sqliteGroup())
	case partMemory:
		err = b.throughput(ctx, name, db, memoryGroup())
	case partLatency:
		err = b.latency(ctx)
	case partGrowth:
		err = b.growth(ctx)
	case partSustained:
		err = b.sustained(ctx)
	case partSteady:
		err = b.steady(ctx)
	}
	if err != nil {
		b.results.Parts[name] = before
		return err
	}
	part.Seconds = time.Since(part.Began).Seconds()
	switch {
	case before == nil:
	case b.more:
		part.extend(before)
	case b.cases.String() != "":
		part.merge(before)
	}
	return b.results.write(b.folder)
}

// merge keeps the measurements of cases that have not run again.
func (p *Part) merge(before *Part) {
	again := p.cases()
	var kept []Measurement
	for _, m := range before.Measurements {
		if !slices.Contains(again, m.Case) {
			kept = append(kept, m)
		}
	}
	p.Measurements = append(kept, p.Measurements...)
}

// extend puts the measurements of an earlier run before those of this one, whose
// rounds are counted on.
func (p *Part) extend(before *Part) {
	next := make(map[string]int)
	for _, m := range before.Measurements {
		next[m.Case] = max(next[m.Case], m.Round+1)
	}
	for n := range p.Measurements {
		p.Measurements[n].Round += next[p.Measurements[n].Case]
	}
	p.Measurements = append(slices.Clone(before.Measurements), p.Measurements...)
	p.Began = before.Began
	p.Seconds += before.Seconds
	if !strings.Contains(before.Revision, p.Revision) {
		p.Revision = before.Revision + ", " + p.Revision
	} else {
		p.Revision = before.Revision
	}
}

// settings describes what of the flags a part depends on.
func (b *bench) settings(part string) string {
	text := fmt.Sprintf("scale %g", b.scale)
	if part == partSustained {
		text = fmt.Sprintf("%v in windows of %v", b.lasting, b.window)
	}
	return text
}

// wanted reports whether a case is to run.
func (b *bench) wanted(name string) bool { return b.cases.MatchString(name) }

// scaled returns a number of units at the scale of the run.
func (b *bench) scaled(units int) int {
	return max(int(float64(units)*b.scale), transitionsPerInstance)
}

// record keeps a measurement and shows it.
func (b *bench) record(part string, m Measurement) {
	p := b.results.Parts[part]
	p.Measurements = append(p.Measurements, m)
	fmt.Fprintf(b.log, "%-10s %-44s %2d", part, m.Case, m.Round+1)
	for _, value := range []string{perSecond, ratio, clientSeconds, serverSeconds, walBytes, allocations, others, p50, p99, highest, tableRows, tableBytes, indexBytes} {
		if v, ok := m.Values[value]; ok {
			fmt.Fprintf(b.log, "  %s %s", value, figure(v))
		}
	}
	fmt.Fprintln(b.log)
}
