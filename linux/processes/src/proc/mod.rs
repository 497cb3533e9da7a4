//! `/proc` and `/sys`: texts about processes and the system (proc(5)).

mod ipc;
mod process;
mod status;
mod system;

pub(crate) use process::{command_line, name as process_name};
pub(crate) use status::{process_state, resident_bytes};
pub(crate) use system::load_averages;

use crate::core_dump::{PatternFile, UsesPidFile};
use crate::process::Process;
use crate::system::System;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_files::{CallerIds, FixedDirectory, GeneratedDirectory, GeneratedFs, ProcessDirectories};

/// Creates `/proc`.
pub fn proc_file_system(system: &Arc<System>) -> Arc<GeneratedFs> {
    let weak = Arc::downgrade(system);
    let text = |text: fn(&System) -> String| {
        let weak = weak.clone();
        move |_: CallerIds| -> Vec<u8> {
            weak.upgrade().map_or_else(Vec::new, |system| text(&system).into_bytes())
        }
    };
    let fixed = FixedDirectory::new()
        .text("meminfo", text(system::meminfo))
        .text("cpuinfo", text(system::cpuinfo))
        .text("stat", text(system::stat))
        .text("loadavg", text(system::loadavg))
        .text("uptime", text(system::uptime))
        .text("vmstat", text(system::vmstat))
        .text("version", text(system::version))
        .text("net/unix", text(|system| system.unix_sockets.list()))
        .text("sys/kernel/hostname", text(system::host_name))
        .text("sys/kernel/core_pattern", PatternFile(weak.clone()))
        .text("sys/kernel/core_uses_pid", UsesPidFile(weak.clone()))
        .text("sysvipc/shm", text(ipc::shared_memories))
        .text("sysvipc/sem", text(ipc::semaphores))
        .text("sysvipc/msg", text(ipc::messages))
        .constant(
            "filesystems",
            "nodev\tproc\nnodev\tsysfs\nnodev\ttmpfs\nnodev\tcgroup2\nnodev\tdevtmpfs\n\text4\n",
        )
        .constant("cmdline", "\n")
        .constant("sys/kernel/ngroups_max", "65536\n")
        .constant("sys/kernel/pid_max", "32768\n")
        .constant("sys/kernel/cap_last_cap", "40\n")
        .constant("sys/kernel/ostype", "Linux\n")
        .constant("sys/kernel/osrelease", concat!("6.1.0-isola", "\n"))
        .constant("sys/kernel/threads-max", "32768\n")
        .constant("sys/vm/overcommit_memory", "1\n")
        .constant("sys/vm/overcommit_ratio", "50\n")
        .constant("sys/vm/max_map_count", "65530\n")
        .constant("sys/net/core/somaxconn", "4096\n")
        .constant("sys/fs/file-max", "1048576\n")
        .constant("sys/fs/nr_open", "1048576\n")
        .constant("sys/fs/mqueue/msg_default", "10\n")
        .constant("sys/fs/mqueue/msg_max", "10\n")
        .constant("sys/fs/mqueue/msgsize_default", "8192\n")
        .constant("sys/fs/mqueue/msgsize_max", "8192\n")
        .constant("sys/fs/mqueue/queues_max", "256\n");
    isola_linux_files::proc_file_system(fixed, Arc::new(Processes(weak)))
}

/// Creates `/sys`.
pub fn sys_file_system(system: &Arc<System>) -> Arc<GeneratedFs> {
    let weak = Arc::downgrade(system);
    isola_linux_files::sys_file_system(move || {
        weak.upgrade().map_or_else(String::new, |system| system::cores(&system))
    })
}

/// The directories of processes.
struct Processes(Weak<System>);

impl ProcessDirectories for Processes {
    fn ids(&self) -> Vec<u32> {
        self.0
            .upgrade()
            .map_or_else(Vec::new, |system| system.family.lock().processes().map(|(pid, _)| pid).collect())
    }

    fn directory(&self, id: u32) -> Option<Arc<dyn GeneratedDirectory>> {
        let system = self.0.upgrade()?;
        let (_, process): (u32, Arc<Process>) = system.family.lock().process_of_thread(id)?;
        Some(process::directory(&system, &process))
    }
}
