// Package overview condenses what a replica holds to what a person wants to see at one
// glance: the signals that are open, the objectives and how their runs stand, what is stuck
// and why, which operations have no outcome yet, and whether any of that is to be believed.
//
// The web console and the terminal view show the same rows in the same order with the same
// words, because both come from here. A [Model] is brought up to date with what has changed
// alone. Everything that others chose the words of is inert (package internal/text).
//
// "Stuck" is said only where records of the protocol say it, never by guess: see [Stuck].
// Events bear no time of day, so that a time in a row is when this model learned of the
// change; where that was later than the change itself, the row says so.
package overview
