//! Isola's side: a cell with the image `tenants` on one core, beside the supervisor's.

use super::shares::percent;
use crate::error::BenchError;
use crate::machine::{MEMORY_MIB, Pace};
use crate::session::{Counting, Session};
use crate::supervised::{LIMIT, MachineSize, SupervisedMachine, spec};
use crate::volume::DISK_SLOT;
use isola_abi::grid::{
    ActivityRule, EntitlementChange, GridChange, GridSetup, PolicyChange, PolicyKind, Rate, RateChange,
    Resource, Weight,
};
use isola_abi::management::{CellSpec, DeviceLocation};
use isola_abi::query::Query;
use isola_abi::volume::{VolumeAccess, VolumeMount};
use isola_host::client::Client;
use isola_host::image::CellImage;
use isola_host::query::{QueryError, facts};
use std::ffi::OsString;
use std::num::NonZeroU32;

/// The image, and the name of each cell.
const IMAGE: &str = "tenants";

/// The memory of the cell, in MiB.
const CELL_MIB: u64 = 192;

/// The path at which a cell mounts the volume.
pub const VOLUME: &str = "/data";

/// A machine with a supervisor and the tenants' image.
pub struct TenantMachine {
    /// The machine.
    pub supervised: SupervisedMachine,
    image: CellImage,
}

/// The cycles of a cell's core so far.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Those of each tenant's events.
    pub tenants: [f64; 3],
    /// Those of all events.
    events: f64,
    of_loop: f64,
    interrupts: f64,
    idle: f64,
}

impl TenantMachine {
    /// Boots a machine of two processors, with further arguments of QEMU.
    pub fn boot(session: &Session, more: Vec<OsString>) -> Result<Self, BenchError> {
        Self::boot_at(session, Pace::Host, more)
    }

    /// Does the same, with these clocks.
    pub fn boot_at(session: &Session, pace: Pace, more: Vec<OsString>) -> Result<Self, BenchError> {
        let size = MachineSize { cores: 2, queues: 1, memory_mib: MEMORY_MIB, pace };
        let mut supervised = SupervisedMachine::boot_with(session, size, Counting::Off, more)?;
        let image = session.images.cell_image(IMAGE)?;
        supervised.provide(&image)?;
        Ok(Self { supervised, image })
    }

    /// Starts a cell with tenants, in place of the one before.
    pub fn start(&mut self, tenants: &[String], grid: GridSetup) -> Result<(), BenchError> {
        if self.supervised.client.list()?.iter().any(|cell| cell.spec.name == IMAGE) {
            // A cell that does not stop in time is stopped by force.
            self.supervised.client.stop(IMAGE, 1_000, LIMIT)?;
            self.supervised.client.destroy(IMAGE)?;
        }
        let volume = VolumeMount {
            device: DeviceLocation::Pci { bus: 0, device: DISK_SLOT, function: 0 },
            name: "files".into(),
            path: VOLUME.into(),
            access: VolumeAccess::ReadWrite,
        };
        let has_volume = tenants.iter().any(|tenant| tenant.contains(VOLUME));
        let volumes = if has_volume { vec![volume] } else { Vec::new() };
        let arguments = tenants.to_vec();
        let spec = CellSpec { arguments, grid, volumes, ..spec(IMAGE, &self.image, 1, CELL_MIB) };
        self.supervised.client.create(spec)?;
        self.supervised.client.start(IMAGE)?;
        self.supervised.wait_for_log(IMAGE, "tenants: running")
    }

    /// Changes settings of the cell's grid.
    pub fn change(&mut self, changes: impl IntoIterator<Item = GridChange>) -> Result<(), BenchError> {
        for change in changes {
            facts(&mut self.supervised.client, IMAGE, &Query::ChangeGrid(change)).map_err(refused)?;
        }
        Ok(())
    }

    /// Returns the cycles of the cell's core, with those of the activities of these names.
    pub fn ledger(&mut self, names: [&str; 3]) -> Result<Ledger, BenchError> {
        let mut info = self.supervised.client.inspect(IMAGE)?;
        self.supervised.client.add_activities(&mut info)?;
        let of = |name: &str| {
            let activity = info.activities.activities.iter().find(|activity| activity.name == name);
            activity.map_or(0.0, |activity| activity.cycles as f64)
        };
        let mut ledger = Ledger { tenants: names.map(of), ..Ledger::default() };
        for core in &info.cores {
            ledger.events += core.event_cycles as f64;
            ledger.of_loop += core.loop_cycles as f64;
            ledger.interrupts += core.interrupt_cycles as f64;
            ledger.idle += core.idle_cycles as f64;
        }
        Ok(ledger)
    }

