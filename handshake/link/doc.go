// Package link is what the two internal links have in common (links.md): the hello, the
// reading and writing of frames in a link's own namespace, the server's connections with
// their deadlines, quotas, keepalive and revocation, its listeners, and the client's side of
// the proof.
//
// It knows neither the witness nor the owner: a [Namespace] says which frames a link has, and
// a [Session] what they do.
package link
