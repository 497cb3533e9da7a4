//! Vortex 4.5 and its figure 9: the part of the busy cycles of a web server that no message has, for files of three
//! lengths and with several batching factors.

use super::isola::{TenantMachine, rule, wfq};
use crate::error::BenchError;
use crate::load::download::Downloads;
use crate::machine::Pace;
use crate::network::service;
use crate::record::Record;
use crate::session::Session;
use isola_abi::grid::{GridSetup, Resource};

/// The files: names in figures and on the server, and lengths.
const FILES: [(&str, usize); 3] = [("4m", 4 << 20), ("32k", 32 << 10), ("507", 507)];

/// The most requests of an activity for each decision.
const BATCHES: [u32; 3] = [1, 4, 8];

/// The number of the client's connections (Vortex, 4.2).
const CONNECTIONS: usize = 16;

/// The activities of the web server and, in half of the figures, of a batch job beside it.
const NAMES: [&str; 3] = ["web", "batch", "infrastructure"];

/// The port of the web server.
const PORT: u16 = 80;

/// Takes one run.
pub fn run(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut machine = TenantMachine::boot_at(session, Pace::InstructionsWhileBusy, Vec::new())?;
    for (tenants, suffix) in [(&["web:80"][..], ""), (&["web:80", "batch:batch"][..], "-beside")] {
        let changes = vec![wfq(Resource::Processor, 1, None), wfq(Resource::NetworkWrite, 1, None)];
        let tenants: Vec<String> = tenants.iter().map(|&tenant| tenant.to_owned()).collect();
        machine.start(&tenants, GridSetup { changes, rules: vec![rule(PORT, NAMES[0])] })?;
        for (file, len) in FILES {
            for batch in BATCHES {
                // Beside a batch job, one batching factor is measured: that of Vortex's figure 11.
                if !suffix.is_empty() && batch != BATCHES[2] {
                    continue;
                }
                machine
                    .change([Resource::Processor, Resource::NetworkWrite].map(|to| wfq(to, batch, None)))?;
                let before = machine.ledger(NAMES)?;
                Downloads::connect(&[service(PORT)], CONNECTIONS, file, len)?
                    .for_a_time(session.plan.load / 4)?;
                let used = machine.ledger(NAMES)?.since(&before);
                record.isola(&figure(file, batch, suffix), used.overhead_percent());
            }
        }
    }
    Ok(())
}

/// Returns the name of a figure.
fn figure(file: &str, batch: u32, suffix: &str) -> String {
    format!("grid-overhead-{file}-{batch}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::KINDS;
    use crate::linux::GRID_FILES;

    #[test]
    fn every_file_and_factor_has_a_figure_and_every_file_is_served() {
        for (file, len) in FILES {
            assert!(GRID_FILES.contains(&(file, len)), "{file}");
            for batch in BATCHES {
                assert!(KINDS.iter().any(|kind| kind.name == figure(file, batch, "")), "{file} {batch}");
            }
            assert!(KINDS.iter().any(|kind| kind.name == figure(file, BATCHES[2], "-beside")), "{file}");
        }
    }
}
