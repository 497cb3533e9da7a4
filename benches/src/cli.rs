//! The command line.

use crate::error::BenchError;
use crate::figure::Group;
use crate::groups::grid::Experiment;
use crate::linux::kernel::Kernel;
use crate::session::Plan;
use std::time::Duration;

/// Measures Isola beside a Linux guest, under the same QEMU with the same settings, in one run
///
/// The guest is Debian's cloud kernel with Debian's memcached and nginx; apt-get download fetches them into
/// .bench-cache/, and nothing is installed. Both systems get the same machine (q35, one processor, 512 MiB, virtio-net
/// on a tap device), the same client and the same load, in turn; figures are medians of the runs. A plugin of QEMU's
/// emulator counts the guests' instructions, in separate runs, as counting takes time.
///
/// The benchmark creates a network namespace, which needs root (or unprivileged user namespaces) and ends with it.
///
/// Times need a quiet host; counts of instructions hardly depend on the host.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "cargo xtask bench",
    bin_name = "cargo xtask bench",
    after_help = "Examples:\n  \
        cargo xtask bench --quick             one short run of everything, as a test of the set-up\n  \
        cargo xtask bench kv --runs 9         the figures of a group, more exactly\n  \
        cargo xtask bench -o json             one JSON object per figure: name, unit, isola, peer, peer_name,\n  \
        \x20                                     ratio (Isola's to the peer's), spread, runs\n  \
        cargo xtask bench --publish           also writes benches/data and the tables of benches/README.md\n\n\
        The raw data, with the numbers of every run, are in .bench-cache/data."
)]
pub struct Cli {
    /// The groups to measure; all of them if none is named
    #[arg(value_enum, value_name = "GROUP")]
    groups: Vec<Group>,
    /// The format of the figures
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
    /// The number of runs of everything
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// One run with short loads: for trials, not for figures to quote
    #[arg(long, conflicts_with_all = ["runs", "publish"])]
    quick: bool,
    /// The Linux guest's kernel; with backports, groups without such a guest are skipped
    #[arg(long, value_enum, default_value_t = Kernel::Stable)]
    kernel: Kernel,
    /// Repeats one experiment of the group `grid` only: for trials, as its figures are not all of the group's
    #[arg(long, value_enum, conflicts_with = "publish")]
    experiment: Option<Experiment>,
    /// Publishes the figures in benches/README.md and README.md, with their raw data in benches/data; needs a tree
    /// without uncommitted changes, a quiet host and five runs
    #[arg(long)]
    pub publish: bool,
    /// Measures nothing: compares the tables and plots with benches/data, or rewrites them
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with_all = ["groups", "runs", "quick", "publish"])]
    pub tables: Option<Tables>,
}

/// The least number of runs for published figures, which are medians.
const PUBLISHED_RUNS: u32 = 5;

/// The action on the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Tables {
    /// Fails if they do not match benches/data and its age
    Check,
    /// Rewrites them
    Write,
}

/// The format of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table for each group
    Human,
    /// One JSON object for each figure, each on its own line
    Json,
}

impl Cli {
    /// Returns the groups to measure, each once.
    pub fn groups(&self) -> Vec<Group> {
        let named = |group: &Group| self.groups.is_empty() || self.groups.contains(group);
        let changes = |group: &Group| self.kernel.is_stable() || group.guest().is_some();
        Group::ALL.into_iter().filter(named).filter(changes).collect()
    }

    /// Returns the number of runs and the length of the loads.
    pub fn plan(&self) -> Plan {
        let (runs, seconds) = if self.quick { (1, 1) } else { (self.runs, 4) };
        Plan {
            runs,
            load: Duration::from_secs(seconds),
            kernel: self.kernel,
            publish: self.publish,
            experiment: self.experiment,
        }
    }

    /// Rejects publication of figures from too few runs.
    ///
    /// # Errors
    /// [`BenchError::FewRuns`].
    pub fn demand_runs(&self) -> Result<(), BenchError> {
        if self.publish && self.runs < PUBLISHED_RUNS {
            return Err(BenchError::FewRuns { runs: self.runs, least: PUBLISHED_RUNS });
        }
        Ok(())
    }

    /// Returns the command that repeats the measurement of a group.
    pub fn line(&self, group: Group) -> String {
        let plan = self.plan();
        let quick = if self.quick { " --quick".to_owned() } else { format!(" --runs {}", plan.runs) };
        let kernel = if self.kernel.is_stable() { "" } else { " --kernel backports" };
        let experiment = match self.experiment {
            Some(experiment) if group == Group::Grid => format!(" --experiment {}", experiment.name()),
            _ => String::new(),
        };
        format!("cargo xtask bench {}{quick}{kernel}{experiment}", group.name())
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
    fn groups_are_measured_once_and_all_if_none_is_named() {
        let of = |line: &[&str]| Cli::parse_from(line).groups();
        assert_eq!(of(&["bench"]), Group::ALL);
        assert_eq!(of(&["bench", "kv", "boot", "kv"]), [Group::Boot, Group::Kv]);
    }

    #[test]
    fn one_experiment_cannot_be_published() {
        let line = ["bench", "grid", "--experiment", "together"];
        let cli = Cli::parse_from(line);
        assert_eq!(cli.line(Group::Grid), "cargo xtask bench grid --runs 5 --experiment together");
        assert!(Cli::try_parse_from(line.into_iter().chain(["--publish"])).is_err());
    }

    #[test]
    fn a_quick_run_cannot_be_published() {
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
