// Package docsh runs the commands of a document, as somebody who reads it would: the
// fenced blocks of shell text in a markdown file, in order, in one shell.
//
// It is support for tests and part of no program. A document is right when the whole of it
// can be typed, from the first block to the last:
//
//	func TestMain(m *testing.M) { os.Exit(docsh.Main(m)) }
//
//	func TestBackupDocument(t *testing.T) { docsh.Run(t, "backup.md", docsh.Options{}) }
//
// What runs. Blocks whose language is sh; others on request ([Options.Langs]). Of a console
// block the lines that begin with "$ " are the commands, and what they end in a backslash
// goes on in the next line. All blocks of one file share one long-lived
// bash -euo pipefail, so variables, functions, the working directory and background jobs
// carry over. Standard input is empty.
//
// Where. In a scratch directory that is removed afterwards. HOME, TMPDIR and the XDG
// directories lie in it; its path is short, for the sake of Unix sockets. The product's
// programs, built once in a test process, come first in PATH. A document that speaks of
// several machines marks its blocks with host=NAME; each name has a shell and a home of its
// own, entered by the command that [Options.Host] gives (ip netns exec, say).
//
// How long. A block has [Options.Timeout]; one that takes longer has failed. When the last
// block is done, whatever was started and still runs is told to end, then killed: the
// shell's process group and every process that has inherited its environment. A daemon is
// therefore started as a reader would start it, with its log out of the way:
//
//	coordinatord serve --state c >c.log 2>&1 &
//	until coordinatord status --state c >status.txt 2>&1; do sleep 0.1; done
//
// What is marked. The words of an info string after the language:
//
//	sh skip="needs systemd as PID 1"  not run; the reason is printed by the test
//	sh fails=3                        ends with exit code 3; what it sets does not carry over
//	sh host=witness                   runs on that host
//	sh host=witness,worker            runs on each of these, one after the other
//	sh timeout=3m                     has its own limit
//	text output                       what the block before it prints, stderr included
//
// In an output block "…" stands for any text within a line, so ids, digests and times are
// not written down, and a line that holds nothing else stands for any number of lines. An
// unknown word is an error: a mark with a typing mistake must not switch a check off.
//
// A failure names the file and the line, the command, its exit code and what it printed.
package docsh
