package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// Machine says where something was measured, and with which versions.
type Machine struct {
	Processor string            `json:"processor"`
	Cores     int               `json:"cores"`
	Memory    string            `json:"memory"`
	System    string            `json:"system"`
	Go        string            `json:"go"`
	Modules   map[string]string `json:"modules"`
	// Server holds the version of the server and the settings that decide.
	Server map[string]string `json:"server,omitempty"`
}

// measuredModules are the modules whose versions a report names.
var measuredModules = []string{
	"github.com/riverqueue/river",
	"github.com/dbos-inc/dbos-transact-golang",
	"github.com/cschleiden/go-workflows",
	"github.com/vgarvardt/gue/v5",
	"github.com/jackc/pgx/v5",
	"modernc.org/sqlite",
}

// serverSettings are the settings that decide over the figures.
var serverSettings = []string{
	"server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers",
	"max_wal_size", "commit_delay", "autovacuum", "max_connections",
}

// describeMachine gathers what it can; what this system does not tell is empty.
func describeMachine(ctx context.Context, db *database) (Machine, error) {
	m := Machine{
		Processor: fieldOf("/proc/cpuinfo", "model name"),
		Cores:     runtime.NumCPU(),
		Memory:    fieldOf("/proc/meminfo", "MemTotal"),
		System:    runtime.GOOS + "/" + runtime.GOARCH,
		Go:        runtime.Version(),
		Modules:   make(map[string]string),
	}
	if kilobytes, ok := strings.CutSuffix(m.Memory, " kB"); ok {
		if n, err := strconv.Atoi(kilobytes); err == nil {
			m.Memory = strconv.Itoa((n+1<<19)>>20) + " GiB"
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			for _, path := range measuredModules {
				if module.Path == path {
					m.Modules[path] = module.Version
				}
			}
		}
	}
	if db == nil {
		return m, nil
	}
	m.Server = make(map[string]string)
	for _, name := range serverSettings {
		var value string
		if err := db.admin.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return m, err
		}
		m.Server[name] = value
	}
	return m, nil
}

// fieldOf returns the value behind the first "name: value" of a file.
func fieldOf(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// revision names the commit of the working tree, where git knows one, and says
// so where files other than results have changed since.
func revision(ctx context.Context, results string) string {
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return ""
	}
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude)"+results).Output()
	if err != nil || len(changed) > 0 {
		return strings.TrimSpace(string(commit)) + ", changed"
	}
	return strings.TrimSpace(string(commit))
}
