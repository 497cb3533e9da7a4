//! The files of the controllers: processor, block devices, memory, number of threads.

use super::bandwidth::Quota;
use super::files::{GroupFile, limit};
use super::group::{Controller, Group};
use super::input;
use super::memory::{GroupMemory, UNLIMITED};
use crate::Errno;
use crate::calls::process_time;
use crate::control::{nice_of_weight, weight_of_nice};
use crate::environment::{Share, SharedResource};
use crate::family::ProcessorTime;
use crate::system::System;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_user_mode::PAGE_SIZE;

/// The files of the controllers.
pub(super) const CONTROLLER_FILES: &[GroupFile] = &[
    GroupFile {
        name: "cpu.weight",
        controller: Some(Controller::Cpu),
        on_root: false,
        read: Some(|_, group| format!("{}\n", group.settings.lock().processor.weight)),
        write: Some(|_, group, text, _| {
            set_weight(group, input::number_in(text, 1, 10_000)?);
            Ok(())
        }),
    },
    GroupFile {
        name: "cpu.weight.nice",
        controller: Some(Controller::Cpu),
        on_root: false,
        read: Some(|_, group| format!("{}\n", nice_of_weight(group.settings.lock().processor.weight))),
        write: Some(|_, group, text, _| {
            set_weight(group, weight_of_nice(input::number_in(text, -20, 19)?));
            Ok(())
        }),
    },
    GroupFile {
        name: "cpu.max",
        controller: Some(Controller::Cpu),
        on_root: false,
        read: Some(|_, group| match group.bandwidth.quota() {
            Some(Quota { quota_ns, period_ns }) => format!("{} {}\n", quota_ns / 1000, period_ns / 1000),
            None => format!("max {}\n", Quota::DEFAULT_PERIOD_NS / 1000),
        }),
        write: Some(|system, group, text, _| {
            group.set_quota(input::quota(text, group.bandwidth.quota())?);
            system.follow_group(group);
            Ok(())
        }),
    },
    GroupFile { name: "cpu.stat", controller: None, on_root: true, read: Some(processor_use), write: None },
    GroupFile {
        name: "memory.current",
        controller: Some(Controller::Memory),
        on_root: false,
        read: Some(|_, group| bytes(group, GroupMemory::used)),
        write: None,
    },
    GroupFile {
        name: "memory.peak",
        controller: Some(Controller::Memory),
        on_root: false,
        read: Some(|_, group| bytes(group, GroupMemory::peak)),
        write: None,
    },
    GroupFile {
        name: "memory.max",
        controller: Some(Controller::Memory),
        on_root: false,
        read: Some(|_, group| bytes(group, GroupMemory::max)),
        write: Some(|system, group, text, _| {
            let max = input::frames(text)?;
            if let Some(memory) = group.memory() {
                memory.set_max(max);
            }
            system.enforce_memory_limit(group);
            Ok(())
        }),
    },
    GroupFile {
        name: "memory.high",
        controller: Some(Controller::Memory),
        on_root: false,
        read: Some(|_, group| bytes(group, |memory| memory.high.load(Ordering::Relaxed))),
        write: Some(|_, group, text, _| set_frames(group, text, |memory| &memory.high)),
    },
    GroupFile {
        name: "memory.low",
        controller: Some(Controller::Memory),
        on_root: false,
        read: Some(|_, group| bytes(group, |memory| memory.low.load(Ordering::Relaxed))),
        write: Some(|_, group, text, _| set_frames(group, text, |memory| &memory.low)),
    },
    GroupFile {
        name: "memory.events",
        controller: Some(Controller::Memory),
        on_root: false,
        read: Some(memory_events),
        write: None,
    },
    GroupFile {
        name: "memory.stat",
        controller: Some(Controller::Memory),
        on_root: false,
        read: Some(memory_use),
        write: None,
    },
    GroupFile {
        name: "io.weight",
        controller: Some(Controller::Io),
        on_root: false,
        read: Some(|_, group| format!("default {}\n", group.settings.lock().disk.weight)),
        write: Some(|_, group, text, _| {
            let share = Share { weight: input::io_weight(text)?, ..group.settings.lock().disk };
            group.set_share(SharedResource::Disk, share);
            Ok(())
        }),
    },
    GroupFile {
        name: "io.stat",
        controller: Some(Controller::Io),
        on_root: true,
        read: Some(device_use),
        write: None,
    },
    GroupFile {
        name: "io.max",
        controller: Some(Controller::Io),
        on_root: false,
        read: Some(|_, group| group.settings.lock().disk_limit.clone()),
        write: Some(|_, group, text, _| {
            let bytes_per_second = input::io_limit(text)?;
            let share = Share { bytes_per_second, ..group.settings.lock().disk };
            group.set_share(SharedResource::Disk, share);
            let shown =
                if bytes_per_second.is_some() { text.trim().to_string() + "\n" } else { String::new() };
            group.settings.lock().disk_limit = shown;
            Ok(())
        }),
    },
    GroupFile {
        name: "pids.max",
        controller: Some(Controller::Pids),
        on_root: false,
        read: Some(|_, group| limit(group.most_tasks())),
        write: Some(|_, group, text, _| {
            let most = input::number_or_max(text)?;
            group.settings.lock().most_tasks = most;
            Ok(())
        }),
    },
    GroupFile {
        name: "pids.current",
        controller: Some(Controller::Pids),
        on_root: false,
        read: Some(|system, group| format!("{}\n", system.task_count(group))),
        write: None,
    },
    GroupFile {
        name: "pids.events",
        controller: Some(Controller::Pids),
        on_root: false,
        read: Some(|_, group| format!("max {}\n", group.refused_tasks())),
        write: None,
    },
];

