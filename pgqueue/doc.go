// Package pgqueue is a durable queue for package supervisor in PostgreSQL.
package pgqueue
