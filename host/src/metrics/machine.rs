//! The values of a machine, and the whole reading.

use super::catalogue as families;
use super::cell::CellReading;
use super::series::{Metrics, Value, seconds};
use crate::machine::record::MachineRecord;
use isola_abi::management::{CoreOwner, MachineInfo};
use std::time::Duration;

/// The state of a machine and its cells.
#[derive(Debug)]
pub struct Reading {
    /// The machine's name.
    pub name: String,
    /// The machine, as its supervisor reports it.
    pub machine: MachineInfo,
    /// The cells.
    pub cells: Vec<CellReading>,
    /// The duration of the reading.
    pub duration: Duration,
}

impl Reading {
    /// Returns the values of all families.
    pub fn metrics(&self, record: &MachineRecord) -> Metrics {
        let mut metrics = Metrics::default();
        let labels = [&self.name, &record.options.model.to_string(), &record.accelerator.to_string()];
        metrics.add(&families::MACHINE, &labels.map(String::as_str), Value::Info);
        add_machine(&mut metrics, &self.machine);
        for cell in &self.cells {
            cell.add_to(&mut metrics, self.machine.tsc_hz);
        }
        metrics.number(&families::READING_DURATION, &[], self.duration.as_secs_f64());
        metrics
    }
}

fn add_machine(metrics: &mut Metrics, machine: &MachineInfo) {
    for owner in ["supervisor", "cell", "free", "failed", "transfer"] {
        let cores = machine.cores.iter().filter(|core| owner_name(core.owner) == owner).count();
        metrics.number(&families::MACHINE_CORES, &[owner], cores as f64);
    }
    for (family, value) in [
        (&families::MACHINE_MEMORY, machine.memory_total.0),
        (&families::MACHINE_MEMORY_FREE, machine.memory_free.0),
        (&families::MACHINE_MEMORY_DIRTY, machine.memory_dirty.0),
        (&families::MACHINE_MEMORY_QUARANTINED, machine.memory_quarantined.0),
        (&families::MACHINE_MEMORY_SUPERVISOR, machine.memory_supervisor.0),
        (&families::MACHINE_MEMORY_IMAGES, machine.memory_images.0),
        (&families::MACHINE_DEVICES, machine.devices_total.into()),
        (&families::MACHINE_DEVICES_FREE, machine.devices_free.into()),
        (&families::MACHINE_DISKS, machine.disks_total.into()),
        (&families::MACHINE_DISKS_FREE, machine.disks_free.into()),
        (&families::MACHINE_CLOCK, machine.tsc_hz),
    ] {
        metrics.number(family, &[], value as f64);
    }
    metrics.number(&families::SUPERVISOR_UPTIME, &[], seconds(machine.uptime_ns));
    metrics.count(&families::SUPERVISOR_RESTARTS, &[], machine.restarts.into());
}

fn owner_name(owner: CoreOwner) -> &'static str {
    match owner {
        CoreOwner::Supervisor => "supervisor",
        CoreOwner::Cell(_) => "cell",
        CoreOwner::Free => "free",
        CoreOwner::Failed => "failed",
        CoreOwner::InTransfer(_) => "transfer",
    }
}