fn set_weight(group: &Group, weight: u32) {
    let share = Share { weight, ..group.settings.lock().processor };
    group.set_share(SharedResource::Processor, share);
}

fn set_frames(group: &Group, text: &str, of: fn(&GroupMemory) -> &AtomicU64) -> Result<(), Errno> {
    let frames = input::frames(text)?;
    if let Some(memory) = group.memory() {
        of(memory).store(frames, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the text of a number of frames.
fn bytes(group: &Group, frames: impl FnOnce(&GroupMemory) -> u64) -> String {
    match group.memory().map_or(0, |memory| frames(memory)) {
        UNLIMITED => "max\n".into(),
        frames => format!("{}\n", frames * PAGE_SIZE),
    }
}

/// The requests to all block devices of the cell together, which have the number of the first virtio device.
fn device_use(system: &System, group: &Arc<Group>) -> String {
    let traffic = system.environment.activities().traffic(group.activity());
    if traffic.reads + traffic.writes == 0 {
        return String::new();
    }
    format!(
        "254:0 rbytes={} wbytes={} rios={} wios={} dbytes=0 dios=0\n",
        traffic.read_bytes, traffic.written_bytes, traffic.reads, traffic.writes
    )
}

/// The exact cycles of the group's activity, of which those of ring 3 are counted by thread.
fn processor_use(system: &System, group: &Arc<Group>) -> String {
    let members = system.members(group);
    let times = members.iter().map(|process| process_time(system, process));
    let counted = times.fold(group.ended_time(), ProcessorTime::plus);
    let usage_us = match group.activity() {
        Some(activity) => {
            let environment = &system.environment;
            let cycles = environment.activities().cycles(activity);
            (u128::from(cycles) * 1_000_000 / u128::from(environment.cycles().1.max(1))) as u64
        }
        None => system.environment.core_times().iter().map(|time| time.busy_ns / 1000).sum(),
    };
    let user_us = (counted.user_ns / 1000).min(usage_us);
    let mut text =
        format!("usage_usec {usage_us}\nuser_usec {user_us}\nsystem_usec {}\n", usage_us - user_us);
    if group.controllers().contains(Controller::Cpu) && !group.is_root() {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bandwidth = &group.bandwidth;
        text += &format!(
            "nr_periods {}\nnr_throttled {}\nthrottled_usec {}\n",
            count(&bandwidth.periods),
            count(&bandwidth.throttled),
            count(&bandwidth.throttled_ns) / 1000,
        );
    }
    text
}

fn memory_events(_: &System, group: &Arc<Group>) -> String {
    let Some(memory) = group.memory() else { return String::new() };
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let events = memory.events();
    format!(
        "low 0\nhigh {}\nmax {}\noom {}\noom_kill {}\noom_group_kill 0\n",
        count(&events.high),
        count(&events.max),
        count(&events.out_of_memory),
        count(&events.kills),
    )
}

/// All frames that are charged to a group are those of processes.
fn memory_use(system: &System, group: &Arc<Group>) -> String {
    let used = group.memory().map_or(0, |memory| memory.used()) * PAGE_SIZE;
    let members = system.members(group);
    let faults: u64 = members.iter().map(|process| process.control.faults.load(Ordering::Relaxed)).sum();
    format!("anon {used}\nfile 0\nkernel 0\nshmem 0\npgfault {faults}\npgmajfault 0\n")
}
