//! Published ports of cells.
//!
//! A command saves each publication in the cell's record before it sends the rule to QEMU. If the command is killed in
//! between, no port remains open without a record; QEMU ignores the removal of a rule that it does not have.

use super::{CellError, look_up, wait_for_address};
use crate::client::Client;
use crate::machine::cells::{CellRecord, CellStore, CleanupPolicy};
use crate::machine::network::address;
use crate::machine::network_choice::translates;
use crate::machine::state::StateRoot;
use crate::machine::{LockedMachine, is_up};
use crate::output::view::is_running;
use crate::publish::{Publication, PublishError, PublishSpec};
use isola_abi::management::{CellInfo, CellSpec, NetworkSpec, RestartPolicy};
use std::net::Ipv4Addr;

/// Publishes further ports of a cell, now and at each later start.
///
/// # Errors
/// [`CellError`]; ports that were published before the error remain published.
pub fn publish(
    root: &StateRoot,
    locked: &LockedMachine,
    client: &mut Client,
    name: &str,
    specs: &[PublishSpec],
) -> Result<Vec<Publication>, CellError> {
    let cell = look_up(locked, client, name)?;
    check_ports(root, locked, &cell.spec, &client.list()?, specs)?;
    let store = locked.cells();
    let mut record = record_of(&store, &cell);
    record
        .publish
        .extend(specs.iter().filter(|spec| !record.publish.contains(spec)).copied().collect::<Vec<_>>());
    PublishSpec::check_conflicts(&record.publish)?;
    store.save(name, &record)?;
    if !is_running(&cell) {
        return Ok(Vec::new());
    }
    let cell = if address(&cell).is_some() { cell } else { wait_for_address(client, name)? };
    publish_ports(root, locked, &cell, specs)
}

/// Ends publications of a cell.
///
/// # Errors
/// [`CellError::NotPublished`] if one of the ports is not published.
pub fn unpublish(
    locked: &LockedMachine,
    client: &mut Client,
    name: &str,
    specs: &[PublishSpec],
) -> Result<(), CellError> {
    let cell = look_up(locked, client, name)?;
    let store = locked.cells();
    let mut record = record_of(&store, &cell);
    for spec in specs {
        let same_port = |cell_port, protocol| (cell_port, protocol) == (spec.cell_port, spec.protocol);
        let meant = |port: &Publication| {
            same_port(port.cell.port(), port.protocol) && (spec.host_port == 0 || spec.collides_with(port))
        };
        let (removed, remaining): (Vec<_>, Vec<_>) = record.published.iter().copied().partition(meant);
        let requested = |request: &PublishSpec| {
            let host = spec.host_port == 0
                || request.host_port == spec.host_port
                || (request.host_port == 0 && !removed.is_empty());
            host && same_port(request.cell_port, request.protocol)
        };
        let requests = record.publish.len();
        record.publish.retain(|request| !requested(request));
        if removed.is_empty() && record.publish.len() == requests {
            return Err(CellError::NotPublished { cell: name.to_owned(), port: spec.to_string() });
        }
        remove_forwards(locked, &removed)?;
        record.published = remaining;
        store.save(name, &record)?;
    }
    Ok(())
}

fn record_of(store: &CellStore, cell: &CellInfo) -> CellRecord {
    store.load(&cell.spec.name, cell.id).unwrap_or(CellRecord {
        id: cell.id,
        cleanup: CleanupPolicy::Keep,
        publish: Vec::new(),
        published: Vec::new(),
        volumes: Vec::new(),
    })
}

