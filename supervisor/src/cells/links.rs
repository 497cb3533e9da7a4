//! Requests of running cells about links to other cells, see [`isola_abi::links`].
//!
//! The policy resolves the peer's name, and checks that the peer's specification accepts the cell; the core does the
//! rest. Each notification handles one request of a cell, and each is answered at once.

use super::Cells;
use isola_abi::id::CellId;
use isola_abi::links::{LinkDemand, LinkRefusal, NEIGHBOUR_SERVICE, ServiceName};
use isola_supervisor_core::Hardware;
use isola_supervisor_core::trusted_core::OwnedCell;

impl<H: Hardware> Cells<H> {
    /// Handles a running cell's request about a link, if there is a new one.
    pub(super) fn serve_link(&mut self, id: CellId) {
        let request = self.core.cell(id).and_then(OwnedCell::link_request);
        let Some((number, demand)) = request else { return };
        let answer = match demand {
            None => Err(LinkRefusal::Malformed),
            Some(LinkDemand::Open { target, service, memory }) => self
                .accepting(id, &target, &service)
                .and_then(|target| self.core.open_link(number, (id, memory), target, &service)),
            Some(LinkDemand::OpenNeighbour { mac, memory }) => self
                .neighbour(id, mac)
                .and_then(|target| self.core.open_link(number, (id, memory), target, &NEIGHBOUR_SERVICE)),
            Some(LinkDemand::Accept { slot, memory }) => self.core.accept_link(id, slot, memory),
            Some(LinkDemand::Share { slot, memory, access, survival }) => {
                self.core.share_over_link(id, slot, memory, access, survival)
            }
            Some(LinkDemand::Keep { slot, memory }) => self.core.keep_over_link(id, slot, memory),
            Some(LinkDemand::Unshare { slot }) => self.core.unshare_over_link(id, slot),
            Some(LinkDemand::Close { slot }) => self.core.close_link(id, slot),
        };
        if let Some(cell) = self.core.cell(id) {
            cell.answer_link(number, answer);
        }
    }

    /// Returns the running cell whose device has this hardware address, if it and `opener` agree to exchange frames.
    fn neighbour(&self, opener: CellId, mac: [u8; 6]) -> Result<CellId, LinkRefusal> {
        let spec = |id| self.table.get(id).map(|cell| &cell.spec);
        let target = self.core.neighbour(mac).ok_or(LinkRefusal::NoSuchCell)?;
        let agree = spec(opener).zip(spec(target)).is_some_and(|(one, other)| one.agrees_to_loop(other));
        if agree { Ok(target) } else { Err(LinkRefusal::NotAccepted) }
    }

    /// Returns the running cell named `target`, if it accepts links of the cell `opener` to that service.
    fn accepting(&self, opener: CellId, target: &str, service: &ServiceName) -> Result<CellId, LinkRefusal> {
        let opener = self.table.get(opener).ok_or(LinkRefusal::NoSuchCell)?;
        let target = self.table.find(target).ok().and_then(|id| self.table.get(id));
        let target = target.filter(|cell| cell.is_live()).ok_or(LinkRefusal::NoSuchCell)?;
        let accepts = target.spec.accepts(&opener.spec.name, service);
        if accepts { Ok(target.id) } else { Err(LinkRefusal::NotAccepted) }
    }
}
