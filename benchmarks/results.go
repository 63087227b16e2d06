package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Results is all that was measured, as kept in results.json: each part as it ran last.
type Results struct {
	Parts map[string]*Part `json:"parts"`
}

// Part is one part of the measurements, made in one run of the program.
type Part struct {
	Began        time.Time     `json:"began"`
	Seconds      float64       `json:"seconds"`
	Revision     string        `json:"revision"`
	Settings     string        `json:"settings"`
	Scale        float64       `json:"scale"`
	Machine      Machine       `json:"machine"`
	Measurements []Measurement `json:"measurements"`
}

// Measurement is one case in one round. What was not measured has no value.
type Measurement struct {
	Case   string             `json:"case"`
	Round  int                `json:"round"`
	Values map[string]float64 `json:"values"`
}

// Names of values.
const (
	perSecond     = "units_per_second"
	ratio         = "ratio_to_reference"
	clientSeconds = "client_seconds_per_1000"
	serverSeconds = "server_seconds_per_1000"
	walBytes      = "wal_bytes_per_unit"
	allocations   = "allocations_per_unit"
	p50           = "p50_ms"
	p99           = "p99_ms"
	highest       = "max_ms"
	samples       = "samples"
)

// cases returns the names of the cases in the order in which they came first.
func (p *Part) cases() []string {
	var names []string
	seen := make(map[string]bool)
	for _, m := range p.Measurements {
		if !seen[m.Case] {
			seen[m.Case] = true
			names = append(names, m.Case)
		}
	}
	return names
}

// values returns one value of a case from all rounds that have it.
func (p *Part) values(name, value string) []float64 {
	var list []float64
	for _, m := range p.Measurements {
		if m.Case != name {
			continue
		}
		if v, ok := m.Values[value]; ok {
			list = append(list, v)
		}
	}
	return list
}

func (p *Part) summary(name, value string) summary { return summarize(p.values(name, value)) }

const resultsFile = "results.json"

// readResults reads the results in a folder; none where there are none yet.
func readResults(folder string) (*Results, error) {
	results := &Results{Parts: make(map[string]*Part)}
	text, err := os.ReadFile(filepath.Join(folder, resultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return results, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, results); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(folder, resultsFile), err)
	}
	if results.Parts == nil {
		results.Parts = make(map[string]*Part)
	}
	return results, nil
}

// write replaces the results, the report and the charts in a folder.
func (r *Results) write(folder string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	files := r.charts()
	files[resultsFile] = string(text) + "\n"
	files["README.md"] = r.report()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
