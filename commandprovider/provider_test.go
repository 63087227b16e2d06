//go:build unix

package commandprovider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

func handoffOf() *supervisor.Handoff {
	return &supervisor.Handoff{
		Intent: supervisor.ActionIntent{
			ID: "print", TenantID: "default", InstanceID: "A/1", IdempotencyKey: "key 1",
			Input: json.RawMessage(`{"pages":3}`), Effect: supervisor.EffectExternalWrite, RetryClass: supervisor.IdempotencyNone,
		},
		Attempt: 2,
	}
}

func mustNew(t *testing.T, config Config) supervisor.Provider {
	t.Helper()
	provider, err := New(config)
	require.NoError(t, err)
	return provider
}

// shell is a config that runs a script.
func shell(script string, more ...string) Config {
	return Config{
		Command: append([]string{"/bin/sh", "-c", strings.NewReplacer("{", "{{", "}", "}}").Replace(script), "sh"}, more...),
		Env:     []string{"PATH=" + os.Getenv("PATH")},
	}
}

const (
	endReceipt   = "receipt"
	endNotSent   = "not sent"
	endRefused   = "refused"
	endAmbiguous = "ambiguous"
)

var (
	notSentType = fmt.Sprintf("%T", supervisor.NotSent(context.Canceled))
	refusedType = fmt.Sprintf("%T", supervisor.Refused(context.Canceled))
)

func endOf(err error) string {
	end := endAmbiguous
	if err == nil {
		return endReceipt
	}
	for ; err != nil; err = errors.Unwrap(err) {
		switch fmt.Sprintf("%T", err) {
		case refusedType:
			return endRefused
		case notSentType:
			end = endNotSent
		}
	}
	return end
}

func TestExits(t *testing.T) {
	exits := map[int]Meaning{1: Failed, 64: Refused, 75: Retryable, 3: Succeeded}
	succeeded := supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderSucceeded}}
	for _, c := range []struct {
		script string
		end    string
		want   supervisor.Receipt
	}{
		{"exit 0", endReceipt, succeeded},
		{"exit 3", endReceipt, succeeded},
		{"exit 1", endReceipt, supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderFailed, Reason: "exit_1"}}},
		{"exit 75", endReceipt, supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderRetryable, Reason: "exit_75"}}},
		{"exit 64", endRefused, supervisor.Receipt{}},
		{"exit 2", endAmbiguous, supervisor.Receipt{}},
		{"kill -TERM $$", endAmbiguous, supervisor.Receipt{}},
		{"kill -KILL $$", endAmbiguous, supervisor.Receipt{}},
	} {
		t.Run(c.script, func(t *testing.T) {
			config := shell(c.script)
			config.Exits = exits
			receipt, err := mustNew(t, config).Dispatch(t.Context(), handoffOf())
			require.Equal(t, c.end, endOf(err), err)
			require.Equal(t, c.want, receipt)
		})
	}
	config := shell("exit 0")
	config.Exits = map[int]Meaning{0: Ambiguous}
	_, err := mustNew(t, config).Dispatch(t.Context(), handoffOf())
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, endAmbiguous, endOf(err))
}

func TestOutput(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         string
	}{
		{"nothing", "true", ""},
		{"JSON", `echo ' { "n":1e400 } '`, ` { "n":1e400 } ` + "\n"},
		{"a number", `echo 42`, "42\n"},
		{"text", `echo '{'`, `{"text":"{\n"}`},
		{"bytes", `printf '\377\000'`, `{"base64":"/wA="}`},
		{"too much", `printf '%020d' 7`, `{"text":"0000000000","truncated":true}`},
		{"too much, cut within a character", `printf 'aaaaaaaaaé'`, `{"text":"aaaaaaaaa","truncated":true}`},
		{"only an error", `echo secret >&2`, ""},
		{"the input, unread", `exec <&-; echo 1`, "1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := shell(c.script)
			config.MaxOutput = 10
			if c.name == "JSON" {
				config.MaxOutput = 0
			}
			handoff := handoffOf()
			handoff.Intent.Input = json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
			receipt, err := mustNew(t, config).Dispatch(t.Context(), handoff)
			require.NoError(t, err)
			require.Equal(t, c.want, string(receipt.Output))
			require.NoError(t, receipt.Validate())
		})
	}
}