    /// Returns the bytes that a resource's scheduler has served to each activity of these names.
    pub fn bytes(&mut self, resource: Resource, names: [&str; 3]) -> Result<[f64; 3], BenchError> {
        bytes_of(&mut self.supervised.client, IMAGE, resource, names)
    }
}

/// Returns the bytes that a resource's scheduler of a cell has served to each activity of these names.
pub fn bytes_of(
    client: &mut Client,
    cell: &str,
    resource: Resource,
    names: [&str; 3],
) -> Result<[f64; 3], BenchError> {
    let answer = facts(client, cell, &Query::Grid).map_err(refused)?;
    let of = |name: &str| {
        let clients = answer.grid_clients.iter();
        clients
            .filter(|client| client.resource == resource && client.name == name)
            .map(|client| client.cost as f64)
            .sum()
    };
    Ok(names.map(of))
}

/// Returns the error for a query that the cell has not answered.
fn refused(error: QueryError) -> BenchError {
    match error {
        QueryError::Client(error) => error.into(),
        error => BenchError::WrongAnswer {
            service: "the cell".into(),
            request: "a query of its grid".into(),
            answer: error.to_string(),
        },
    }
}

impl Ledger {
    /// Returns the cycles since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let tenants = [0, 1, 2].map(|index| self.tenants[index] - before.tenants[index]);
        Self {
            tenants,
            events: self.events - before.events,
            of_loop: self.of_loop - before.of_loop,
            interrupts: self.interrupts - before.interrupts,
            idle: self.idle - before.idle,
        }
    }

    /// Returns the cycles that are not idle.
    fn busy(&self) -> f64 {
        self.events + self.of_loop + self.interrupts
    }

    /// Returns the part of the core's cycles that the tenants have, in percent.
    pub fn tenants_percent(&self) -> f64 {
        percent(self.tenants.iter().sum(), self.busy() + self.idle)
    }

    /// Returns the part of the cycles that are not idle and not those of messages: the event loop with its schedulers,
    /// in percent.
    pub fn overhead_percent(&self) -> f64 {
        percent(self.of_loop, self.busy())
    }
}

/// Returns a change without a change.
fn change(resource: Resource) -> GridChange {
    GridChange { resource, dry_run: false, policy: None, batch: None, limit: None, activity: None }
}

/// Returns the change to start-time fair queueing, with so many requests of an activity for each decision, and a limit.
pub fn wfq(resource: Resource, batch: u32, limit: Option<u64>) -> GridChange {
    let limit = limit.and_then(|limit| Rate::per_second(limit).ok()).map(RateChange::Rate);
    GridChange {
        policy: Some(PolicyChange::Policy(PolicyKind::Wfq)),
        batch: NonZeroU32::new(batch),
        limit,
        ..change(resource)
    }
}

/// Returns the changes that give activities their weights.
pub fn weights(resource: Resource, names: [&str; 3], weights: [u32; 3]) -> Vec<GridChange> {
    let one = |(name, weight): (&str, u32)| {
        let weight = Weight::new(weight).ok();
        let change_of_one = EntitlementChange { weight, ..EntitlementChange::default() };
        GridChange { activity: Some((name.to_owned(), change_of_one)), ..change(resource) }
    };
    names.into_iter().zip(weights).map(one).collect()
}

/// Returns the rule that attributes the connections to a port.
pub fn rule(port: u16, activity: &str) -> ActivityRule {
    ActivityRule { port: Some(port), peer: None, activity: activity.to_owned(), each_connection: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cycle_is_the_tenants_or_the_rest() {
        let before =
            Ledger { tenants: [1.0, 2.0, 3.0], events: 10.0, of_loop: 1.0, interrupts: 1.0, idle: 5.0 };
        let after =
            Ledger { tenants: [31.0, 22.0, 13.0], events: 90.0, of_loop: 6.0, interrupts: 6.0, idle: 15.0 };
        let used = after.since(&before);
        assert_eq!(used.tenants, [30.0, 20.0, 10.0]);
        assert!((used.tenants_percent() - 60.0).abs() < 1e-9, "{used:?}");
        assert!((used.overhead_percent() - 100.0 * 5.0 / 90.0).abs() < 1e-9, "{used:?}");
    }

    #[test]
    fn weights_are_valid() {
        let changes = weights(Resource::Disk, ["a", "b", "c"], super::super::shares::WEIGHTS);
        let given: Vec<u32> = changes
            .iter()
            .filter_map(|change| change.activity.as_ref()?.1.weight)
            .map(|weight| weight.get())
            .collect();
        assert_eq!(given, super::super::shares::WEIGHTS);
    }
}
