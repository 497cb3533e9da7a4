//! What the user typed.

use crate::error::BenchError;
use crate::figure::Group;
use crate::linux::kernel::Kernel;
use crate::session::Plan;
use std::time::Duration;

/// Measures Isola beside a Linux guest, under the same QEMU with the same settings, in one run
///
/// The guest is Debian's cloud kernel with Debian's memcached and nginx; all are fetched with apt-get download into
/// .bench-cache/ and nothing is installed. Both systems get the same machine (q35, one processor, 512 MiB, virtio-net
/// on a tap device), the same client and the same load, in turn; figures are medians of the runs. Instructions of the
/// guests are counted by a plugin of QEMU's emulator, in runs of their own, as counting takes time.
///
/// A network of its own is made for it, which needs root (or unprivileged user namespaces) and is gone afterwards.
///
/// Times want a quiet host; counts of instructions do not care.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "cargo xtask bench",
    bin_name = "cargo xtask bench",
    after_help = "Examples:\n  \
        cargo xtask bench --quick             one short run of everything: does it work?\n  \
        cargo xtask bench kv --runs 9         the figures of a group, more exactly\n  \
        cargo xtask bench -o json             one JSON object a figure: name, unit, isola, peer, peer_name,\n  \
        \x20                                     ratio (Isola's by the peer's), spread, runs\n  \
        cargo xtask bench --publish           also writes benches/data and the tables of benches/README.md\n\n\
        Raw data, every run's numbers, go to .bench-cache/data."
)]
pub struct Cli {
    /// The figures to take; all of them when no group is named
    #[arg(value_enum, value_name = "GROUP")]
    groups: Vec<Group>,
    /// How figures are printed
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
    /// How often everything is run
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// One run with short loads: for trying, not for figures to quote
    #[arg(long, conflicts_with_all = ["runs", "publish"])]
    quick: bool,
    /// The Linux guest's kernel; with backports, groups without such a guest are left out
    #[arg(long, value_enum, default_value_t = Kernel::Stable)]
    kernel: Kernel,
    /// Makes these the figures of benches/README.md and of README.md, with their raw data in benches/data; needs a tree
    /// without changes, a quiet host and five runs
    #[arg(long)]
    pub publish: bool,
    /// Takes no figures: compares the tables and pictures with benches/data, or writes them anew
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with_all = ["groups", "runs", "quick", "publish"])]
    pub tables: Option<Tables>,
}

/// Figures that are published are medians of so many runs at least.
const PUBLISHED_RUNS: u32 = 5;

/// What is done with the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Tables {
    /// Fails where they do not show what benches/data says, or whether that is old
    Check,
    /// Writes them
    Write,
}

/// How figures are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table a group
    Human,
    /// One JSON object a figure, each on a line of its own
    Json,
}

impl Cli {
    /// The groups to take, each once.
    pub fn groups(&self) -> Vec<Group> {
        let named = |group: &Group| self.groups.is_empty() || self.groups.contains(group);
        let changes = |group: &Group| self.kernel.is_stable() || group.guest().is_some();
        Group::ALL.into_iter().filter(named).filter(changes).collect()
    }

    /// How often, and how long.
    pub fn plan(&self) -> Plan {
        let (runs, seconds) = if self.quick { (1, 1) } else { (self.runs, 4) };
        Plan { runs, load: Duration::from_secs(seconds), kernel: self.kernel, publish: self.publish }
    }

    /// Fails where figures of so few runs would be published.
    ///
    /// # Errors
    /// [`BenchError::FewRuns`].
    pub fn demand_runs(&self) -> Result<(), BenchError> {
        if self.publish && self.runs < PUBLISHED_RUNS {
            return Err(BenchError::FewRuns { runs: self.runs, least: PUBLISHED_RUNS });
        }
        Ok(())
    }

    /// The line that takes the figures of a group again.
    pub fn line(&self, group: Group) -> String {
        let plan = self.plan();
        let quick = if self.quick { " --quick".to_owned() } else { format!(" --runs {}", plan.runs) };
        let kernel = if self.kernel.is_stable() { "" } else { " --kernel backports" };
        format!("cargo xtask bench {}{quick}{kernel}", group.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn groups_are_taken_once_and_all_where_none_is_named() {
        let of = |line: &[&str]| Cli::parse_from(line).groups();
        assert_eq!(of(&["bench"]), Group::ALL);
        assert_eq!(of(&["bench", "kv", "boot", "kv"]), [Group::Boot, Group::Kv]);
    }

    #[test]
    fn a_quick_run_is_none_to_publish() {
        assert!(Cli::try_parse_from(["bench", "--quick", "--publish"]).is_err());
        assert!(Cli::try_parse_from(["bench", "--runs", "0"]).is_err());
        let publish = |runs: &str| Cli::parse_from(["bench", "--publish", "--runs", runs]).demand_runs();
        assert!(publish("5").is_ok());
        assert!(publish("4").unwrap_err().to_string().contains("at least 5"));
        assert!(Cli::parse_from(["bench", "--runs", "1"]).demand_runs().is_ok());
        let backports = Cli::parse_from(["bench", "--kernel", "backports"]);
        assert_eq!(backports.line(Group::Kv), "cargo xtask bench kv --runs 5 --kernel backports");
        assert!(backports.groups().contains(&Group::Kv) && !backports.groups().contains(&Group::Stack));
        let quick = Cli::parse_from(["bench", "--quick"]);
        assert_eq!(quick.plan().runs, 1);
        assert_eq!(quick.line(Group::Kv), "cargo xtask bench kv --quick");
        assert_eq!(
            Cli::parse_from(["bench", "--runs", "7"]).line(Group::Boot),
            "cargo xtask bench boot --runs 7"
        );
    }
}
