#!/bin/sh
# Boots systemd over a writable copy of this machine's root file system, in namespaces of
# its own. The first argument is an empty directory for the mounts, the second the directory
# of packages, which appears as /deb. The directory /changed has the changed files.
#
# The caller has unshared all namespaces and runs this as process 1.
set -eu
dir=$1 deb=$2
mount --make-rprivate /
mount -t tmpfs tmpfs "$dir"
mkdir "$dir/changed" "$dir/work" "$dir/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/changed,workdir=$dir/work" "$dir/root"
cd "$dir/root"
mkdir -p deb changed old
mount --bind "$deb" deb
mount --bind "$dir/changed" changed
mount -t proc proc proc
# Only the settings of the network belong to the namespaces; systemd sets others, too.
for settings in proc/sys/*; do
	[ "$settings" = proc/sys/net ] && continue
	mount --bind "$settings" "$settings"
	mount -o remount,bind,ro "$settings"
done
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs dev
mkdir dev/net
for device in null zero full random urandom tty net/tun; do
	touch dev/$device
	mount --bind /dev/$device dev/$device
done
rm -f etc/fstab usr/sbin/policy-rc.d # of an image whose packages start nothing
rm -rf etc/weft var/lib/weft # of a weftd on this machine
pivot_root . old
umount -l /old
# As on a machine that has booted: units see what is mounted later, such as network namespaces.
mount --make-rshared /
exec env -i container=weft PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd \
	--system --log-target=null systemd.unit=basic.target </dev/null
