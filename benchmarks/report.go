package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// report returns the results as Markdown. Parts that have not run are left out.
func (r *Results) report() string {
	var b strings.Builder
	b.WriteString(`# Measurements

Written by [the program one folder up](..), which says what is measured and how. Figures are the median of the rounds (lowest–highest).
Ratios are of pairs: each round of a case follows a round of its reference at once, so that what disturbs the machine for
longer disturbs both. The last section says how much other processes used of it.
`)
	for _, section := range []func(*Results, *strings.Builder){
		postgresSection, latencySection, growthSection, sustainedSection, steadySection, sqliteSection, memorySection, settingSection,
	} {
		section(r, &b)
	}
	return b.String()
}

// charts returns the files of the charts.
func (r *Results) charts() map[string]string {
	files := make(map[string]string)
	for part, title := range map[string]string{
		partThroughput: "Durable units of work per second, PostgreSQL",
		partSQLite:     "Durable units of work per second, SQLite",
	} {
		p := r.Parts[part]
		if p == nil {
			continue
		}
		var bars []bar
		for _, name := range p.cases() {
			bars = append(bars, bar{
				Label:   name,
				summary: p.summary(name, perSecond),
				Ours:    strings.HasPrefix(name, "pgqueue") || strings.HasPrefix(name, "sqlitequeue"),
				Limit:   strings.HasPrefix(name, "by hand"),
			})
		}
		files[part+".svg"] = barChart(title, fmt.Sprintf("median of the rounds, the line is their range; %d cores shared by client and server", p.Machine.Cores), bars)
	}
	return files
}

// costTable is the table of a group of contenders.
func costTable(p *Part, server bool) *table {
	header := []string{"case", "units/s", "÷ reference", "CPU s: client"}
	if server {
		header = append(header, "+ server", "sum", "sum ÷ reference", "WAL B/unit")
	}
	t := newTable(append(header, "allocs/unit")...)
	for _, name := range p.cases() {
		cells := []string{name, ranged(p.summary(name, perSecond)), ranged(p.summary(name, ratio)), middle(p.summary(name, clientSeconds))}
		if server {
			sum, relative := none, none
			if cpu, ok := p.cpu(name); ok {
				sum = figure(cpu)
				if reference, ok := p.cpu(p.cases()[0]); ok {
					relative = figure(cpu / reference)
				}
			}
			cells = append(cells, middle(p.summary(name, serverSeconds)), sum, relative, middle(p.summary(name, walBytes)))
		}
		t.add(append(cells, middle(p.summary(name, allocations)))...)
	}
	return t
}

// cpu returns the seconds that client and server together take for a thousand
// units, where both are known.
func (p *Part) cpu(name string) (seconds float64, ok bool) {
	client, server := p.summary(name, clientSeconds), p.summary(name, serverSeconds)
	return client.Median + server.Median, client.Count > 0 && server.Count > 0
}

// contenderTable says what the cases are.
func contenderTable(p *Part, g group) *table {
	t := &table{header: []string{"case", "configuration", "one unit", "does not have"}}
	measured := p.cases()
	for _, c := range g.all() {
		if slices.Contains(measured, c.name) {
			t.add(c.name, c.about, c.unit, c.lacks)
		}
	}
	t.text = true
	return t
}

func postgresSection(r *Results, b *strings.Builder) {
	p := r.Parts[partThroughput]
	if p == nil {
		return
	}
	fmt.Fprintf(b, `
## Throughput on PostgreSQL
%s
![throughput on PostgreSQL](%s.svg)

A unit is claim, a step that does nothing, and a commit of its result; of each peer the nearest that it has. The reference is
the loop by hand. CPU is in seconds per 1,000 units.

%s
%s`, p.warning(), partThroughput, costTable(p, true), contenderTable(p, postgresGroup()))
}

func sqliteSection(r *Results, b *strings.Builder) {
	p := r.Parts[partSQLite]
	if p == nil {
		return
	}
	fmt.Fprintf(b, `
## Throughput on SQLite
%s
![throughput on SQLite](%s.svg)

%s
%s
go-workflows has no backend for PostgreSQL in this version.
`, p.warning(), partSQLite, costTable(p, false), contenderTable(p, sqliteGroup()))
}

