#!/bin/sh
# The changelog of a Debian package that is made straight from the sources, not from an upload:
# one entry, of the commit it was made from. VERSION and MAINTAINER are those of `make deb`.
set -eu
commit=$(git log -1 --format=%h 2>/dev/null || echo unknown)
when=$(git log -1 --format=%cD 2>/dev/null || date -R)
# As nfpm writes a version: what sorts before it is behind a tilde.
printf 'coordinator (%s) unstable; urgency=medium\n\n  * Made from commit %s.\n\n -- %s  %s\n' \
	"$(echo "${VERSION#v}" | sed 's/-/~/')" "$commit" "$MAINTAINER" "$when"