/// Checks whether the ports can be published, as far as that can be determined in advance.
pub(super) fn check_ports(
    root: &StateRoot,
    locked: &LockedMachine,
    cell: &CellSpec,
    cells: &[CellInfo],
    specs: &[PublishSpec],
) -> Result<(), CellError> {
    if specs.is_empty() {
        return Ok(());
    }
    if !locked.record.options.uplink.is_user() {
        return Err(CellError::NotOnTap);
    }
    if cell.network == NetworkSpec::None && cell.network_service.port().is_none() {
        return Err(CellError::NoNetwork(cell.name.clone()));
    }
    let service = cell.network_service.port().map(|port| &port.cell);
    if let Some(service) = service.filter(|service| translates(service, cells)) {
        return Err(CellError::Translated { cell: cell.name.clone(), service: service.clone() });
    }
    if cell.static_address().is_none() && cell.restart != RestartPolicy::No {
        return Err(CellError::AddressMayChange(cell.name.clone()));
    }
    PublishSpec::check_conflicts(specs)?;
    for spec in specs.iter().filter(|spec| spec.host_port != 0) {
        check_port(root, spec)?;
    }
    Ok(())
}

/// Checks that a host port is free. If another cell of the user occupies it, the error names that cell.
fn check_port(root: &StateRoot, spec: &PublishSpec) -> Result<(), PublishError> {
    let Err(error) = spec.free_host_port() else { return Ok(()) };
    for dir in root.machines().into_iter().filter(is_up) {
        if let Some((cell, port)) =
            CellStore::of(&dir).published().into_iter().find(|(_, port)| spec.collides_with(port))
        {
            let machine = dir.name.to_string();
            return Err(PublishError::Published { host: port.host, protocol: port.protocol, cell, machine });
        }
    }
    Err(error)
}

/// Publishes those of `specs` that are not published yet. If one fails, unpublishes the others.
pub(super) fn publish_ports(
    root: &StateRoot,
    locked: &LockedMachine,
    cell: &CellInfo,
    specs: &[PublishSpec],
) -> Result<Vec<Publication>, CellError> {
    if specs.is_empty() {
        return Ok(Vec::new());
    }
    let ip: Ipv4Addr = address(cell).ok_or_else(|| CellError::NoNetwork(cell.spec.name.clone()))?;
    let store = locked.cells();
    let mut record = record_of(&store, cell);
    let mut qmp = locked.qmp()?;
    let mut new: Vec<Publication> = Vec::new();
    for spec in specs {
        if record.published.iter().any(|port| spec.host_port != 0 && spec.collides_with(port)) {
            continue;
        }
        let begun = check_port(root, spec).and_then(|()| spec.resolve(ip)).map_err(CellError::from).and_then(
            |port| {
                new.push(port);
                record.published.push(port);
                store.save(&cell.spec.name, &record)?;
                Ok(port.begin(&mut qmp)?)
            },
        );
        if let Err(error) = begun {
            remove_forwards(locked, &new)?;
            record.published.retain(|port| !new.contains(port));
            store.save(&cell.spec.name, &record)?;
            return Err(error);
        }
    }
    Ok(new)
}

/// Unpublishes ports that were published for the cell.
pub(super) fn withdraw_ports(
    locked: &LockedMachine,
    cell: &CellInfo,
    ports: &[Publication],
) -> Result<(), CellError> {
    remove_forwards(locked, ports)?;
    let store = locked.cells();
    let mut record = record_of(&store, cell);
    record.published.retain(|port| !ports.contains(port));
    Ok(store.save(&cell.spec.name, &record)?)
}

pub(super) fn unpublish_all(locked: &LockedMachine, cell: &CellInfo) -> Result<(), CellError> {
    let store = locked.cells();
    if let Some(mut record) = store.load(&cell.spec.name, cell.id).filter(|r| !r.published.is_empty()) {
        remove_forwards(locked, &record.published)?;
        record.published.clear();
        store.save(&cell.spec.name, &record)?;
    }
    Ok(())
}

fn remove_forwards(locked: &LockedMachine, ports: &[Publication]) -> Result<(), CellError> {
    if !ports.is_empty() {
        let mut qmp = locked.qmp()?;
        for port in ports {
            port.end(&mut qmp)?;
        }
    }
    Ok(())
}
