#!/bin/busybox sh
# The first process of the Linux guest. Its parameters are variables from the kernel's command line: guest_address,
# memcached_threads, guest_services.
export PATH=/bin
busybox mount -t devtmpfs none /dev
busybox mount -t proc none /proc
busybox mount -t sysfs none /sys
echo 'guest: user space'
for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net; do
    for file in /modules/"$module".ko*; do
        # A module without a file is built into the kernel.
        if [ -e "$file" ]; then busybox insmod "$file"; fi
    done
done
busybox ip link set lo up
busybox ip address add "$guest_address" dev eth0
busybox ip link set eth0 up
case $guest_services in
    web) nginx -c /etc/nginx.conf & ;;
    netpipe) linux-netpipe 5002 & linux-netpipe 5003 sendfile & ;;
    short) linux-short 7 & ;;
    redis) redis-server --save '' --protected-mode no & ;;
    colocation)
        busybox mount -t cgroup2 none /sys/fs/cgroup
        echo '+cpu +cpuset' >/sys/fs/cgroup/cgroup.subtree_control
        busybox mkdir /sys/fs/cgroup/service /sys/fs/cgroup/batch
        (echo 0 >/sys/fs/cgroup/service/cgroup.procs; exec memcached -u root -U 0 -t "$memcached_threads" -m 64) &
        ;;
    grid)
        for module in virtio_blk sch_htb cls_u32; do
            for file in /modules/"$module".ko*; do
                if [ -e "$file" ]; then busybox insmod "$file"; fi
            done
        done
        busybox mount -t cgroup2 none /sys/fs/cgroup
        echo '+cpu +io' >/sys/fs/cgroup/cgroup.subtree_control
        ;;
    usual) memcached -u root -U 0 -t "$memcached_threads" -m 64 & linux-echo 7 & ;;
esac
echo 'guest: services'

# Commands from the serial line: reports the memory in use (not available to a program) in KiB; touches memory, in MiB,
# with small or huge pages; measures the costs of system calls; sets weights, processors or scheduling classes of the two cgroups; starts the batch job; runs
# a command of the group grid, or starts one in a cgroup.
batch_class=
while read -r question amount other; do
    case $question in
        cpu.weight | cpu.idle | cpuset.cpus)
            echo "$amount" >"/sys/fs/cgroup/service/$question" && echo "$other" >"/sys/fs/cgroup/batch/$question"
            echo "guest: set $?"
            ;;
        classes)
            # SCHED_FIFO for the service, and SCHED_IDLE for the batch job, which starts later.
            batch_class='chrt --idle 0'
            set=0
            while read -r thread; do
                chrt --fifo --pid 50 "$thread" || set=1
            done </sys/fs/cgroup/service/cgroup.threads
            echo "guest: set $set"
            ;;
        # The class is empty, or the words of a command prefix.
        batch) (echo 0 >/sys/fs/cgroup/batch/cgroup.procs; exec $batch_class linux-batch "$amount" "$other") & ;;
        run)
            eval "$amount $other"
            echo "guest: set $?"
            ;;
        tenant) (echo 0 >"/sys/fs/cgroup/$amount/cgroup.procs"; exec $other) & ;;
        costs) /bin/costs $amount ;;
        # Directions, sizes and numbers of messages.
        loop)
            for round in "$amount" $other; do linux-netpipe connect 5002 "$round"; done
            echo 'guest: loop done'
            ;;
        touch) echo never >/sys/kernel/mm/transparent_hugepage/enabled; linux-touch "$amount" ;;
        touch-large) echo always >/sys/kernel/mm/transparent_hugepage/enabled; linux-touch "$amount" ;;
    esac
    if [ "$question" = memory ]; then
        while read -r name amount _; do
            case $name in
                MemTotal:) total=$amount ;;
                MemAvailable:) echo "guest: memory $((total - amount))" ;;
            esac
        done </proc/meminfo
    fi
done
