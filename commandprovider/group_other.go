//go:build !unix

package commandprovider

import "os/exec"

// inGroup leaves it at the process alone: this system has no process groups.
func inGroup(command *exec.Cmd) (kill func() error) {
	return func() error { return command.Process.Kill() }
}
