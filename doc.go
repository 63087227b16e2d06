// Package supervisor supervises long-running workflow instances: it claims due
// instances from a queue under a fenced lease, evaluates them concurrently with
// their drivers, and commits each result as one atomic command.
package supervisor
