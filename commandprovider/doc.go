// Package commandprovider carries out intents by commands of this machine: one
// process for each hand-off, with the intent's input on its standard input.
//
// # What is proof
//
// A process that could not be started (no such file, no right to execute it,
// no memory) is proof that nothing happened, so the intent may be sent again. Of
// one that was started its exit status tells, by [Config.Exits]: 0 is a success
// unless said otherwise, and any other status that is not listed is ambiguous,
// because a command may fail after its effect. So list a status only where the
// command promises what it means. Ambiguous are also the end by a signal and the
// end of the context: then the process is killed, with its process group where
// the system has such groups, and nobody knows how far it had come.
//
// A process that outlives its dispatcher, because that was killed, runs on
// unseen. The next dispatcher finds a hand-off without a receipt, which is
// ambiguous.
//
// # Output
//
// What the command wrote to its standard output is the output of the intent, as
// it is where it is JSON, and else wrapped:
//
//	{"text":"…","truncated":true}
//
// with "base64" in place of "text" for what is not text. Nothing is null. What is
// beyond MaxOutput is read and dropped. The standard error is dropped, unless
// StderrInReason is set.
//
// # Which retry class is honest
//
//   - native: a command that takes repeats under one IDEMPOTENCY_KEY, which is in
//     its environment, as one; or that may be run again anyhow, such as a copy.
//   - none, never_automatic_retry: all others. What is ambiguous becomes unknown,
//     and an operator decides.
//   - reconcile_before_retry: never. The package has no reconciler; wrap the
//     provider in one of your own where there is a way to find out.
package commandprovider
