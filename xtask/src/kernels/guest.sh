# Prepares the emulated machine, and runs the tests that `tests` lists beside this file: name, deadline, path.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ RUST_BACKTRACE=0
# Some agents that start at once take a minute of the machine's time, most of this in the verifier.
export FERRULE_PATIENCE=6
here=$1
. "$here/environment"
for folder in /run /var/tmp /dev/shm /mnt; do mkdir -p $folder && mount -t tmpfs tmpfs $folder; done
mkdir -p /lib/modules /dev/pts && mount --bind "$here/files/lib/modules" /lib/modules
mount -t devpts devpts /dev/pts
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
ip link set lo up
# Settings exist, and no test waits for a driver.
for module in veth vxlan dummy bridge br_netfilter sch_ingress cls_bpf nf_conntrack nf_tables nft_chain_nat \
    nft_masq nft_ct nft_fib_inet nft_reject_inet nft_log; do modprobe $module; done
echo "==== up $(uname -r)"
while read -r name deadline path filters; do
    echo "==== begin $name"
    # One at a time: the machine has one CPU. No filter has a blank.
    (cd "$FOLDER" && timeout -k 10 "$deadline" "$path" --test-threads=1 --color=never $filters 2>&1 </dev/null)
    echo "==== end $name $?"
done <"$here/tests"
echo "==== done"
echo o >/proc/sysrq-trigger
sleep 60
