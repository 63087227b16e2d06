//go:build unix

package commandprovider

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// inGroup gives the process a group of its own, and returns what kills it whole.
func inGroup(command *exec.Cmd) (kill func() error) {
	if command.SysProcAttr == nil {
		command.SysProcAttr = new(syscall.SysProcAttr)
	}
	command.SysProcAttr.Setpgid, command.SysProcAttr.Pgid = true, 0
	return func() error {
		// The group has the number of the process, which has not been waited for.
		err := syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}