func memorySection(r *Results, b *strings.Builder) {
	p := r.Parts[partMemory]
	if p == nil {
		return
	}
	t := newTable("case", "ns per unit", "÷ reference", "CPU ns per unit", "allocs/unit")
	for _, name := range p.cases() {
		var nanos, cpu []float64
		for _, v := range p.values(name, perSecond) {
			nanos = append(nanos, 1e9/v)
		}
		for _, v := range p.values(name, clientSeconds) {
			cpu = append(cpu, v*1e6)
		}
		t.add(name, ranged(summarize(nanos)), ranged(p.summary(name, ratio)), middle(summarize(cpu)), middle(p.summary(name, allocations)))
	}
	fmt.Fprintf(b, "\n## In memory\n%s\n%s\n%s", p.warning(), t, contenderTable(p, memoryGroup()))
}

func latencySection(r *Results, b *strings.Builder) {
	p := r.Parts[partLatency]
	if p == nil {
		return
	}
	t := newTable("case", "p50 ms", "÷ reference", "p99 ms", "max ms", "starts per round")
	about := &table{header: []string{"case", "configuration", "reference"}, text: true}
	measured := p.cases()
	for _, c := range latencyCases() {
		if !slices.Contains(measured, c.name) {
			continue
		}
		relative := none
		if reference := p.summary(c.reference, p50); reference.Count > 0 {
			relative = figure(p.summary(c.name, p50).Median / reference.Median)
		}
		t.add(c.name, ranged(p.summary(c.name, p50)), relative, ranged(p.summary(c.name, p99)),
			figure(p.summary(c.name, highest).Highest), middle(p.summary(c.name, samples)))
		about.add(c.name, c.about, c.reference)
	}
	fmt.Fprintf(b, `
## Start latency of an idle system
%s
From before the call that starts something to the first line of what was started, %d starts a second at random moments.
p50 and p99 are of a round; the table has their median and range.

%s
%s`, p.warning(), startsPerSecond, t, about)
}

func growthSection(r *Results, b *strings.Builder) {
	p := r.Parts[partGrowth]
	if p == nil {
		return
	}
	t := newTable("beside", "by hand, µs", "pgqueue, µs", "pgqueue ÷ by hand, throughput", "CPU s per 1,000: by hand", "pgqueue")
	var held strings.Builder
	for _, name := range p.cases() {
		size, ours := strings.CutPrefix(name, growthPgqueue+": ")
		if !ours {
			continue
		}
		hand := growthHand + ": " + size
		micros := func(name string) string {
			var list []float64
			for _, v := range p.values(name, perSecond) {
				list = append(list, 1e6/v)
			}
			return ranged(summarize(list))
		}
		t.add(size, micros(hand), micros(name), ranged(p.summary(name, ratio)),
			figure(p.summary(hand, clientSeconds).Median+p.summary(hand, serverSeconds).Median),
			figure(p.summary(name, clientSeconds).Median+p.summary(name, serverSeconds).Median))
		if strings.Contains(size, "held") {
			fmt.Fprintf(&held, "\nWith a snapshot held it grows with each round, in µs: by hand %s; pgqueue %s.\n", series(p, hand), series(p, name))
		}
	}
	fmt.Fprintf(b, `
## Beside waiting instances
%s
Wall time per transition (a claim each) of some thousand instances that are due again and again, beside others that wait. By
hand there are no tenants; the loop that moves due times.

%s%s`, p.warning(), t, held.String())
}

// series lists the microseconds per unit of each round.
func series(p *Part, name string) string {
	var list []string
	for _, v := range p.values(name, perSecond) {
		list = append(list, figure(1e6/v))
	}
	return strings.Join(list, ", ")
}

func sustainedSection(r *Results, b *strings.Builder) {
	p := r.Parts[partSustained]
	if p == nil {
		return
	}
	header := []string{"transitions/s"}
	longest := 0
	for _, name := range p.cases() {
		longest = max(longest, len(p.values(name, perSecond)))
	}
	for n := range longest {
		header = append(header, fmt.Sprintf("window %d", n+1))
	}
	t := newTable(append(header, "last ÷ first")...)
	for _, name := range p.cases() {
		values := p.values(name, perSecond)
		cells := []string{name}
		for n := range longest {
			if n < len(values) {
				cells = append(cells, figure(values[n]))
			} else {
				cells = append(cells, "")
			}
		}
		t.add(append(cells, figure(values[len(values)-1]/values[0]))...)
	}
	fmt.Fprintf(b, "\n## Sustained\n\n%s instances that never complete, no Prune; %s.\n\n%s", grouped(sustainedInstances), p.Settings, t)
}

