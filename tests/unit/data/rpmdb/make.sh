#!/bin/sh
# Makes the Berkeley DB files of this folder, in both byte orders: a package that rpmbuild made and rpm installed, its
# header loaded by libdb's own tool. Needs rpm, sqlite3 and db5.3_load (Debian: rpm, sqlite3, db5.3-util), and root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME="$work"
cat > "$work/small.spec" << 'EOF'
Name: small
Epoch: 1
Version: 2.0
Release: 7.el8
Summary: made for a test
License: none
%description
Nothing.
%install
mkdir -p %{buildroot}/usr/lib64 %{buildroot}/etc
echo library > %{buildroot}/usr/lib64/libsmall.so.2
ln -s libsmall.so.2 %{buildroot}/usr/lib64/libsmall.so
echo setting > %{buildroot}/etc/small.conf
%files
%config /etc/small.conf
/usr/lib64/libsmall.so*
%ghost /var/log/small.log
EOF
rpmbuild -bb --quiet --define "_topdir $work/top" --define "_buildhost localhost" \
    --define "_build_id_links none" --target x86_64 "$work/small.spec"
mkdir -p "$work/root/var/lib/rpm"
rpm --root "$work/root" --dbpath /var/lib/rpm --initdb
rpm --root "$work/root" --dbpath /var/lib/rpm -i --nodeps "$work"/top/RPMS/x86_64/*.rpm
header=$(sqlite3 "$work/root/var/lib/rpm/rpmdb.sqlite" 'SELECT lower(hex(blob)) FROM Packages')
for order in 1234:little 4321:big; do
    rm -f "$here/Packages-${order#*:}"
    db5.3_load "$here/Packages-${order#*:}" << EOF
VERSION=3
format=bytevalue
type=hash
db_pagesize=512
db_lorder=${order%:*}
HEADER=END
 00000000
 02000000
 01000000
 $header
DATA=END
EOF
done