// A command that writes without end, and more than any buffer, is no danger.
func TestOutputWithoutEndIsDropped(t *testing.T) {
	config := shell(`head -c 50000000 /dev/zero; echo done >&2; exit 1`)
	config.Exits, config.StderrInReason = map[int]Meaning{1: Failed}, true
	receipt, err := mustNew(t, config).Dispatch(t.Context(), handoffOf())
	require.NoError(t, err)
	require.Equal(t, "exit_1: done", receipt.Reason)
}

func TestStderrInReason(t *testing.T) {
	config := shell(`printf '%05000d\000\377 the end \n' 0 >&2; exit 1`)
	config.Exits, config.StderrInReason = map[int]Meaning{1: Failed}, true
	receipt, err := mustNew(t, config).Dispatch(t.Context(), handoffOf())
	require.NoError(t, err)
	require.LessOrEqual(t, len(receipt.Reason), len("exit_1: ")+maxStderr)
	require.True(t, strings.HasSuffix(receipt.Reason, "000?? the end"), receipt.Reason)
}

func TestCommandGetsTheHandoff(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVICE", "x")
	config := shell(`printf '%s|' "$@" "$IDEMPOTENCY_KEY" "$HANDOFF_IDENTITY" "$HANDOFF_ATTEMPT" "$OWN" "$SECRET_OF_THE_SERVICE" "$(pwd)" "$(cat)"`,
		"--id={instance}/{intent}", "{{{key}}}", "$(date)", "{attempt}")
	config.Env = append(config.Env, "OWN=mine")
	config.Dir = "/"
	config.Prepare = func(h *supervisor.Handoff, c *exec.Cmd) error {
		c.Args = append(c.Args, "of "+h.Intent.ID)
		return nil
	}
	receipt, err := mustNew(t, config).Dispatch(t.Context(), handoffOf())
	require.NoError(t, err)
	var output struct{ Text string }
	require.NoError(t, json.Unmarshal(receipt.Output, &output))
	require.Equal(t, `--id=A/1/print|{key 1}|$(date)|2|of print|key 1|default/A%2F1/print/2|2|mine||/|{"pages":3}|`, output.Text)
}

func TestWhatNeverRuns(t *testing.T) {
	here := filepath.Join(t.TempDir(), "tool")
	require.NoError(t, os.WriteFile(here, []byte("#!/bin/sh\n"), 0o700))
	mark := filepath.Join(t.TempDir(), "ran")
	ran := shell(`touch ` + mark)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		config Config
		ctx    context.Context
		end    string
	}{
		{"a program that was removed", Config{Command: []string{here}}, t.Context(), endNotSent},
		{"a folder that is not there", Config{Command: ran.Command, Dir: here + "/gone"}, t.Context(), endNotSent},
		{"a context that has ended", ran, ended, endNotSent},
		{"an error of Prepare", Config{Command: ran.Command, Prepare: func(*supervisor.Handoff, *exec.Cmd) error { return boom }}, t.Context(), endNotSent},
		{"a refusal of Prepare", Config{Command: ran.Command, Prepare: func(*supervisor.Handoff, *exec.Cmd) error { return supervisor.Refused(boom) }}, t.Context(), endRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			provider := mustNew(t, c.config)
			_ = os.Remove(here)
			_, err := provider.Dispatch(c.ctx, handoffOf())
			require.Equal(t, c.end, endOf(err), err)
			require.NoFileExists(t, mark)
			require.NoError(t, os.WriteFile(here, []byte("#!/bin/sh\n"), 0o700))
		})
	}
}

// alive reports whether a process runs, and is no zombie.
func alive(pid int) bool {
	state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(state)), "Z") && syscall.Kill(pid, 0) == nil
}

// The end of the context takes the whole group, and proves nothing: neither does
// a status by which the command speaks of the killing.
func TestEndOfContextKillsTheGroup(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	for _, script := range []string{
		`sleep 60 & echo $$ $! >` + pids + `; wait`,
		`sleep 60 & echo $$ $! >` + pids + `; sleep 60; exit 0`,
	} {
		config := shell(script)
		config.Exits = map[int]Meaning{137: Failed, 1: Failed}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // ends with the pids, which the command writes
			for ctx.Err() == nil {
				if text, _ := os.ReadFile(pids); strings.HasSuffix(string(text), "\n") {
					cancel()
				}
				time.Sleep(time.Millisecond)
			}
		}()
		began := time.Now()
		_, err := mustNew(t, config).Dispatch(ctx, handoffOf())
		require.Equal(t, endAmbiguous, endOf(err), err)
		require.ErrorContains(t, err, "signal: killed")
		require.Less(t, time.Since(began), 30*time.Second)
		text, err := os.ReadFile(pids)
		require.NoError(t, err)
		for field := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(field)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return !alive(pid) }, 10*time.Second, 10*time.Millisecond)
		}
		require.NoError(t, os.Remove(pids))
	}
}

