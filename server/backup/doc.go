// Package backup makes, checks and brings back copies of a coordinator's state directory.
//
// A backup is a directory: the store's files as of one event cut, the configuration, the
// registry and the authority key, and manifest.json with the digest of each. It gets its
// name last, when all of it is durable. The link key is never in it, so that what is brought
// back cannot act before somebody enrols it (protocol.md §4).
//
// A running coordinator gives its files away as open descriptors over a socket in its state
// directory: state.db as an unnamed copy that it made at the pace of the local disk, log
// segments as they are. From then on it holds nothing for the backup. How slow the target is
// concerns only the command that writes it.
package backup
