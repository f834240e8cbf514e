// Package report turns results into text: the table of targets with the ratios that were
// reached, the figures behind it, and curves of growth.
package report
