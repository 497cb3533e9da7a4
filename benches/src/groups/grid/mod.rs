//! Group `grid`: what activities of one cell get of its processor, network and disk, beside their entitlements, and what
//! the grid costs. It repeats the experiments of the omni-kernel (Vortex, 4.1 to 4.5), beside a Linux guest with cgroup
//! v2.
//!
//! | module | contents |
//! |---|---|
//! | this | the order of the experiments |
//! | [`shares`] | the deviation of shares from entitlements |
//! | [`processor`], [`network`], [`disk`] | 50, 33 and 17 % of each resource |
//! | [`together`] | three services on one core, and the latency of a light one |
//! | [`overhead`] | cycles that no message has |
//! | [`requests`] | instructions of a request |
//! | [`isola`], [`guest`] | the tenants' cell, and their cgroups |

mod disk;
mod guest;
pub(super) mod isola;
mod network;
mod overhead;
mod processor;
mod requests;
pub(super) mod shares;
mod together;

use super::note;
use crate::error::BenchError;
use crate::record::Record;
use crate::session::{Session, System};
use crate::volume::HostVolume;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time before a reading, after a change of the load or of entitlements.
const SETTLE: Duration = Duration::from_millis(500);

/// The figures of shares, and those with their greatest values of all runs.
const WORST: [(&str, &str); 4] = [
    ("grid-processor-error", "grid-processor-worst"),
    ("grid-network-error", "grid-network-worst"),
    ("grid-disk-error", "grid-disk-worst"),
    ("grid-together-error", "grid-together-worst"),
];

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    let megabytes = |rate: u64| rate / 1_000_000;
    [
        ("a reading", format!("{seconds} s; with equal weights and alone half of it")),
        ("link", format!("{} MB/s, 1 MB files, 16 connections to each server", megabytes(network::RATE))),
        ("disk", format!("{} MB/s, 341 reads of each tenant at a time", megabytes(disk::RATE))),
        (
            "together",
            format!(
                "{} million instructions a second each; light: {} requests/s",
                together::PACE / 1_000_000,
                together::LIGHT
            ),
        ),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// An experiment of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Experiment {
    /// Shares of the processor
    Processor,
    /// Shares of the network
    Network,
    /// Shares of the disk
    Disk,
    /// Cycles that no message has
    Overhead,
    /// Instructions of a request
    Requests,
    /// Three services on one core, and the latency of a light one
    Together,
}

impl Experiment {
    /// All of them, in their order.
    const ALL: [Self; 6] =
        [Self::Processor, Self::Network, Self::Disk, Self::Overhead, Self::Requests, Self::Together];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::Network => "network",
            Self::Disk => "disk",
            Self::Overhead => "overhead",
            Self::Requests => "requests",
            Self::Together => "together",
        }
    }
}

/// Takes one run of a system.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let volume = HostVolume::make(processor::FILE, &[b'f'; processor::FILE_LEN])?;
    let only = session.plan.experiment;
    for experiment in Experiment::ALL.into_iter().filter(|one| only.is_none_or(|only| only == *one)) {
        match experiment {
            Experiment::Processor => processor::run(session, &volume, system, record)?,
            Experiment::Network => network::run(session, system, record)?,
            Experiment::Disk => disk::run(session, &volume, system, record)?,
            Experiment::Overhead if system == System::Isola => overhead::run(session, record)?,
            Experiment::Requests if system == System::Isola => requests::run(record)?,
            Experiment::Overhead | Experiment::Requests => {}
            Experiment::Together => together::run(session, system, record)?,
        }
    }
    Ok(())
}

/// Records the greatest value of all runs, of the figures of shares.
pub fn finish(record: &mut Record) {
    for (figure, worst) in WORST {
        let Some(series) = record.series(figure).cloned() else { continue };
        if let Some(value) = series.isola.into_iter().reduce(f64::max) {
            record.isola(worst, value);
        }
        if let Some(value) = series.peer.into_iter().reduce(f64::max) {
            record.peer(worst, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::KINDS;
    use crate::linux::{GRID_FILES, grid_file};

    #[test]
    fn the_worst_run_of_each_system_is_recorded() {
        let mut record = crate::record::tests::record("grid-disk-error", &[0.1, 0.9, 0.2], &[0.3, 0.2, 0.1]);
        finish(&mut record);
        let worst = record.series("grid-disk-worst").unwrap();
        assert_eq!((worst.isola.as_slice(), worst.peer.as_slice()), (&[0.9][..], &[0.3][..]));
        assert!(record.series("grid-network-worst").is_none(), "it was not measured");
        for (figure, worst) in WORST {
            let of = |name: &str| KINDS.iter().find(|kind| kind.name == name).unwrap();
            assert_eq!((of(figure).goals, of(figure).peer), (of(worst).goals, of(worst).peer), "{figure}");
        }
    }

    #[test]
    fn both_systems_serve_the_same_files() {
        let image = include_str!("../../../../tests/images/tenants/src/main.rs");
        for (name, len) in GRID_FILES {
            assert!(image.contains(&format!("(\"{name}\", ")), "{name}");
            assert_eq!(grid_file(len).len(), len);
        }
        assert!(image.contains("b'a' + (position % 26) as u8"));
    }
}