// A child that holds the output does not hold the dispatch, and is not killed:
// to leave one behind may be what the command is for.
func TestChildThatHoldsTheOutput(t *testing.T) {
	config := shell(`echo '{"n":1}'; sleep 60 & echo $! >&2; exit 0`)
	config.OutputWait = 100 * time.Millisecond
	child := filepath.Join(t.TempDir(), "child")
	config.Command[2] = strings.Replace(config.Command[2], ">&2", ">"+child, 1)
	receipt, err := mustNew(t, config).Dispatch(t.Context(), handoffOf())
	require.NoError(t, err)
	require.JSONEq(t, `{"text":"{\"n\":1}\n","truncated":true}`, string(receipt.Output))
	text, err := os.ReadFile(child)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.True(t, alive(pid))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

func TestAbilities(t *testing.T) {
	provider := mustNew(t, shell("true"))
	_, observes := provider.(supervisor.ReceiptObserver)
	_, reconciles := provider.(supervisor.Reconciler)
	_, cancels := provider.(supervisor.Canceller)
	require.Equal(t, []bool{false, false, false}, []bool{observes, reconciles, cancels})
}

func TestConfigsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Command = nil }, "Command names no program"},
		{func(c *Config) { c.Command = []string{""} }, "Command names no program"},
		{func(c *Config) { c.Command = []string{"no-such-program-here"} }, "Command[0]: exec: "},
		{func(c *Config) { c.Command = []string{"/bin/sh", "{teapot}"} }, `Command[1]: "{teapot}" has the unknown name {teapot}`},
		{func(c *Config) { c.Command = []string{"/bin/sh", "{"} }, `Command[1]: "{" has a '{' without its counterpart`},
		{func(c *Config) { c.Command = []string{"/bin/sh", "\x00"} }, "Command[1] holds a NUL character"},
		{func(c *Config) { c.Env = []string{"=x"} }, "Env[0] is no NAME=value"},
		{func(c *Config) { c.Env = []string{"A=b", "x"} }, "Env[1] is no NAME=value"},
		{func(c *Config) { c.Env = []string{"A=\x00"} }, "Env[0] holds a NUL character"},
		{func(c *Config) { c.Env = []string{"IDEMPOTENCY_KEY=x"} }, "Env[0] is IDEMPOTENCY_KEY, which the provider sets"},
		{func(c *Config) { c.Exits = map[int]Meaning{-1: Failed} }, "Exits has -1, must not be negative"},
		{func(c *Config) { c.Exits = map[int]Meaning{1: "fine"} }, `Exits[1] is "fine", which is no meaning`},
		{func(c *Config) { c.MaxOutput = -1 }, "MaxOutput is -1, must be between 1 and 1048576"},
		{func(c *Config) { c.MaxOutput = 1<<20 + 1 }, "MaxOutput is 1048577"},
		{func(c *Config) { c.OutputWait = -1 }, "OutputWait is -1ns, must not be negative"},
	} {
		config := Config{Command: []string{"/bin/sh"}}
		c.change(&config)
		_, err := New(config)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "commandprovider: config: ")
	}
}

func FuzzOutput(f *testing.F) {
	f.Add([]byte(`{"a":1}`), 10)
	f.Add([]byte("\xc3\xa9\x00"), 1)
	f.Fuzz(func(t *testing.T, text []byte, limit int) {
		limit = 1 + max(limit, -limit)&0xff
		output, trouble := &head{limit: limit}, &tail{limit: limit}
		for half := range 2 {
			part := text[half*len(text)/2 : (half+1)*len(text)/2]
			for _, to := range []io.Writer{output, trouble} {
				n, err := to.Write(part)
				require.NoError(t, err)
				require.Equal(t, len(part), n)
			}
		}
		require.Equal(t, string(text[:min(len(text), limit)]), string(output.kept))
		require.Equal(t, string(text[max(0, len(text)-limit):]), string(trouble.kept))
		p := &provider{config: Config{StderrInReason: true, Exits: map[int]Meaning{1: Failed}}}
		for status := range 2 {
			receipt, err := p.receipt(status, output, trouble, false)
			require.NoError(t, err)
			require.NoError(t, receipt.Validate())
		}
	})
}
