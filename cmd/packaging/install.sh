#!/bin/sh
# Puts what is built in bin/ where a system has it. `make install` and `make deb` run it.
#   install.sh DESTDIR PREFIX
set -eu
dest=$1 prefix=$2
cd "$(dirname "$0")/../.."
root=$dest$prefix

put() { # mode, directory, files
	mode=$1 dir=$2
	shift 2
	install -d -m 755 "$dir"
	install -m "$mode" "$@" "$dir/"
}

put 755 "$root/bin" bin/coordctl bin/coordinatord bin/ownerd bin/witnessd

install -d -m 755 "$root/lib/systemd/system" "$root/lib/sysusers.d" "$root/lib/tmpfiles.d"
for unit in cmd/packaging/systemd/*.service; do
	sed "s|^ExecStart=/usr/|ExecStart=$prefix/|" "$unit" >"$root/lib/systemd/system/${unit##*/}"
	chmod 644 "$root/lib/systemd/system/${unit##*/}"
done
install -m 644 cmd/packaging/systemd/coordinator.sysusers "$root/lib/sysusers.d/coordinator.conf"
install -m 644 cmd/packaging/systemd/coordinator.tmpfiles "$root/lib/tmpfiles.d/coordinator.conf"

for section in 1 8; do
	put 644 "$root/share/man/man$section" bin/man/*."$section"
	gzip -9nf "$root/share/man/man$section"/*."$section"
done

# Where the zsh of a distribution looks beside what the administrator has put there.
zsh=share/zsh/site-functions
if [ "$prefix" = /usr ]; then
	zsh=share/zsh/vendor-completions
fi
for program in coordctl coordinatord ownerd witnessd; do
	put 644 "$root/share/bash-completion/completions" bin/completions/bash/$program
	put 644 "$root/$zsh" bin/completions/zsh/_$program
	put 644 "$root/share/fish/vendor_completions.d" bin/completions/fish/$program.fish
done

put 644 "$root/share/doc/coordinator" docs/systemd.md docs/hosts.md docs/backup.md docs/logs.md docs/metrics.md docs/upgrades.md \
	docs/grafana-dashboard.json cmd/packaging/copyright
