// Package hosts holds no code: its tests run the daemons and their clients as processes on
// hosts of their own, over QUIC, on a wire that is cut, slow and lossy as docs/hosts.md tells.
package hosts
