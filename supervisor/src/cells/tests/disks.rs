//! Block devices of cells.

use super::*;
use crate::fake::go_wrong;
use isola_abi::management::{DeviceLocation, RestartPolicy};
use isola_abi::volume::{VolumeAccess, VolumeMount};
use isola_supervisor_fake::{FIRST_DISK, FakeDevice};

/// Returns the location of one of the machine's two block devices.
fn disk(number: u8) -> DeviceLocation {
    FakeDevice(FIRST_DISK + number).location()
}

fn volume(device: DeviceLocation, path: &str) -> VolumeMount {
    VolumeMount { device, name: "data".into(), path: path.into(), access: VolumeAccess::ReadWrite }
}

fn with_disks(name: &str, disks: &[u8]) -> CellSpec {
    let volumes = disks.iter().map(|number| volume(disk(*number), &alloc::format!("/{number}"))).collect();
    CellSpec { volumes, network: NetworkSpec::None, ..spec(name) }
}

#[test]
fn a_block_device_belongs_to_one_cell_until_its_end() {
    let mut cells = machine(3);
    run(&mut cells, with_disks("kv", &[1, 0]));
    let machine = cells.machine();
    assert_eq!((machine.disks_total, machine.disks_free, machine.devices_free), (2, 0, 2));
    let refused = create(&mut cells, with_disks("other", &[0]));
    assert_eq!(refused, Err(ManagementError::DiskNotFree(disk(0))));
    assert_eq!(cells.machine().memory_free, machine.memory_free, "a refused cell keeps nothing");
    cells.stop("kv", 0).unwrap();
    let resets = cells.fake().actions.iter().filter(|action| **action == Action::Reset).count();
    assert_eq!((resets, cells.machine().disks_free), (2, 2), "each device was reset");
    run(&mut cells, with_disks("other", &[0]));
    assert_eq!(cells.machine().disks_free, 1);
}

#[test]
fn a_device_that_is_not_a_block_device_is_refused_as_one() {
    let mut cells = machine(3);
    for location in [FakeDevice(0).location(), FakeDevice(200).location()] {
        let wrong = CellSpec { volumes: alloc::vec![volume(location, "/data")], ..spec("kv") };
        assert_eq!(create(&mut cells, wrong), Err(ManagementError::DiskNotFree(location)));
    }
    assert_eq!((cells.machine().devices_free, cells.machine().disks_free), (2, 2));
}

#[test]
fn a_block_device_that_cannot_be_reset_is_not_given_again() {
    let mut cells = machine(3);
    run(&mut cells, with_disks("kv", &[0]));
    cells.fake().device_is_stuck = true;
    cells.stop("kv", 0).unwrap();
    let machine = cells.machine();
    assert_eq!((machine.disks_total, machine.disks_free), (2, 1));
    assert_eq!(machine.memory_quarantined, ByteSize(4 * MIB + IMAGE), "the device may write to the memory");
    let refused = create(&mut cells, with_disks("other", &[0]));
    assert_eq!(refused, Err(ManagementError::DiskNotFree(disk(0))));
}

#[test]
fn a_restarted_cell_waits_for_its_block_device() {
    let mut cells = machine(3);
    let restart = RestartPolicy::Always;
    run(&mut cells, CellSpec { restart, ..with_disks("kv", &[0]) });
    let report = cells.fake().reports.values().next().unwrap().clone();
    report.exit_code.store(1, core::sync::atomic::Ordering::Relaxed);
    says(&report, CellPhase::Exited);
    cells.on_notification();
    create(&mut cells, with_disks("other", &[0])).unwrap();
    advance(&mut cells, 200);
    assert_eq!(info(&mut cells, "kv").state, CellState::Exited);
    cells.destroy("other").unwrap();
    advance(&mut cells, 1000);
    assert_eq!(info(&mut cells, "kv").state, CellState::Running);
    assert_eq!(cells.machine().disks_free, 1);
}

#[test]
fn a_restarted_supervisor_leaves_cells_their_block_devices() {
    let mut cells = machine(3);
    let report = run(&mut cells, with_disks("kv", &[1]));
    says(&report, CellPhase::Running);
    let mut cells = go_wrong(cells, 3, 1, |_| {});
    let machine = cells.machine();
    assert_eq!((machine.disks_total, machine.disks_free), (2, 1));
    let refused = create(&mut cells, with_disks("other", &[1]));
    assert_eq!(refused, Err(ManagementError::DiskNotFree(disk(1))));
    cells.stop("kv", 0).unwrap();
    assert_eq!(cells.machine().disks_free, 2);
}
