//go:build !linux

package backup

func renameNew(from, to string) error { return renameAbsent(from, to) }
