// Package netlab makes hosts of their own out of one machine: network namespaces, and a wire
// between them that loses, delays and cuts as a test says. It is support for tests and part of
// no program.
//
// Each host has one interface, whose packets this process carries to the host that they are
// for; nothing else connects them, and nothing of it outlives the process. It needs root and
// the kernel's tun devices, no particular scheduler or filter of packets.
package netlab
