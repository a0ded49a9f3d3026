#!/bin/sh
# The first process of the emulated machine: mounts the files of this machine, read-only, and a layer in memory
# above them, and continues there. The layer becomes the root also of threads that enter a mount namespace, which
# a chroot does not do, and of the kernel's calls of `modprobe`.
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "/modules/$module"; done </order
mkdir -p /lower /layer /whole
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 files /lower
mount -t tmpfs -o size=1g tmpfs /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay /whole
for folder in proc sys dev; do mount -o move "/$folder" "/whole/$folder"; done
for word in $(cat /whole/proc/cmdline); do
    case $word in ferrule=*) exec switch_root /whole /bin/sh "${word#ferrule=}/run.sh" "${word#ferrule=}" ;; esac
done
