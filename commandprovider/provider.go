package commandprovider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/internal/providerkit"
)

// What a command finds in its environment.
const (
	envKey      = "IDEMPOTENCY_KEY"
	envIdentity = "HANDOFF_IDENTITY"
	envAttempt  = "HANDOFF_ATTEMPT"
)

// provider is a Provider and nothing else. It never changes after New.
type provider struct {
	config    Config
	path      string
	arguments []providerkit.Template
}

// Dispatch runs the command. It returns when the process has ended, or soon after
// ctx has, when it was killed.
func (p *provider) Dispatch(ctx context.Context, handoff *supervisor.Handoff) (supervisor.Receipt, error) {
	output, trouble := &head{limit: p.config.MaxOutput}, &tail{limit: maxStderr}
	command := exec.CommandContext(ctx, p.path)
	// Whether it was killed is not to be seen from its status: a process may
	// have caught the end of another one, and a shell says of it what it likes.
	var killed atomic.Bool
	command.Args[0] = p.config.Command[0]
	for n := range p.arguments {
		argument, err := p.arguments[n].Expand(handoff, asItIs)
		if err != nil {
			return supervisor.Receipt{}, supervisor.NotSent(fmt.Errorf("commandprovider: Command[%d]: %w", n+1, err))
		}
		command.Args = append(command.Args, argument)
	}
	command.Env = append(append(make([]string, 0, len(p.config.Env)+3), p.config.Env...),
		envKey+"="+handoff.Intent.IdempotencyKey,
		envIdentity+"="+handoff.Identity(),
		envAttempt+"="+strconv.Itoa(handoff.Attempt))
	command.Dir = p.config.Dir
	command.WaitDelay = p.config.OutputWait
	if p.config.Prepare != nil {
		if err := p.config.Prepare(handoff, command); err != nil {
			return supervisor.Receipt{}, supervisor.NotSent(fmt.Errorf("commandprovider: prepare: %w", err))
		}
	}
	kill := inGroup(command)
	command.Cancel = func() error {
		err := kill()
		killed.Store(!errors.Is(err, os.ErrProcessDone))
		return err
	}
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(inputOf(handoff)), output, trouble
	if err := command.Start(); err != nil {
		return supervisor.Receipt{}, supervisor.NotSent(fmt.Errorf("commandprovider: %w", err))
	}
	err := command.Wait()
	// A status of -1 is the end by a signal. Other errors of Wait are about the
	// streams: a command need not read its input, and others may hold its output.
	status := command.ProcessState.ExitCode()
	if killed.Load() || status < 0 {
		return supervisor.Receipt{}, fmt.Errorf("commandprovider: %w", err)
	}
	return p.receipt(status, output, trouble, err != nil)
}

// receipt says what an exit status means. incomplete says that others may go on
// writing to the output.
func (p *provider) receipt(status int, output *head, trouble *tail, incomplete bool) (supervisor.Receipt, error) {
	meaning, listed := p.config.Exits[status]
	if !listed {
		meaning = Ambiguous
		if status == 0 {
			meaning = Succeeded
		}
	}
	report := supervisor.Report{Reason: "exit_" + strconv.Itoa(status)}
	if p.config.StderrInReason && len(trouble.kept) > 0 {
		report.Reason += ": " + strings.TrimSpace(providerkit.Text(trouble.kept, maxStderr))
	}
	switch meaning {
	case Succeeded:
		cut := output.cut || incomplete && status == 0
		report = supervisor.Report{
			Status: supervisor.ProviderSucceeded,
			Output: providerkit.Output(output.kept, true, "", cut),
		}
	case Failed:
		report.Status = supervisor.ProviderFailed
	case Retryable:
		report.Status = supervisor.ProviderRetryable
	case Refused:
		return supervisor.Receipt{}, supervisor.Refused(&ExitError{Status: status})
	default:
		return supervisor.Receipt{}, &ExitError{Status: status}
	}
	return supervisor.Receipt{Report: report}, nil
}

// ExitError is an end of a command that is no receipt. It holds nothing of what
// the command wrote.
type ExitError struct{ Status int }

func (e *ExitError) Error() string { return fmt.Sprintf("commandprovider: exit status %d", e.Status) }

func inputOf(handoff *supervisor.Handoff) []byte {
	if len(handoff.Intent.Input) == 0 {
		return []byte("null")
	}
	return handoff.Intent.Input
}

func asItIs(text string) (string, error) { return text, nil }

// head keeps the first bytes that are written to it and takes the rest, so that
// the command never waits for a reader.
type head struct {
	limit int
	kept  []byte
	cut   bool
}

// Write is that of [io.Writer].
func (h *head) Write(text []byte) (int, error) {
	fits := min(len(text), h.limit-len(h.kept))
	h.kept = append(h.kept, text[:fits]...)
	h.cut = h.cut || fits < len(text)
	return len(text), nil
}

// tail keeps the last bytes.
type tail struct {
	limit int
	kept  []byte
}

// Write is that of [io.Writer].
func (t *tail) Write(text []byte) (int, error) {
	written := len(text)
	if len(text) > t.limit {
		text = text[len(text)-t.limit:]
	}
	if beyond := len(t.kept) + len(text) - t.limit; beyond > 0 {
		t.kept = t.kept[:copy(t.kept, t.kept[beyond:])]
	}
	t.kept = append(t.kept, text...)
	return written, nil
}
