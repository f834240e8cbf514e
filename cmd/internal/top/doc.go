// Package top shows a replica's overview on a terminal: what is open, what is stuck, what
// runs, and whether to believe it, live, with the few commands that deal with it.
//
// Rows, their order and their words are those of package overview; this package lays them
// out in cells, moves a cursor over them and asks before it commands. It reads no file and
// dials nobody: what it cannot read from the view, and what it commands, goes through the
// functions of its [Options].
package top
