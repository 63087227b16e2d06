// Package httpprovider carries out intents by HTTP requests: one for each
// hand-off, with the intent's input as body, its idempotency key in one header
// and the identity of the hand-off in another.
//
// # What is proof
//
// An error before a connection was there is proof that nothing was sent (a
// refused connection, a name that is not found, a failed TLS handshake), so the
// intent may be sent again. Once there was one, every error is ambiguous: a reset,
// an answer that ends in the middle, the end of the context. A request is sent
// once, also where net/http would repeat it by itself, and a redirect of it is
// not followed.
//
// An answer means, unless [Config.Statuses] or [Config.Receipt] says otherwise:
//
//	200 201 203 204 205          succeeded; the body is the output
//	202                          accepted; observed at its Location. Without one, or
//	                             with one at another server, its outcome is unknown
//	400 402 410 412 422          failed: the server has judged the intent. The
//	                             instance is told "http_422", never the body,
//	                             unless BodyInReason is set
//	307 308 403 404 405 406 411  refused: the path, the form or the rights are wrong
//	413 414 415 417 421 426 428
//	431 451
//	401 407 425 429              not sent: turned away before it was looked at; may
//	                             be tried again by the policy of retries
//	everything else              ambiguous
//
// Ambiguous are so, on purpose: 408 and 5xx, which gateways also answer for a
// server that has begun or even finished, 503 with Retry-After no less; 409 and
// 423, which may mean that an earlier request under the same key is at work; and
// 301 to 303, which many servers answer after the effect.
//
// A body that is JSON by its Content-Type is the output as it is. Any other is
// wrapped, and so is one that is longer than MaxBody:
//
//	{"content_type":"text/plain","text":"…","truncated":true}
//
// with "base64" in place of "text" for what is not text. An empty one is null.
//
// # Which retry class is honest
//
//   - native: the server takes requests under one key as one, and answers a repeat
//     as it did the first. Ask its manual how long it remembers keys.
//   - reconcile_before_retry: with LookupURL, and a server that can be asked for
//     the identity of a hand-off. Only one that promises to refuse an identity for
//     good, once it has said that it does not know it, allows repeats.
//   - none, never_automatic_retry: all other servers. What is ambiguous becomes
//     unknown, and an operator decides.
//
// GET is for intents that are pure or read alone.
//
// # Accepted work
//
// The location that came with a 202 is asked until it tells an end, no earlier
// than its Retry-After says. By status alone 200 is a success: a server that
// answers 200 for work that runs on, or has failed, needs [Config.Report].
// Locations at other servers are never asked, because requests carry secrets.
package httpprovider
