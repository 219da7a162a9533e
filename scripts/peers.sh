#!/bin/sh
# The mail servers and clients that tests/interop talks to, from Debian's packages: Postfix is installed where it is
# missing; Exim, OpenSMTPD, swaks, isync, OfflineIMAP and mutt, some of which conflict with it, are only unpacked, into
# $POSTROOM_TEST_PEERS (by default /var/cache/postroom-peers). Needs Debian or a child of it, and root for Postfix.
set -eu

place=${POSTROOM_TEST_PEERS:-/var/cache/postroom-peers}
unpacked="exim4-daemon-light opensmtpd swaks libnet-ssleay-perl libnss-wrapper"
unpacked="$unpacked isync mutt offlineimap3 python3-imaplib2 python3-rfc6555 python3-distro"
stamp="3; $unpacked; $(dpkg --print-architecture); $(cat /etc/debian_version)"

say() { echo "peers: $*" >&2; }

# Whether the package is there as far as dpkg knows.
installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# The libraries that packages want, one a line.
libraries() {
  apt-cache depends --important --no-conflicts --no-breaks --no-replaces "$@" |
    sed -n 's/^[ |]*\(Pre\)\{0,1\}Depends: \(lib[^ ]*\)$/\2/p' | sort -u
}

# $unpacked with the libraries that are not installed, and theirs.
wanted() {
  all=" $unpacked " next=$unpacked
  while [ -n "$next" ]; do
    found=
    for name in $(libraries $next); do
      case "$all" in *" $name "*) continue ;; esac
      installed "$name" && continue
      all="$all$name " found="$found $name"
    done
    next=$found
  done
  echo "$all"
}

command -v apt-get >/dev/null || { say "there is no apt-get here"; exit 1; }
export DEBIAN_FRONTEND=noninteractive
need_postfix=; [ -x /usr/sbin/postfix ] || need_postfix=yes
need_others=yes; [ "$(cat "$place/.complete" 2>/dev/null || true)" = "$stamp" ] && need_others=
[ -z "$need_postfix$need_others" ] && { say "all there, in $place"; exit 0; }

apt-get -o Acquire::Retries=3 update -q >&2
if [ -n "$need_postfix" ]; then
  # Unconfigured, so that it does not start.
  echo "postfix postfix/main_mailer_type select No configuration" | debconf-set-selections
  apt-get install -qy --no-install-recommends postfix >&2
fi
if [ -n "$need_others" ]; then
  if [ -e "$place" ] && [ ! -e "$place/.complete" ]; then say "$place is not ours"; exit 1; fi
  mkdir -p "$(dirname "$place")"
  made=$(mktemp -d "$place.XXXXXX")
  trap 'rm -rf "$made"' EXIT
  chmod 755 "$made"
  mkdir "$made/packages"
  (cd "$made/packages" && apt-get -o Acquire::Retries=3 -o APT::Sandbox::User=root download -q $(wanted) >&2)
  for package in "$made"/packages/*.deb; do dpkg -x "$package" "$made"; done
  rm -r "$made/packages"
  # Nobody is to become root by what lies there; nor would the loader find libraries for such a program.
  chmod -R u-s,g-s "$made"
  echo "$stamp" >"$made/.complete"
  rm -rf "$place"
  mv "$made" "$place"
fi
say "all there, in $place"