func steadySection(r *Results, b *strings.Builder) {
	p := r.Parts[partSteady]
	if p == nil {
		return
	}
	t := newTable("table", "rows before", "MiB table + indexes", "rows after", "MiB table + indexes", "rows after a last Prune", "MiB table + indexes")
	for _, name := range p.cases() {
		relation, ok := strings.CutPrefix(name, "before: ")
		if !ok {
			continue
		}
		if p.summary(name, tableRows).Median+p.summary("after: "+relation, tableRows).Median == 0 {
			continue
		}
		cells := []string{relation}
		for _, when := range []string{"before", "after", "pruned"} {
			at := when + ": " + relation
			const mib = 1 << 20
			cells = append(cells, grouped(p.summary(at, tableRows).Median),
				fmt.Sprintf("%.1f + %.1f", p.summary(at, tableBytes).Median/mib, p.summary(at, indexBytes).Median/mib))
		}
		t.add(cells...)
	}
	fmt.Fprintf(b, `
## Steady state
%s
%s transitions over %s instances that never complete, kept claims, Prune each %v of what is older than that: %s transitions/s.
Space that Prune frees inside a table is used again, not given back.

%s`, p.warning(), grouped(steadyUnits*p.scale()), grouped(steadyInstances), steadyPrune, middle(p.summary("transitions", perSecond)), t)
}

// scale is the scale of the measurements, 1 unless set.
func (p *Part) scale() float64 {
	if p.Scale == 0 {
		return 1
	}
	return p.Scale
}

func settingSection(r *Results, b *strings.Builder) {
	b.WriteString("\n## Setting\n\n")
	t := &table{header: []string{"part", "ran", "took", "revision", "rounds", "settings", "others' share of the machine: median, highest"}, text: true}
	for _, name := range slices.Sorted(maps.Keys(r.Parts)) {
		p := r.Parts[name]
		t.add(name, p.Began.UTC().Format("2006-01-02 15:04"), fmt.Sprintf("%.0f s", p.Seconds), p.Revision, p.rounds(), p.Settings, p.disturbance())
	}
	b.WriteString(t.String())
	var described []string
	for _, name := range slices.Sorted(maps.Keys(r.Parts)) {
		text := r.Parts[name].Machine.String()
		if !slices.Contains(described, text) {
			described = append(described, text)
		}
	}
	b.WriteString("\n" + strings.Join(described, "\n"))
}

// String describes a machine in lines of a list.
func (m Machine) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "- Machine: %d cores, %s, %s, %s, %s. Client and server share it.\n", m.Cores, m.Processor, m.Memory, m.System, m.Go)
	list := func(title string, of map[string]string) {
		if len(of) == 0 {
			return
		}
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(of)) {
			parts = append(parts, key+" "+of[key])
		}
		fmt.Fprintf(&b, "- %s: %s.\n", title, strings.Join(parts, ", "))
	}
	list("Modules", m.Modules)
	list("Server", m.Server)
	return b.String()
}

// loud is the share of the machine that others may use before figures of wall
// time say little.
const loud = 0.2

// warning is a paragraph for a part that others disturbed much, else nothing.
func (p *Part) warning() string {
	share := p.shares().Median
	if share <= loud {
		return ""
	}
	return fmt.Sprintf(`
> Other processes used %.0f %% of the machine meanwhile (median of the rounds). Throughputs and latencies are too bad by far, and
> more so where much is done by turns between processes; ratios are rough. Measure again on a machine that does nothing else.
`, share*100)
}

// disturbance says how much of the machine others used.
func (p *Part) disturbance() string {
	s := p.shares()
	if s.Count == 0 {
		return none
	}
	return fmt.Sprintf("%.0f %%, %.0f %%", s.Median*100, s.Highest*100)
}

// shares sums up the shares of the machine that others used.
func (p *Part) shares() summary {
	var shares []float64
	for _, m := range p.Measurements {
		if share, ok := m.Values[others]; ok {
			shares = append(shares, share)
		}
	}
	return summarize(shares)
}

// rounds says how many rounds the cases have.
func (p *Part) rounds() string {
	counts := make(map[string]int)
	for _, m := range p.Measurements {
		counts[m.Case] = max(counts[m.Case], m.Round+1)
	}
	if len(counts) == 0 {
		return "0"
	}
	values := slices.Sorted(maps.Values(counts))
	if least, most := values[0], values[len(values)-1]; least != most {
		return fmt.Sprintf("%d–%d", least, most)
	}
	return fmt.Sprint(values[0])
}
